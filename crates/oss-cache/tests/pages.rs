//! Random operations against plain vectors of tokens.

use oss_cache::{Error, Group, KvCache, Options, SequenceId, Shape};
use oss_memory::Pages;
use oss_testing::Seeded;

const PAGE: usize = 16;
const HEADS: usize = 2;
/// Bytes of a slot per position in these tests.
const BYTES: usize = 8;

fn shape(groups: &[(&[usize], Option<usize>)]) -> Shape {
    let groups =
        groups.iter().map(|&(layers, window)| Group { layers: layers.to_vec(), window }).collect();
    Shape { page_tokens: PAGE, n_kv_heads: HEADS, head_dim: 1, slot_bytes: PAGE * BYTES, groups }
}

/// What position `position` holds for `token`: different for every layer and head.
fn pattern(layer: usize, head: usize, position: usize, token: u32) -> [u8; BYTES] {
    let mixed = (u64::from(token) << 32 | position as u64)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .wrapping_add((layer * 31 + head) as u64);
    mixed.to_le_bytes()
}

fn write(cache: &mut KvCache, id: SequenceId, from: usize, tokens: &[u32]) {
    let layers: usize = cache.shape().groups.iter().map(|group| group.layers.len()).sum();
    for (position, &token) in (from..).zip(tokens) {
        for layer in 0..layers {
            for head in 0..HEADS {
                let at = cache.slot_range(layer, id, position / PAGE, head).start;
                let at = at + position % PAGE * BYTES;
                cache.arena_mut(layer)[at..at + BYTES]
                    .copy_from_slice(&pattern(layer, head, position, token));
            }
        }
    }
}

/// Every position that the window of a query at `tokens.len()` covers reads back as written.
fn check(cache: &KvCache, id: SequenceId, tokens: &[u32]) {
    assert_eq!(cache.len(id), tokens.len());
    for group in &cache.shape().groups {
        let window = group.window.unwrap_or(usize::MAX);
        let first = (tokens.len() + 1).saturating_sub(window);
        for &layer in &group.layers {
            assert!(cache.first_position(layer, id) <= first);
            for (position, &token) in tokens.iter().enumerate().skip(first) {
                for head in 0..HEADS {
                    let slot = cache.slot(layer, id, position / PAGE, head);
                    let got = &slot[position % PAGE * BYTES..][..BYTES];
                    assert_eq!(got, pattern(layer, head, position, token), "position {position}");
                }
            }
        }
    }
}

/// A cache, the plain model beside it, and the random numbers that drive both.
struct Run {
    cache: KvCache,
    plain: Vec<(SequenceId, Vec<u32>)>,
    seeded: Seeded,
    refused: usize,
}

impl Run {
    fn step(&mut self) {
        let choice = self.seeded.below(100);
        if self.plain.is_empty() || choice < 5 {
            let id = self.cache.create();
            self.plain.push((id, Vec::new()));
            return;
        }
        let at = self.seeded.below(self.plain.len());
        match choice {
            5..75 => self.extend(at),
            75..82 => {
                let (parent, tokens) = self.plain[at].clone();
                let child = self.cache.fork(parent).expect("the parent lives");
                self.plain.push((child, tokens));
            }
            82..92 => self.truncate(at),
            _ => {
                let (id, _) = self.plain.swap_remove(at);
                self.cache.remove(id);
                assert!(matches!(self.cache.fork(id), Err(Error::UnknownSequence { .. })));
            }
        }
    }

    fn extend(&mut self, at: usize) {
        let n = match self.seeded.chance(0.7) {
            true => 1 + self.seeded.below(3),
            false => 1 + self.seeded.below(100),
        };
        let (id, tokens) = &mut self.plain[at];
        let before = self.cache.checksum(*id);
        match self.cache.reserve(*id, n) {
            Ok(()) => {
                let new: Vec<u32> = (0..n).map(|_| self.seeded.bits() as u32).collect();
                write(&mut self.cache, *id, tokens.len(), &new);
                let accepted = n - self.seeded.below(n.min(4)); // rejected drafts
                self.cache.commit(*id, accepted);
                tokens.extend_from_slice(&new[..accepted]);
            }
            Err(Error::OutOfPages { got, expected, .. }) => {
                assert!(got < expected, "{got} {expected}");
                assert_eq!(self.cache.checksum(*id), before);
                self.refused += 1;
                let (id, _) = self.plain.swap_remove(at);
                self.cache.remove(id);
            }
            Err(other) => panic!("{other}"),
        }
    }

