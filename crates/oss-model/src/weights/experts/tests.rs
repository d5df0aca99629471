use super::*;
use oss_testing::Seeded;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::fs;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;
use tempfile::TempDir;

const LAYERS: usize = 3;
const EXPERTS: usize = 6;

/// A file of experts, most of them small, one of several parts, none at a whole block.
struct File {
    directory: TempDir,
    bytes: Vec<u8>,
    layers: Vec<Vec<Place>>,
}

impl File {
    fn new(sizes: impl Fn(usize) -> usize) -> Self {
        let (mut bytes, mut layers) = (vec![1; 100], Vec::new());
        let mut seeded = Seeded::new(1);
        for layer in 0..LAYERS {
            let place = |expert| {
                let size = sizes(layer * EXPERTS + expert);
                let place = Place { offset: bytes.len() as u64, bytes: size };
                bytes.extend((0..size.div_ceil(8)).flat_map(|_| seeded.bits().to_le_bytes()));
                place
            };
            layers.push((0..EXPERTS).map(place).collect());
        }
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("experts"), &bytes).unwrap();
        Self { directory, bytes, layers }
    }

    fn slots(&self, slots: usize) -> ExpertCache {
        self.slots_after(slots, &[])
    }

    /// Slots that begin with what was popular in an earlier run.
    fn slots_after(&self, slots: usize, popularity: &[Popularity]) -> ExpertCache {
        let (path, policy) = (self.directory.path().join("experts"), MemoryPolicy::default());
        let (file, memory) =
            (RandomAccess::open_direct(&path).unwrap(), (&policy, Pages::Transparent));
        ExpertCache::open(file, &self.layers, slots, memory, &[], popularity).unwrap()
    }

    /// The expert's bytes.
    fn expert(&self, layer: usize, expert: u32) -> &[u8] {
        let place = self.layers[layer][expert as usize];
        &self.bytes[place.offset as usize..][..place.bytes]
    }
}

/// Hands out all experts of a layer, compares their bytes, and returns how many rounds it took.
fn use_all(file: &File, slots: &ExpertCache, layer: usize, active: &[u32]) -> Result<usize> {
    let (mut done, mut rounds) = (0, 0);
    while done < active.len() {
        let pinned = slots.round(layer, &active[done..])?;
        assert!((1..=slots.slots).contains(&pinned.len()), "{} of {}", pinned.len(), slots.slots);
        for (index, expert) in active[done..][..pinned.len()].iter().enumerate() {
            let (slot, expected) = (pinned.slot(index), file.expert(layer, *expert));
            assert!(slot.bytes()[..expected.len()] == *expected, "layer {layer}, {expert}");
        }
        done += pinned.len();
        rounds += 1;
    }
    assert_eq!(done, active.len());
    Ok(rounds)
}

/// Predictions of the next layer's experts, two for each row, of those of the layer after it.
fn prefetch(slots: &ExpertCache, before: (usize, &[u32]), predictions: &[u32]) {
    let (layers, margins) = (before.0 + 1..LAYERS, vec![1.0; predictions.len()]);
    let prediction =
        |layer| Predictions { layer, top_k: 2, experts: predictions, margins: &margins };
    slots.prefetch(before, layers.map(prediction));
}

/// Choices of some rows, the low experts more often.
fn choices(seeded: &mut Seeded, rows: usize) -> Vec<u32> {
    (0..rows * 2)
        .map(|_| (seeded.below(EXPERTS) * seeded.below(EXPERTS) / EXPERTS) as u32)
        .collect()
}

fn active(choices: &[u32]) -> Vec<u32> {
    BTreeSet::from_iter(choices.iter().copied()).into_iter().collect()
}

