//! The prefix tree against plain vectors of tokens: what a sequence takes over is what it would
//! have computed, and pages are given up in the promised order.

use oss_cache::{Error, Group, KvCache, Match, Options, PolicyKind, SequenceId, Shape};
use oss_testing::Seeded;

const PAGE: usize = 4;
const BYTES: usize = 16;

fn shape(groups: &[(&[usize], Option<usize>)]) -> Shape {
    let groups =
        groups.iter().map(|&(layers, window)| Group { layers: layers.to_vec(), window }).collect();
    Shape { page_tokens: PAGE, n_kv_heads: 1, head_dim: 1, slot_bytes: PAGE * BYTES, groups }
}

const WINDOWED: &[(&[usize], Option<usize>)] = &[(&[0], Some(8)), (&[1], None)];

/// Stands for the keys and values at a position: a function of all tokens up to there.
fn states(tokens: &[u32]) -> Vec<u64> {
    let mut state = 1u64;
    let mix =
        |state: u64, token: u32| (state ^ u64::from(token)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    tokens
        .iter()
        .map(|&token| {
            state = mix(state, token).rotate_left(29);
            state
        })
        .collect()
}

fn pattern(layer: usize, state: u64) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    bytes[..8].copy_from_slice(&state.to_le_bytes());
    bytes[8..].copy_from_slice(&(state ^ layer as u64).to_le_bytes());
    bytes
}

fn layers(cache: &KvCache) -> usize {
    cache.shape().groups.iter().map(|group| group.layers.len()).sum()
}

/// "Computes" the tokens from the sequence's length on.
fn compute(cache: &mut KvCache, id: SequenceId, tokens: &[u32]) -> Result<(), Error> {
    let from = cache.len(id);
    cache.reserve(id, tokens.len() - from)?;
    for (position, state) in states(tokens).into_iter().enumerate().skip(from) {
        for layer in 0..layers(cache) {
            let at =
                cache.slot_range(layer, id, position / PAGE, 0).start + position % PAGE * BYTES;
            cache.arena_mut(layer)[at..at + BYTES].copy_from_slice(&pattern(layer, state));
        }
    }
    cache.commit_tokens(id, &tokens[from..]);
    Ok(())
}

/// What the next query needs reads back as if computed.
fn check(cache: &KvCache, id: SequenceId, tokens: &[u32]) {
    assert_eq!(cache.len(id), tokens.len());
    let states = states(tokens);
    for group in &cache.shape().groups {
        let first = (tokens.len() + 1).saturating_sub(group.window.unwrap_or(usize::MAX));
        for &layer in &group.layers {
            for (position, &state) in states.iter().enumerate().skip(first) {
                let slot = cache.slot(layer, id, position / PAGE, 0);
                let got = &slot[position % PAGE * BYTES..][..BYTES];
                assert_eq!(got, pattern(layer, state), "layer {layer}, position {position}");
            }
        }
    }
}

fn adopt(cache: &mut KvCache, tokens: &[u32]) -> (SequenceId, usize) {
    let found = cache.lookup(tokens);
    let id = cache.create();
    let len = cache.adopt(id, &found, usize::MAX).expect("a living sequence");
    assert_eq!(len, found.len(), "nothing happened in between");
    (id, len)
}

struct Run {
    cache: KvCache,
    plain: Vec<(SequenceId, Vec<u32>)>,
    seeded: Seeded,
    reused: usize,
    refused: usize,
}

impl Run {
    fn tokens(&mut self, n: usize) -> Vec<u32> {
        (0..n).map(|_| u32::from(self.seeded.chance(0.12))).collect()
    }

    fn start(&mut self) {
        let n = self.seeded.below(60);
        let tokens = self.tokens(n);
        let found = self.cache.lookup(&tokens);
        assert!(found.len() <= tokens.len());
        let id = self.cache.create();
        let at_most = if self.seeded.chance(0.5) { usize::MAX } else { self.seeded.below(n + 1) };
        let len = self.cache.adopt(id, &found, at_most).expect("a living sequence");
        assert!(len <= at_most.min(found.len()));
        self.reused += len;
        check(&self.cache, id, &tokens[..len]);
        self.plain.push((id, tokens[..len].to_vec()));
        let at = self.plain.len() - 1;
        self.extend(at, &tokens[len..]);
    }