    fn truncate(&mut self, at: usize) {
        let (id, tokens) = &mut self.plain[at];
        let back = self.seeded.below(60).min(tokens.len());
        let wanted = tokens.len() - back;
        let got = self.cache.truncate(*id, wanted).expect("within the sequence");
        assert!(got == wanted || got == 0, "{got} {wanted}");
        let windowed = self.cache.shape().groups.iter().any(|group| group.window.is_some());
        assert!(got == wanted || windowed, "only a window can stand in the way");
        tokens.truncate(got);
    }
}

fn drive(shape: Shape, capacity: usize, steps: usize, seed: u64) -> usize {
    let cache = KvCache::new(shape, capacity).expect("a sound shape");
    let mut run = Run { cache, plain: Vec::new(), seeded: Seeded::new(seed), refused: 0 };
    for step in 0..steps {
        run.step();
        run.cache.validate().unwrap_or_else(|error| panic!("step {step}: {error}"));
        if let Some((id, tokens)) = run.plain.last() {
            check(&run.cache, *id, tokens);
        }
        if step % 50 == 0 {
            run.plain.iter().for_each(|(id, tokens)| check(&run.cache, *id, tokens));
        }
    }
    run.plain.iter().for_each(|(id, tokens)| check(&run.cache, *id, tokens));
    run.plain.drain(..).for_each(|(id, _)| run.cache.remove(id));
    run.cache.validate().expect("books in order");
    for group in 0..run.cache.shape().groups.len() {
        assert_eq!(run.cache.pages(group).in_use, 0, "group {group} leaked");
    }
    run.refused
}

#[test]
fn random_operations_agree_with_a_plain_vector() {
    let equal: &[(&[usize], _)] = &[(&[0, 2], Some(33)), (&[1, 3], None)];
    let unequal: &[(&[usize], _)] = &[(&[0, 1, 2, 3, 4], Some(20)), (&[5, 6], None)];
    let one: &[(&[usize], _)] = &[(&[0, 1], None)];
    let mut refused = 0;
    for (seed, groups) in [equal, unequal, one].into_iter().enumerate() {
        refused += drive(shape(groups), 100_000, 2_500, seed as u64);
    }
    assert!(refused > 10, "the capacity never ran out: {refused}");
}

#[test]
fn threads_may_read_and_send_a_cache() {
    fn both<T: Send + Sync>(value: T) -> T {
        value
    }
    let cache = both(KvCache::new(shape(&[(&[0], None)]), 1 << 20).unwrap());
    assert_eq!(cache.pages(0).in_use, 0);
}

#[test]
fn a_window_keeps_its_pages_until_the_chunk_is_committed() {
    let mut cache = KvCache::new(shape(&[(&[0], Some(32)), (&[1], None)]), 1 << 20).unwrap();
    let id = cache.create();
    cache.reserve(id, 160).unwrap();
    write(&mut cache, id, 0, &[1; 160]);
    assert_eq!(cache.slot(0, id, 0, 0)[..BYTES], pattern(0, 0, 0, 1));
    cache.commit(id, 160);
    // A query at 160 needs positions from 129 on: page 8. One more can be taken back.
    assert_eq!(cache.first_position(0, id), 112);
    assert_eq!(cache.pages(0).in_use, 3);
    assert_eq!(cache.pages(1).in_use, 10);
    cache.reserve(id, 16).unwrap();
    cache.commit(id, 15);
    assert_eq!(cache.first_position(0, id), 128);
}

#[test]
fn rejected_drafts_can_always_be_taken_back() {
    let mut cache = KvCache::new(shape(&[(&[0], Some(33)), (&[1], None)]), 1 << 20).unwrap();
    let id = cache.create();
    let mut tokens: Vec<u32> = Vec::new();
    for step in 0..300 {
        let drafts = step % 16 + 1;
        cache.reserve(id, drafts + 1).unwrap();
        let len = tokens.len();
        tokens.extend((0..=drafts).map(|draft| (step * 20 + draft) as u32));
        write(&mut cache, id, len, &tokens[len..]);
        cache.commit(id, drafts + 1);
        assert_eq!(cache.truncate(id, len + 1).unwrap(), len + 1);
        tokens.truncate(len + 1);
        check(&cache, id, &tokens);
    }
}