#[test]
fn whatever_is_asked_in_however_many_slots_the_bytes_are_the_file_s() {
    let file = File::new(|id| if id == 4 { 5_000_000 } else { 1 + id * 10_007 });
    for n in [1, 2, 3, 7, LAYERS * EXPERTS, 100] {
        let slots = file.slots(n);
        let mut seeded = Seeded::new(n as u64);
        for step in 0..120 {
            let layer = step % LAYERS;
            let rows = 1 + seeded.below(5);
            let choices = choices(&mut seeded, rows);
            let mut active = active(&choices);
            let expected = active.clone();
            slots.begin(layer, &mut active, &choices, rows);
            if layer + 1 < LAYERS {
                let predictions: Vec<u32> = (0..4).map(|_| seeded.below(EXPERTS) as u32).collect();
                prefetch(&slots, (layer, &active), &predictions);
            }
            use_all(&file, &slots, layer, &active).unwrap();
            active.sort_unstable();
            assert_eq!(active, expected);
        }
        let counts = slots.counts();
        assert_eq!(counts.slots, n.min(LAYERS * EXPERTS));
        assert!(counts.hits + counts.misses > 120, "{counts:?}");
        assert!(counts.read_bytes >= counts.missed_bytes && counts.reading_seconds > 0.0);
        if n >= LAYERS * EXPERTS {
            assert!(counts.misses <= 18, "each expert is read once: {counts:?}");
        }
    }
}

#[test]
fn those_that_are_needed_most_keep_their_slots_as_in_a_plain_model() {
    let file = File::new(|_| 5_000);
    let n = 8;
    let slots = file.slots(n);
    let mut frequency = Frequency::new(LAYERS * EXPERTS);
    let mut here = BTreeSet::new();
    let (mut seeded, mut hits, mut misses) = (Seeded::new(3), 0, 0);
    for step in 0..600 {
        let layer = step % LAYERS;
        let first = layer * EXPERTS;
        let choices = choices(&mut seeded, 1 + step % 2);
        let mut active = active(&choices);
        let ids: Vec<usize> = active.iter().map(|expert| first + *expert as usize).collect();
        slots.begin(layer, &mut active, &choices, 1 + step % 2);
        frequency.observe(first..first + EXPERTS, &choices, 1 + step % 2);
        for id in &ids {
            hits += u64::from(here.contains(id));
        }
        for id in ids.iter().copied().filter(|id| !here.contains(id)).collect::<Vec<_>>() {
            misses += 1;
            if here.len() == n {
                let others = here.iter().copied().filter(|id| !ids.contains(id));
                let chance = |id: &usize| frequency.chance(*id);
                let goes = others.min_by(|a, b| chance(a).total_cmp(&chance(b))).unwrap();
                here.remove(&goes);
            }
            here.insert(id);
        }
        use_all(&file, &slots, layer, &active).unwrap();
        let counts = slots.counts();
        assert_eq!((counts.hits, counts.misses), (hits, misses), "step {step}");
    }
    assert!(hits > 2 * misses, "{hits} of {}", hits + misses);
}

#[test]
fn predictions_are_followed_where_they_come_true_and_only_there() {
    let file = File::new(|_| 300_000);
    for right in [true, false] {
        let slots = file.slots(5);
        let mut seeded = Seeded::new(9);
        let mut next = vec![0, 1];
        for step in 0..400 {
            let layer = step % LAYERS;
            let mut active = active(&next);
            slots.begin(layer, &mut active, &next, 1);
            next = vec![seeded.below(3) as u32, 3 + seeded.below(3) as u32];
            if layer + 1 < LAYERS {
                let wrong: Vec<u32> = next.iter().map(|e| (e + 1) % 3 + e / 3 * 3).collect();
                let predictions = if right { &next } else { &wrong };
                prefetch(&slots, (layer, &active), predictions);
            }
            use_all(&file, &slots, layer, &active).unwrap();
        }
        let counts = slots.counts();
        match right {
            true => {
                assert!(counts.predicted > 50, "{counts:?}");
                assert!(counts.predicted_used + 2 >= counts.predicted, "{counts:?}");
            }
            false => assert_eq!((counts.predicted, counts.predicted_wasted), (0, 0)),
        }
        // Whole blocks are a little more than the experts.
        assert!(counts.read_bytes as f64 <= 1.1 * counts.missed_bytes as f64, "{counts:?}");
    }
}

