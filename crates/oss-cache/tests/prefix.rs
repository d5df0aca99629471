//! The prefix tree against plain vectors of tokens: what a sequence takes over is what it would
//! have computed, and pages are given up in the promised order.

use oss_cache::{Error, EvictionPolicy, KvCache, Match, Options};
use oss_testing::Seeded;
use plain::{BYTES, PAGE, Run, WINDOWED, adopt, check, compute, draft, shape};

#[path = "support/plain.rs"]
mod plain;

fn drive(
    groups: &[(&[usize], Option<usize>)],
    policy: EvictionPolicy,
    seed: u64,
) -> (usize, usize) {
    let options = Options { capacity_bytes: 120 * 5 * PAGE * BYTES, policy, ..Options::default() };
    let cache = KvCache::with_options(shape(groups), &options).expect("a sound shape");
    let seeded = Seeded::new(seed);
    let mut run = Run { cache, plain: Vec::new(), seeded, reused: 0, refused: 0 };
    for step in 0..1_200 {
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
        for policy in EvictionPolicy::ALL {
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
    assert_eq!(cache.first_position(0, id), 68);
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
fn a_message_that_ended_within_a_prompt_is_gone_on_from_when_windows_have_thinned() {
    for is_marked in [true, false] {
        // 45 blocks in two groups make 90 pages; there is room for 70.
        let mut cache = KvCache::new(shape(WINDOWED), 70 * PAGE * BYTES).unwrap();
        let tokens: Vec<u32> = (0..100).collect();
        let id = cache.create();
        compute(&mut cache, id, &tokens).unwrap();
        if is_marked {
            cache.mark_at(id, 50);
        }
        cache.remove(id);
        let id = cache.create();
        compute(&mut cache, id, &(1000..1080).collect::<Vec<u32>>()).unwrap();
        let stats = cache.stats();
        assert!(stats.thinned_pages > 0 && stats.evicted_pages == 0, "{stats:?}");
        let known = [40, 50, 66].map(|len| cache.lookup(&tokens[..len]).len());
        // Position 52 ends the block in which the message ended.
        assert_eq!(known, if is_marked { [0, 50, 52] } else { [0, 0, 0] });
        assert_eq!(cache.lookup(&tokens).len(), 100, "the last message's end is kept");
        cache.validate().unwrap();
    }
}

#[test]
fn drafts_are_found_once_they_are_accepted() {
    let mut cache = KvCache::new(shape(WINDOWED), 1 << 20).unwrap();
    let tokens: Vec<u32> = (0..26).collect();
    let id = cache.create();
    compute(&mut cache, id, &tokens[..18]).unwrap();
    // They complete two pages; one is right, and a token of the other.
    let drafts = [&tokens[..21], &[90, 91, 92]].concat();
    draft(&mut cache, id, &drafts).unwrap();
    check(&cache, id, &drafts);
    let (blocks, found) = (cache.blocks(), cache.lookup(&drafts).len());
    assert_eq!((blocks, found), (4, 16), "nobody knows yet");
    assert_eq!(cache.truncate(id, 21).unwrap(), 21);
    cache.accept_drafts(id);
    cache.validate().unwrap();
    assert_eq!((cache.blocks(), cache.lookup(&drafts).len()), (5, 20));
    compute(&mut cache, id, &tokens).unwrap();
    check(&cache, id, &tokens);
    assert_eq!(cache.lookup(&drafts).len(), 21);
    // Of drafts that nobody has accepted, nothing stays.
    let more: Vec<u32> = (0..32).collect();
    draft(&mut cache, id, &more).unwrap();
    cache.remove(id);
    cache.validate().unwrap();
    assert_eq!(cache.lookup(&more).len(), 26);
    assert!((0..2).all(|group| cache.pages(group).in_use == cache.pages(group).idle));
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
        cache.can_hold(&[(id, 36)], 36).unwrap();
        compute(&mut cache, id, &tokens).unwrap();
        check(&cache, id, &tokens);
        cache.remove(id);
        cache.validate().unwrap();
    }
    let id = cache.create();
    let error = cache.can_hold(&[(id, 44)], 44).unwrap_err();
    assert!(matches!(error, Error::OutOfPages { .. }), "{error}");
}