#[test]
fn a_failed_reservation_changes_nothing() {
    let shape = shape(&[(&[0], None), (&[1], None)]);
    let mut cache = KvCache::new(shape, 4 * PAGE * BYTES * HEADS).unwrap();
    let id = cache.create();
    cache.reserve(id, 16).unwrap();
    cache.commit(id, 16);
    let error = cache.reserve(id, 17).unwrap_err();
    assert!(matches!(error, Error::OutOfPages { group: 1, got: 0, expected: 2 }), "{error}");
    assert_eq!(error.to_string(), "out of cache pages in group 1: got 0 free, expected 2");
    assert_eq!((cache.pages(0).in_use, cache.pages(0).available), (1, 2));
    cache.validate().unwrap();
    cache.reserve(id, 16).unwrap();
}

#[test]
fn a_fork_copies_only_the_page_it_writes() {
    let mut cache = KvCache::new(shape(&[(&[0], None)]), 1 << 20).unwrap();
    let parent = cache.create();
    cache.reserve(parent, 40).unwrap();
    write(&mut cache, parent, 0, &[5; 40]);
    cache.commit(parent, 40);
    let child = cache.fork(parent).unwrap();
    assert_eq!(cache.pages(0).in_use, 3);
    cache.reserve(child, 1).unwrap();
    write(&mut cache, child, 40, &[9]);
    cache.commit(child, 1);
    assert_eq!(cache.pages(0).in_use, 4);
    check(&cache, parent, &[5; 40]);
    let mut tokens = vec![5; 40];
    tokens.push(9);
    check(&cache, child, &tokens);
    assert_eq!(cache.checksum(parent), cache.checksum(child)); // the two complete pages
    // The parent is now the only owner of its last page and may write without a copy.
    cache.reserve(parent, 1).unwrap();
    assert_eq!(cache.pages(0).in_use, 4);
    let (stats, bytes) = (cache.stats(), cache.pages(0).page_bytes as u64);
    assert_eq!((stats.copied_pages, stats.copied_bytes), (1, bytes));
}

#[test]
fn a_reused_page_is_zero() {
    let mut cache = KvCache::new(shape(&[(&[0], None)]), PAGE * BYTES * HEADS).unwrap();
    let first = cache.create();
    cache.reserve(first, 16).unwrap();
    write(&mut cache, first, 0, &[u32::MAX; 16]);
    cache.commit(first, 16);
    cache.remove(first);
    let second = cache.create();
    cache.reserve(second, 1).unwrap();
    assert!(cache.slot(0, second, 0, 1).iter().all(|&byte| byte == 0));
}

#[test]
fn capacity_taken_away_comes_back() {
    let page = PAGE * BYTES * HEADS;
    let mut cache = KvCache::new(shape(&[(&[0], None)]), 100 * page).unwrap();
    let (a, b) = (cache.create(), cache.create());
    cache.reserve(a, 40 * PAGE).unwrap();
    cache.reserve(b, 20 * PAGE).unwrap();
    cache.remove(a);
    assert_eq!(cache.bytes_resident(), 60 * page);
    assert_eq!(cache.set_capacity(30 * page).unwrap(), 20 * page);
    cache.validate().unwrap();
    assert_eq!(cache.pages(0).available, 10);
    assert!(cache.reserve(b, 31 * PAGE).is_err());
    // Less than what is in use: nothing is taken away from a sequence.
    assert_eq!(cache.set_capacity(0).unwrap(), 20 * page);
    assert!(cache.reserve(b, 20 * PAGE).is_ok() && cache.reserve(b, 21 * PAGE).is_err());
    assert_eq!(cache.set_capacity(usize::MAX).unwrap(), 20 * page);
    cache.reserve(b, 100 * PAGE).unwrap();
    assert!(cache.slot(0, b, 99, 0).iter().all(|&byte| byte == 0));
    cache.validate().unwrap();
}

#[test]
fn a_shape_tells_the_bytes_of_its_pages() {
    let shape = shape(&[(&[0, 2, 4], Some(40)), (&[1, 3], None)]);
    let [windowed, full] = [3, 2].map(|layers| layers * HEADS * PAGE * BYTES);
    assert_eq!(shape.largest_page_bytes(), windowed);
    // A window, the rows beside it and three pages more; every position, and the last page twice.
    assert_eq!(shape.sequence_bytes(160, 16), 7 * windowed + 11 * full);
    assert_eq!(shape.sequence_bytes(30, 16), 3 * windowed + 3 * full);
    let queues = [(0, 0), (1, 0), (0, 8), (1, 8)].map(|(warm, cold)| shape.queue_bytes(warm, cold));
    assert_eq!(queues, [0, 128, 16, 152].map(|pages| pages * windowed));
}