/// Needs one expert of a layer, for one row.
fn need(file: &File, slots: &ExpertCache, layer: usize, expert: u32) -> Result<usize> {
    let mut active = [expert];
    slots.begin(layer, &mut active, &[expert], 1);
    use_all(file, slots, layer, &active)
}

/// Needs the last expert of each layer often, and the others now and then.
fn habits(file: &File, slots: &ExpertCache) {
    for step in 0..40 {
        for layer in 0..LAYERS {
            need(file, slots, layer, if step % 2 == 0 { 5 } else { step / 2 % 5 }).unwrap();
        }
    }
}

/// Waits until nothing is read any more.
fn wait_for_popular(slots: &ExpertCache) {
    let begin = std::time::Instant::now();
    let is_busy = || {
        let table = slots.readers.lock();
        (0..LAYERS * EXPERTS).any(|id| matches!(table.state(id), Residency::Loading(_)))
    };
    while slots.counts().popular_bytes == 0 || is_busy() {
        assert!(begin.elapsed().as_secs() < 20, "{:?}", slots.counts());
        thread::yield_now();
    }
}

#[test]
fn slots_begin_with_what_was_popular_before() {
    let file = File::new(|_| 300_000);
    let first = file.slots(LAYERS);
    assert_eq!(first.popularity(), None);
    habits(&file, &first);
    let popularity = first.popularity().unwrap();
    assert!(popularity.iter().all(|layer| layer.is_sound(EXPERTS)), "{popularity:?}");
    let second = file.slots_after(LAYERS, &popularity);
    assert_eq!(second.popularity(), None, "nobody needed anything yet");
    wait_for_popular(&second);
    for layer in 0..LAYERS {
        need(&file, &second, layer, 5).unwrap();
    }
    let counts = second.counts();
    assert_eq!((counts.hits, counts.misses, counts.missed_bytes), (3, 0, 0), "{counts:?}");
    assert_eq!(counts.read_bytes, counts.popular_bytes);
    // What is not popular takes the slot of the least popular, as ever.
    need(&file, &second, 1, 0).unwrap();
    let counts = second.counts();
    assert_eq!((counts.misses, counts.missed_bytes), (1, 300_000), "{counts:?}");
    assert_eq!((counts.predicted, counts.predicted_wasted), (0, 0));
    let rows = second.popularity().unwrap()[0].rows;
    assert!((20.0..22.0).contains(&rows), "{rows}, expected half of 40 and one");
}

#[test]
fn what_is_needed_while_popular_experts_come_is_right_at_once() {
    let file = File::new(|id| if id % 3 == 0 { 5_000_000 } else { 300_000 });
    let first = file.slots(LAYERS);
    habits(&file, &first);
    let popularity = first.popularity().unwrap();
    for n in [1, 2, 7, LAYERS * EXPERTS] {
        let slots = file.slots_after(n, &popularity);
        habits(&file, &slots);
        let counts = slots.counts();
        assert_eq!(counts.hits + counts.misses, 40 * LAYERS as u64);
        assert!(counts.read_bytes >= counts.popular_bytes, "{counts:?}");
        assert_eq!(counts.predicted_used, 0, "{counts:?}");
    }
}

#[test]
fn popular_experts_that_cannot_be_read_leave_their_slots_to_others() {
    let file = File::new(|_| 10_000);
    let path = file.directory.path().join("experts");
    let first = file.slots(2);
    habits(&file, &first);
    let popularity = first.popularity().unwrap();
    let cut = file.layers[1][0].offset;
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(cut).unwrap();
    let slots = file.slots_after(2, &popularity);
    wait_for_popular(&slots);
    need(&file, &slots, 0, 5).unwrap();
    need(&file, &slots, 2, 5).unwrap_err();
    fs::write(&path, &file.bytes).unwrap();
    need(&file, &slots, 2, 5).unwrap();
}