    fn extend(&mut self, at: usize, more: &[u32]) {
        let (id, tokens) = &mut self.plain[at];
        let before = tokens.len();
        tokens.extend_from_slice(more);
        match compute(&mut self.cache, *id, tokens) {
            Ok(()) => {}
            Err(Error::OutOfPages { .. }) => {
                tokens.truncate(before);
                check(&self.cache, *id, tokens);
                self.refused += 1;
                let (id, _) = self.plain.swap_remove(at);
                self.cache.remove(id);
            }
            Err(other) => panic!("{other}"),
        }
    }

    fn step(&mut self) {
        let choice = self.seeded.below(100);
        if self.plain.is_empty() || choice < 20 {
            return self.start();
        }
        let at = self.seeded.below(self.plain.len());
        let id = self.plain[at].0;
        match choice {
            20..60 => {
                let n = 1 + self.seeded.below(12);
                let more = self.tokens(n);
                self.extend(at, &more);
            }
            60..66 => {
                let child = self.cache.fork(id).expect("the parent lives");
                let tokens = self.plain[at].1.clone();
                self.plain.push((child, tokens));
            }
            66..76 => {
                let wanted = self.seeded.below(self.plain[at].1.len() + 1);
                let got = self.cache.truncate(id, wanted).expect("within the sequence");
                assert!(got <= wanted);
                self.plain[at].1.truncate(got);
            }
            76..80 => self.cache.mark(id),
            80..83 => {
                // Tokens that the cache is not told.
                if self.cache.reserve(id, 1).is_ok() {
                    self.cache.commit(id, 1);
                    let (id, _) = self.plain.swap_remove(at);
                    self.cache.remove(id);
                }
            }
            _ => {
                let (id, _) = self.plain.swap_remove(at);
                self.cache.remove(id);
            }
        }
    }
}

fn drive(groups: &[(&[usize], Option<usize>)], policy: PolicyKind, seed: u64) -> (usize, usize) {
    let options = Options { capacity_bytes: 120 * 5 * PAGE * BYTES, policy };
    let cache = KvCache::with_options(shape(groups), options).expect("a sound shape");
    let seeded = Seeded::new(seed);
    let mut run = Run { cache, plain: Vec::new(), seeded, reused: 0, refused: 0 };
    for step in 0..2_000 {
        run.step();
        run.cache.validate().unwrap_or_else(|error| panic!("step {step}: {error}"));
        let every = step % 20 == 0;
        let last = run.plain.len().saturating_sub(1);
        for (index, (id, tokens)) in run.plain.iter().enumerate() {
            if every || index == last {
                check(&run.cache, *id, tokens);
            }
        }
    }
    run.plain.drain(..).for_each(|(id, _)| run.cache.remove(id));
    run.cache.validate().expect("books in order");
    for group in 0..groups.len() {
        let pages = run.cache.pages(group);
        assert_eq!(pages.in_use, pages.idle, "only the tree owns pages now");
    }
    (run.reused, run.refused)
}

#[test]
fn random_operations_agree_with_a_plain_vector() {
    let unequal: &[(&[usize], _)] = &[(&[0, 1, 2, 3, 4], Some(10)), (&[5, 6], None)];
    let one: &[(&[usize], _)] = &[(&[0], None)];
    let windows_only: &[(&[usize], _)] = &[(&[0], Some(8))];
    let mut total = (0, 0);
    for (seed, groups) in [WINDOWED, unequal, one, windows_only].into_iter().enumerate() {
        for policy in PolicyKind::ALL {
            let (reused, refused) = drive(groups, policy, seed as u64);
            total = (total.0 + reused, total.1 + refused);
        }
    }
    assert!(total.0 > 10_000, "hardly anything was reused: {total:?}");
    assert!(total.1 > 10, "the capacity never ran out: {total:?}");
}

#[test]
fn the_same_prompt_is_found_to_its_last_token() {
    let mut cache = KvCache::new(shape(WINDOWED), 1 << 20).unwrap();
    let prompt: Vec<u32> = (0..42).collect();
    let first = cache.create();
    compute(&mut cache, first, &prompt).unwrap();
    cache.mark(first);
    let mut answered = prompt.clone();
    answered.extend(100..110);
    compute(&mut cache, first, &answered).unwrap();
    check(&cache, first, &answered);
    assert_eq!(cache.lookup(&prompt).len(), 42);
    let (second, len) = adopt(&mut cache, &prompt);
    assert_eq!(len, 42);
    check(&cache, second, &prompt);
    // The second goes its own way without touching the first.
    let mut other = prompt.clone();
    other.extend(200..220);
    compute(&mut cache, second, &other).unwrap();
    check(&cache, second, &other);
    check(&cache, first, &answered);
    cache.remove(first);
    cache.remove(second);
    assert_eq!(cache.lookup(&answered).len(), 52);
    assert_eq!(cache.lookup(&other).len(), 62);
    let mut early = prompt[..30].to_vec();
    early.push(7);
    assert_eq!(cache.lookup(&early).len(), 30, "a match may end within a block");
    cache.validate().unwrap();
}