#[test]
fn what_was_set_aside_is_resident_for_good() {
    let capacity = 64 * PAGE * BYTES * HEADS;
    for pages in Pages::ALL {
        let options = Options { capacity_bytes: capacity, pages, ..Options::default() };
        let mut cache = KvCache::with_options(shape(&[(&[0], None)]), &options).unwrap();
        // None where the system has set nothing aside.
        let reserved = cache.bytes_reserved();
        assert!(reserved == 0 || pages == Pages::Reserved && reserved == capacity);
        assert_eq!(cache.bytes_resident(), reserved, "{pages}");
        let id = cache.create();
        cache.reserve(id, 40 * PAGE).unwrap();
        let used = if reserved > 0 { capacity } else { 40 * PAGE * BYTES * HEADS };
        assert_eq!(cache.bytes_resident(), used, "{pages}");
        cache.remove(id);
        assert_eq!(cache.set_capacity(0).unwrap(), reserved, "{pages}");
    }
}

#[test]
fn a_removed_sequence_is_not_mistaken_for_its_successor() {
    let mut cache = KvCache::new(shape(&[(&[0], None)]), 1 << 20).unwrap();
    let old = cache.create();
    cache.remove(old);
    let new = cache.create();
    assert_ne!(old, new);
    cache.reserve(new, 1).unwrap();
    let error = cache.reserve(old, 1).unwrap_err();
    assert!(matches!(error, Error::UnknownSequence { .. }));
    assert!(cache.fork(old).is_err() && cache.truncate(old, 0).is_err());
}

#[test]
fn truncation_beyond_the_sequence_names_both_lengths() {
    let mut cache = KvCache::new(shape(&[(&[0], None)]), 1 << 20).unwrap();
    let id = cache.create();
    let error = cache.truncate(id, 3).unwrap_err().to_string();
    assert_eq!(error, "position beyond the sequence: got 3, expected at most 0");
}

#[test]
fn a_layer_in_two_groups_or_in_none_is_refused() {
    for groups in [&[(&[0usize, 1][..], None), (&[1][..], None)][..], &[(&[0, 2][..], None)][..]] {
        let error = KvCache::new(shape(groups), 1 << 20).unwrap_err();
        assert!(matches!(error, Error::Shape { field: "group.layers", .. }), "{error}");
    }
    let error = KvCache::new(shape(&[(&[0], None)]), 10).unwrap_err().to_string();
    assert_eq!(error, "cache capacity (`cache_bytes`): got 10 bytes, expected at least 256");
}

#[test]
fn pages_that_follow_each_other_are_neighbours_head_by_head() {
    let groups: [(&[usize], _); 2] = [(&[0, 2], Some(40)), (&[1, 3], None)];
    let page = PAGE * BYTES * HEADS * 2;
    let mut cache = KvCache::new(shape(&groups), 1024 * page).unwrap();
    let sequences = [cache.create(), cache.create(), cache.create()];
    for n in 0..64 {
        // They grow in turns, as in a batch.
        for id in sequences {
            cache.reserve(id, PAGE).unwrap();
            write(&mut cache, id, n * PAGE, &[n as u32; PAGE]);
            cache.commit(id, PAGE);
        }
    }
    let mut breaks = 0;
    for id in sequences {
        for (layer, head) in (0..4).flat_map(|layer| [(layer, 0), (layer, 1)]) {
            let first = cache.first_position(layer, id) / PAGE;
            for n in first..63 {
                let (this, next) = (n, n + 1);
                let this = cache.slot_range(layer, id, this, head);
                let next = cache.slot_range(layer, id, next, head);
                breaks += usize::from(this.end != next.start);
            }
        }
        let tokens: Vec<u32> = (0..64 * PAGE).map(|at| (at / PAGE) as u32).collect();
        check(&cache, id, &tokens);
    }
    // Runs of 32 pages: of 64 full-attention pages one follows another elsewhere, for each head.
    assert_eq!(breaks, 3 * 2 * 2);
    cache.validate().unwrap();
}