#[test]
fn an_expert_that_cannot_be_read_is_named_and_is_asked_for_again_later() {
    let file = File::new(|_| 10_000);
    let path = file.directory.path().join("experts");
    let slots = file.slots(4);
    let last = file.layers[2][5];
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(last.offset + 5_000).unwrap();
    let ask = |experts: [u32; 2]| {
        let mut active = experts.to_vec();
        slots.begin(2, &mut active, &experts, 1);
        use_all(&file, &slots, 2, &active)
    };
    for _ in 0..2 {
        let error = ask([1, 5]).unwrap_err();
        let text = error.to_string();
        let place = format!("expert 5 of layer 2, 10000 bytes at {}: ", last.offset);
        assert!(text.contains("experts") && text.contains(&place), "{text}");
        assert!(text.contains("could not read: got "), "{text}");
        ask([0, 1]).unwrap();
    }
    fs::write(&path, &file.bytes).unwrap();
    ask([1, 5]).unwrap();
}

#[test]
fn who_waits_for_a_slot_is_told_when_another_pass_gives_it_back() {
    let file = File::new(|_| 10_000);
    let slots = &file.slots(1);
    let begin = |expert| slots.begin(0, &mut [expert], &[expert], 1);
    begin(0);
    let pinned = slots.round(0, &[0]).unwrap();
    thread::scope(|scope| {
        let (tell, told) = mpsc::channel();
        let other = scope.spawn(move || {
            begin(1);
            let slot = slots.round(0, &[1]).map(|pinned| pinned.len());
            // Nobody hears it where the test has failed.
            let _told = tell.send(());
            slot
        });
        told.recv_timeout(Duration::from_millis(200)).expect_err("the one slot is pinned");
        drop(pinned);
        if told.recv_timeout(Duration::from_secs(20)).is_err() {
            slots.readers.tell_of_slots();
            panic!("nobody told the other pass of the slot");
        }
        assert_eq!(other.join().unwrap().unwrap(), 1);
    });
}

#[test]
fn experts_are_missing_until_all_are_in_slots_and_once_one_has_left() {
    let file = File::new(|_| 10_000);
    let slots = file.slots(LAYERS * EXPERTS);
    assert!(slots.lacks_any());
    for layer in 0..LAYERS {
        for expert in 0..EXPERTS as u32 {
            assert!(slots.lacks_any());
            need(&file, &slots, layer, expert).unwrap();
        }
    }
    assert!(!slots.lacks_any());
    let few = file.slots(2);
    habits(&file, &few);
    assert!(few.lacks_any());
    // One that cannot be read is missing, too.
    let all = file.slots(LAYERS * EXPERTS);
    for id in 0..LAYERS * EXPERTS - 1 {
        need(&file, &all, id / EXPERTS, (id % EXPERTS) as u32).unwrap();
    }
    let path = file.directory.path().join("experts");
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(100).unwrap();
    need(&file, &all, LAYERS - 1, EXPERTS as u32 - 1).unwrap_err();
    assert!(all.lacks_any());
}

#[test]
fn whoever_looks_for_a_slot_asks_only_of_better_ones_whether_they_are_kept() {
    let file = File::new(|_| 10_000);
    let slots = file.slots(EXPERTS);
    // Each expert of the first layer is needed more often than the one before it.
    for expert in 0..EXPERTS as u32 {
        for _ in 0..=expert {
            need(&file, &slots, 0, expert).unwrap();
        }
    }
    let asked = Cell::new(0);
    let mut table = slots.readers.lock();
    assert!(table.ask(EXPERTS, Priority::Needed, |id| {
        asked.set(asked.get() + 1);
        id == 0
    }));
    assert_eq!(asked.get(), 2, "the one that is kept, and the next");
    assert!(matches!(table.state(1), Residency::OnDisk));
}