#[test]
fn two_sequences_that_computed_the_same_keep_one_copy() {
    let mut cache = KvCache::new(shape(WINDOWED), 1 << 20).unwrap();
    let prompt: Vec<u32> = (0..40).collect();
    let (a, b) = (cache.create(), cache.create());
    compute(&mut cache, a, &prompt).unwrap();
    let alone = cache.pages(1).in_use;
    compute(&mut cache, b, &prompt).unwrap();
    assert_eq!(cache.pages(1).in_use, alone);
    assert_eq!(cache.stats().duplicate_blocks, 10);
    check(&cache, a, &prompt);
    check(&cache, b, &prompt);
}

#[test]
fn truncation_beyond_the_window_resumes_where_the_tree_has_it() {
    let mut cache = KvCache::new(shape(WINDOWED), 1 << 20).unwrap();
    let tokens: Vec<u32> = (0..80).collect();
    let id = cache.create();
    compute(&mut cache, id, &tokens).unwrap();
    assert_eq!(cache.first_position(0, id), 72);
    assert_eq!(cache.truncate(id, 33).unwrap(), 33, "window pages have passed to the tree");
    check(&cache, id, &tokens[..33]);
    compute(&mut cache, id, &tokens).unwrap();
    check(&cache, id, &tokens);
    cache.validate().unwrap();
}

#[test]
fn window_pages_thin_before_full_pages_go_and_message_ends_last() {
    // 45 blocks in two groups make 90 pages; there is room for 75.
    let mut cache = KvCache::new(shape(WINDOWED), 75 * PAGE * BYTES).unwrap();
    let tokens: Vec<u32> = (0..100).collect();
    let id = cache.create();
    compute(&mut cache, id, &tokens[..50]).unwrap();
    cache.mark(id);
    compute(&mut cache, id, &tokens).unwrap();
    cache.remove(id);
    let other: Vec<u32> = (1000..1080).collect();
    let id = cache.create();
    compute(&mut cache, id, &other).unwrap();
    let stats = cache.stats();
    assert!(stats.thinned_pages > 0 && stats.evicted_pages == 0, "{stats:?}");
    assert_eq!(cache.lookup(&tokens).len(), 100, "the last message's end is kept");
    assert_eq!(cache.lookup(&tokens[..50]).len(), 50, "and the first one's");
    assert!(cache.lookup(&tokens[..66]).len() <= 52, "between them the window is gone");
    cache.validate().unwrap();
}

#[test]
fn a_match_outlived_by_its_pages_gives_what_is_left() {
    let mut cache = KvCache::new(shape(&[(&[0], None)]), 20 * PAGE * BYTES).unwrap();
    let tokens: Vec<u32> = (0..40).collect();
    let id = cache.create();
    compute(&mut cache, id, &tokens).unwrap();
    cache.remove(id);
    let found: Match = cache.lookup(&tokens);
    assert_eq!(found.len(), 40);
    let id = cache.create();
    compute(&mut cache, id, &(100..180).collect::<Vec<u32>>()).unwrap();
    let late = cache.create();
    assert_eq!(cache.adopt(late, &found, usize::MAX).unwrap(), 0);
    assert!(cache.lookup(&tokens).is_empty());
    cache.validate().unwrap();
}

#[test]
fn pages_kept_for_reuse_do_not_stand_in_the_way() {
    let mut cache = KvCache::new(shape(WINDOWED), 20 * PAGE * BYTES).unwrap();
    for round in 0..10 {
        let tokens: Vec<u32> = (round * 100..round * 100 + 36).collect();
        let id = cache.create();
        cache.can_reserve(id, 36).unwrap();
        compute(&mut cache, id, &tokens).unwrap();
        check(&cache, id, &tokens);
        cache.remove(id);
        cache.validate().unwrap();
    }
    let id = cache.create();
    let error = cache.can_reserve(id, 44).unwrap_err();
    assert!(matches!(error, Error::OutOfPages { .. }), "{error}");
}