/// Sequences that come and go leave gaps in every piece of memory: taking capacity away moves the
/// pages that stay together, and everything that is left reads as before.
#[test]
fn pages_move_together_when_capacity_is_taken_away() {
    let groups: [(&[usize], _); 2] = [(&[0], Some(40)), (&[1, 2, 3], None)];
    let page = PAGE * BYTES * HEADS * 3;
    let mut seeded = Seeded::new(7);
    for capacity in [64 * page, 333 * page, 1500 * page] {
        let cache = KvCache::new(shape(&groups), capacity).unwrap();
        let mut run = Run { cache, plain: Vec::new(), seeded: Seeded::new(3), refused: 0 };
        let (mut moved, mut limit) = (0, capacity);
        for round in 0..60 {
            for _ in 0..1 + seeded.below(60) {
                run.step();
            }
            if round % 3 == 0 {
                while run.plain.len() > 2 && seeded.chance(0.8) {
                    let (id, _) = run.plain.swap_remove(seeded.below(run.plain.len()));
                    run.cache.remove(id);
                }
                limit = if seeded.chance(0.3) { capacity } else { seeded.below(capacity) };
            }
            let used: usize = (0..2)
                .map(|group| run.cache.pages(group))
                .map(|pages| pages.in_use * pages.page_bytes)
                .sum();
            let resident = run.cache.set_capacity(limit).unwrap();
            assert_eq!(resident, run.cache.bytes_resident());
            assert!(resident >= used && (0.0..=1.0).contains(&run.cache.fragmentation()));
            // What is over the limit is in use, but for less than a piece (of 32 extents at most;
            // the pages of the first group share extents by threes).
            let extents = run.cache.pages(0).in_use + run.cache.pages(1).in_use;
            assert!(resident <= limit.max((extents + 32) * page), "{resident} of {limit}");
            run.cache.validate().unwrap_or_else(|error| panic!("round {round}: {error}"));
            run.plain.iter().for_each(|(id, tokens)| check(&run.cache, *id, tokens));
            moved = run.cache.stats().moved_pages;
        }
        let bytes = run.cache.stats().moved_bytes as usize;
        let extents = bytes / page;
        assert!(bytes.is_multiple_of(page) && extents <= moved as usize);
        assert!(moved as usize <= 3 * extents, "{moved} pages in {extents} extents");
        assert!(moved > 0 || capacity == 64 * page, "{capacity}: nothing had to move");
    }
}

#[test]
fn a_sequence_can_get_as_long_as_it_is_told() {
    let both: &[(&[usize], Option<usize>)] = &[(&[0, 2, 4], Some(40)), (&[1, 3], None)];
    for groups in [both, &[(&[0], None)], &[(&[0, 1], Some(20)), (&[2], Some(70))]] {
        for pages in [1, 2, 9, 40, 151] {
            for rows in [1, 16, 50] {
                let page = 3 * HEADS * PAGE * BYTES.next_multiple_of(64);
                let mut cache = KvCache::new(shape(groups), pages * page).unwrap();
                let longest = cache.longest(rows).min(5_000);
                let id = cache.create();
                if longest > 0 {
                    cache.can_hold(&[(id, longest)], rows).unwrap();
                }
                let mut len = 0;
                while len < longest {
                    let n = rows.min(longest - len);
                    cache.reserve(id, n).unwrap_or_else(|error| panic!("at {len}: {error}"));
                    cache.commit(id, n);
                    len += n;
                }
                cache.remove(id);
                // So can one whose prompt ends within a page, which the tree keeps as it is.
                let (id, mut len) = (cache.create(), 0);
                while len + 1 < longest {
                    let n = rows.min(longest - 1 - len);
                    cache.reserve(id, n).unwrap_or_else(|error| panic!("at {len}: {error}"));
                    cache.commit_tokens(id, (len..len + n).map(|token| token as u32));
                    len += n;
                }
                cache.mark(id);
                if longest > 0 {
                    cache.reserve(id, 1).unwrap_or_else(|error| panic!("after a mark: {error}"));
                }
                let is_bounded = groups.iter().any(|(_, window)| window.is_none());
                assert_eq!(cache.longest(rows) < usize::MAX, is_bounded || longest < 5_000);
                assert!(longest > 0 || pages < 20, "{groups:?}, {pages} pages, {rows} rows");
            }
        }
    }
}
