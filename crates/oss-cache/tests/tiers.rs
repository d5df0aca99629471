//! Pages that leave memory come back bit for bit, or count as never computed.

use std::path::Path;
use std::time::{Duration, Instant};

use oss_cache::{ColdOptions, Error, EvictionPolicy, Group, KvCache, Options};
use oss_testing::Seeded;
use plain::{BYTES, PAGE, Run, WINDOWED, adopt, check, compute, draft, shape};

#[path = "support/plain.rs"]
mod plain;

const PAGE_BYTES: usize = PAGE * BYTES;

fn cold(path: &Path, slots: usize) -> ColdOptions {
    let bytes = 4096 + slots as u64 * (PAGE_BYTES as u64 + 4096);
    ColdOptions { path: path.to_path_buf(), bytes, queue: 2_000, content_key: 7 }
}

fn options(pages: usize, warm_pages: usize, cold: Option<ColdOptions>) -> Options {
    let (capacity_bytes, warm_bytes) = (pages * PAGE_BYTES, warm_pages * PAGE_BYTES);
    Options { capacity_bytes, warm_bytes, cold, ..Options::default() }
}

fn open(options: &Options) -> KvCache {
    KvCache::with_options(shape(WINDOWED), options).expect("a sound shape and file")
}

fn tokens(kind: u32, n: u32) -> Vec<u32> {
    (0..n).map(|index| kind * 1000 + index).collect()
}

/// Computes the tokens in a sequence of their own and lets it go.
fn visit(cache: &mut KvCache, tokens: &[u32]) -> usize {
    let (id, len) = adopt(cache, tokens);
    compute(cache, id, tokens).expect("room for one sequence");
    check(cache, id, tokens);
    cache.remove(id);
    cache.validate().expect("books in order");
    len
}

#[test]
fn pages_pushed_out_of_memory_come_back_from_the_compressed_ones() {
    let mut cache = open(&options(80, 80, None));
    for kind in 0..4 {
        assert_eq!(visit(&mut cache, &tokens(kind, 100)), 0);
    }
    cache.persist().unwrap(); // waits for what is being compressed
    let stats = cache.stats();
    assert!(stats.compressed_pages > 20 && stats.incompressible_pages == 0, "{stats:?}");
    assert!(cache.warm_bytes() > 0);
    for kind in 0..4 {
        let before = cache.stats();
        assert_eq!(visit(&mut cache, &tokens(kind, 100)), 100, "prompt {kind}");
        let after = cache.stats();
        let found = after.hot_hits + after.warm_hits - before.hot_hits - before.warm_hits;
        assert_eq!(found as usize, cache.pages_to_resume(100), "each page once");
    }
    let stats = cache.stats();
    assert!(stats.warm_hits > 20, "{stats:?}");
    let pages = [stats.compressed_pages, stats.warm_hits].map(|pages| pages * PAGE_BYTES as u64);
    assert_eq!([stats.compressed_bytes, stats.restored_bytes], pages);
}

#[test]
fn a_forks_last_page_is_known_among_any_number_of_others() {
    let directory = tempfile::tempdir().unwrap();
    let cold = cold(&directory.path().join("cold"), 2_000);
    let mut cache = open(&options(2_000, 0, Some(cold)));
    let start = tokens(0, PAGE as u32 - 1);
    let (id, _) = adopt(&mut cache, &start);
    compute(&mut cache, id, &start).unwrap();
    cache.mark(id);
    let fork = cache.fork(id).unwrap();
    cache.remove(id);
    // More than are compared with the fork's tokens when it is let go.
    for kind in 1..=300 {
        visit(&mut cache, &tokens(kind, PAGE as u32));
    }
    check(&cache, fork, &start);
    cache.remove(fork);
    cache.validate().unwrap();
    assert_eq!(visit(&mut cache, &tokens(300, PAGE as u32)), PAGE);
}

#[test]
fn pages_pushed_out_of_memory_come_back_from_the_file() {
    let directory = tempfile::tempdir().unwrap();
    let cold = cold(&directory.path().join("cold"), 400);
    let mut cache = open(&options(80, 0, Some(cold)));
    for round in 0..2 {
        for kind in 0..6 {
            let expected = if round == 0 { 0 } else { 100 };
            assert_eq!(visit(&mut cache, &tokens(kind, 100)), expected, "prompt {kind}");
        }
    }
    let stats = cache.stats();
    assert!(stats.cold_hits > 50 && stats.cold.bad_slots == 0, "{stats:?}");
}

#[test]
fn a_new_process_finds_what_the_last_one_computed() {
    finds_what_the_last_process_computed(2_000);
}

#[test]
fn persisting_waits_for_a_short_queue_before_each_page() {
    finds_what_the_last_process_computed(1);
}

fn finds_what_the_last_process_computed(queue: usize) {
    let directory = tempfile::tempdir().unwrap();
    let cold = ColdOptions { queue, ..cold(&directory.path().join("cold"), 400) };
    let options = options(200, 0, Some(cold));
    let mut cache = open(&options);
    for kind in 0..3 {
        visit(&mut cache, &tokens(kind, 90 + kind));
    }
    cache.persist().unwrap();
    let written = cache.cold_pages();
    drop(cache);
    let mut cache = open(&options);
    assert_eq!(cache.cold_pages(), written);
    cache.validate().unwrap();
    for kind in 0..3 {
        let tokens = tokens(kind, 90 + kind);
        assert_eq!(cache.lookup(&tokens).len(), tokens.len(), "to the last token");
        assert_eq!(visit(&mut cache, &tokens), tokens.len());
    }
    assert!(cache.stats().cold_hits > 60, "{:?}", cache.stats());
}

/// One group of layers that need every position: any prefix is enough to go on from.
const FULL: &[(&[usize], Option<usize>)] = &[(&[0], None)];

#[test]
fn no_page_is_lost_to_a_short_queue_when_many_leave_memory_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let cold = ColdOptions { queue: 1, ..cold(&directory.path().join("cold"), 400) };
    // Each prompt has 25 pages, and is reserved as a whole.
    let mut cache = KvCache::with_options(shape(FULL), &options(30, 0, Some(cold))).unwrap();
    for round in 0..2 {
        for kind in 0..6 {
            let expected = if round == 0 { 0 } else { 100 };
            assert_eq!(visit(&mut cache, &tokens(kind, 100)), expected, "prompt {kind}");
        }
    }
    let stats = cache.stats();
    assert!(stats.evicted_pages > 100 && stats.cold_hits > 100, "{stats:?}");
}

#[test]
fn pages_that_find_no_room_in_the_queue_when_they_are_complete_are_written_later() {
    let directory = tempfile::tempdir().unwrap();
    let cold = ColdOptions { queue: 2, ..cold(&directory.path().join("cold"), 400) };
    let options = options(60, 0, Some(cold));
    let open = || KvCache::with_options(shape(FULL), &options).unwrap();
    let mut cache = open();
    // Complete at once, and nobody has to go.
    let prompt = tokens(0, 40 * PAGE as u32);
    let id = cache.create();
    compute(&mut cache, id, &prompt).unwrap();
    while cache.wait_for_tiers() {
        cache.poll();
        cache.validate().unwrap();
    }
    assert_eq!((cache.cold_pages(), cache.stats().cold.dropped_writes), (40, 0));
    // As a process that is killed: nothing is made durable in the end.
    drop(cache);
    assert_eq!(open().lookup(&prompt).len(), prompt.len());
}

/// A cache with room for a prompt of 25 pages in memory and for three in its file.
fn three_in_the_file(queue: usize) -> (KvCache, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let file = cold(&directory.path().join("cold"), 0);
    let cold = ColdOptions { bytes: 76 * 4096, queue, ..file };
    let cache = KvCache::with_options(shape(FULL), &options(30, 0, Some(cold))).unwrap();
    (cache, directory)
}

#[test]
fn a_prompt_that_comes_back_from_a_full_file_is_not_in_its_own_way() {
    // Hardly any page is written before it leaves memory: the fourth prompt makes room for the
    // first one, and wants its place in the file.
    let (mut cache, _directory) = three_in_the_file(1);
    (0..4).for_each(|kind| assert_eq!(visit(&mut cache, &tokens(kind, 100)), 0));
    assert!(visit(&mut cache, &tokens(0, 100)) > 50);
    assert!(cache.stats().cold.evicted_pages > 0, "{:?}", cache.stats());
}

#[test]
fn a_prompt_that_is_on_its_way_from_a_full_file_does_not_leave_it() {
    let (mut cache, _directory) = three_in_the_file(100);
    for kind in 0..3 {
        visit(&mut cache, &tokens(kind, 100));
        cache.persist().unwrap(); // waits for what is being written
    }
    let prompt = tokens(0, 100);
    let found = cache.lookup(&prompt);
    assert_eq!((found.len(), cache.prefetch(&found)), (100, 25));
    visit(&mut cache, &tokens(3, 100));
    assert!(cache.stats().cold.evicted_pages > 0, "{:?}", cache.stats());
    assert_eq!(visit(&mut cache, &prompt), 100);
}

#[test]
fn a_file_smaller_than_memory_keeps_the_newest_prompts_whole() {
    for queue in [2_000, 1] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("cold");
        // 40 slots; each prompt has seventeen pages that are worth keeping.
        let file = ColdOptions { bytes: 41 * 4096, queue, ..cold(&path, 0) };
        let options = options(400, 0, Some(file));
        let mut cache = open(&options);
        for kind in 0..8 {
            visit(&mut cache, &tokens(kind, 60));
        }
        cache.persist().unwrap();
        cache.validate().unwrap();
        drop(cache);
        let cache = open(&options);
        let found = [6, 7].map(|kind| cache.lookup(&tokens(kind, 60)).len());
        assert_eq!(found, [60; 2], "with a queue of {queue}");
    }
}

#[test]
fn a_prompt_longer_than_the_file_keeps_its_beginning() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("cold");
    let file = ColdOptions { bytes: 21 * 4096, ..cold(&path, 0) };
    let options = options(42, 0, Some(file));
    let open = || KvCache::with_options(shape(FULL), &options).unwrap();
    let mut cache = open();
    // Its 40 pages are twice what the file holds.
    let long = tokens(0, 160);
    visit(&mut cache, &long);
    // Two of them leave memory, the last ones, and some the file.
    visit(&mut cache, &tokens(1, 16));
    assert_eq!(visit(&mut cache, &long), 38 * PAGE);
    cache.persist().unwrap();
    cache.validate().unwrap();
    let stats = cache.stats();
    assert!(stats.cold.dropped_writes >= 20, "{stats:?}");
    drop(cache);
    let found = open().lookup(&long).len();
    assert_eq!(found, 20 * PAGE, "as many positions as the file has room for");
}

#[test]
fn ends_of_prompts_after_one_block_are_found_each_by_its_tokens() {
    let directory = tempfile::tempdir().unwrap();
    let options = options(400, 0, Some(cold(&directory.path().join("cold"), 400)));
    let ending = |kind: u32| [tokens(9, PAGE as u32), vec![kind, kind + 1]].concat();
    let mut cache = open(&options);
    (0..40).for_each(|kind| assert!(visit(&mut cache, &ending(kind)) <= PAGE));
    cache.persist().unwrap();
    drop(cache);
    let mut cache = open(&options);
    cache.validate().unwrap();
    (0..40).for_each(|kind| assert_eq!(visit(&mut cache, &ending(kind)), PAGE + 2, "{kind}"));
    assert_eq!(cache.stats().inserted_blocks, 0);
}

#[test]
fn a_file_that_must_not_be_believed_is_emptied_and_the_cache_goes_on_without() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("cold");
    let options = options(80, 0, Some(cold(&path, 400)));
    let mut cache = open(&options);
    // The first three prompts are in the file, the others may still be on their way to it.
    (0..3).for_each(|kind| assert_eq!(visit(&mut cache, &tokens(kind, 100)), 0));
    cache.persist().unwrap();
    (3..6).for_each(|kind| assert_eq!(visit(&mut cache, &tokens(kind, 100)), 0));
    assert!(cache.cold_pages() > 100, "{}", cache.cold_pages());
    cache.discard_file().unwrap();
    cache.validate().unwrap();
    let len = || path.metadata().unwrap().len();
    assert_eq!((cache.cold_pages(), len()), (0, 0));
    assert!(cache.stats().cold.written_pages > 0, "what was done stays counted");
    for kind in 0..6 {
        visit_loosely(&mut cache, &tokens(kind, 100));
    }
    cache.persist().unwrap();
    drop(cache);
    assert_eq!(len(), 0);
    let cache = open(&options);
    assert_eq!((cache.cold_pages(), cache.stats().cold.foreign), (0, 0));
    assert!((0..6).all(|kind| cache.lookup(&tokens(kind, 100)).is_empty()));
}

#[test]
fn each_file_has_a_seed_of_its_own_and_keeps_it() {
    let directory = tempfile::tempdir().unwrap();
    let seed = |name: &str| {
        let path = directory.path().join(name);
        visit(&mut open(&options(60, 0, Some(cold(&path, 60)))), &tokens(0, 8));
        std::fs::read(&path).unwrap()[24..32].to_vec()
    };
    let (one, other) = (seed("one"), seed("other"));
    assert_ne!(one, other);
    assert_eq!(seed("one"), one);
}

#[test]
fn a_draft_is_not_written_before_it_is_accepted() {
    let directory = tempfile::tempdir().unwrap();
    let cold = cold(&directory.path().join("cold"), 400);
    let mut cache = open(&options(80, 0, Some(cold)));
    let id = cache.create();
    let written = |cache: &mut KvCache| {
        cache.persist().unwrap();
        cache.cold_pages()
    };
    compute(&mut cache, id, &tokens(0, 6)).unwrap();
    assert_eq!(written(&mut cache), 1);
    draft(&mut cache, id, &tokens(0, 13)).unwrap();
    assert_eq!(written(&mut cache), 1, "of three complete pages");
    assert_eq!(cache.truncate(id, 9).unwrap(), 9);
    cache.accept_drafts(id);
    assert_eq!(written(&mut cache), 2, "of two");
}

#[test]
fn a_new_process_goes_on_where_sequences_have_parted() {
    let directory = tempfile::tempdir().unwrap();
    let options = options(400, 0, Some(cold(&directory.path().join("cold"), 400)));
    let ending = |kind: u32| {
        let mut shared = tokens(9, 101);
        shared.extend(tokens(kind, 60));
        shared
    };
    let mut cache = open(&options);
    assert_eq!(visit(&mut cache, &ending(0)), 0);
    assert_eq!(visit(&mut cache, &ending(1)), 101);
    cache.persist().unwrap();
    drop(cache);
    assert_eq!(visit(&mut open(&options), &ending(2)), 101);
}

#[test]
fn prefetched_pages_are_resident_when_the_sequence_comes_and_count_once() {
    let directory = tempfile::tempdir().unwrap();
    let options = options(200, 0, Some(cold(&directory.path().join("cold"), 400)));
    let mut cache = open(&options);
    let tokens = tokens(1, 120);
    visit(&mut cache, &tokens);
    drop(cache); // the queue is written before the thread ends
    let mut cache = open(&options);
    let found = cache.lookup(&tokens);
    assert_eq!(found.len(), 120);
    let mut expected = cache.prefetch(&found);
    assert!(expected > 30, "{expected}");
    while expected > 0 {
        std::thread::yield_now();
        cache.poll();
        cache.validate().unwrap();
        expected = cache.prefetch(&found);
    }
    let stats = cache.stats();
    let ahead = stats.prefetched_pages;
    assert!(ahead > 30, "{stats:?}");
    assert_eq!((stats.hot_hits, stats.cold_hits), (0, 0), "nobody has taken them over");
    for round in 0..2 {
        assert_eq!(visit(&mut cache, &tokens), 120);
        let stats = cache.stats();
        assert_eq!((stats.hot_hits, stats.cold_hits), (round * ahead, ahead), "{stats:?}");
    }
    assert_eq!(ahead as usize, cache.pages_to_resume(120));
}

#[test]
fn a_damaged_slot_is_asked_for_once_and_forgotten() {
    let (mut cache, _directory) = after(|bytes| {
        let slot = (PAGE_BYTES + 200).next_multiple_of(4096);
        // The last byte of every payload; headers stay whole.
        bytes[4096..].chunks_mut(slot).for_each(|slot| slot[PAGE_BYTES + 64] ^= 1);
    });
    let tokens = tokens(0, 100);
    let found = cache.lookup(&tokens);
    assert_eq!(found.len(), 100);
    assert!(cache.prefetch(&found) > 20 && cache.is_fetching());
    while cache.wait_for_tiers() {
        cache.validate().unwrap();
    }
    assert!(!cache.is_fetching());
    assert_eq!((cache.lookup(&tokens).len(), cache.prefetch(&found)), (0, 0));
    assert!(cache.stats().cold.bad_slots > 20, "{:?}", cache.stats());
}

#[test]
fn pages_that_must_go_soon_go_before_they_are_in_the_way() {
    let mut cache = open(&options(80, 80, None));
    for kind in 0..8 {
        visit(&mut cache, &tokens(kind, 36));
    }
    for _ in 0..20 {
        cache.poll();
        cache.persist().unwrap(); // waits for what is being compressed
        cache.validate().unwrap();
    }
    // A sixteenth of 80.
    assert!(cache.pages(0).available >= 5, "{:?}", cache.pages(0));
    assert!(cache.stats().compressed_pages > 0, "{:?}", cache.stats());
    assert_eq!(visit(&mut cache, &tokens(0, 36)), 36);
}

#[test]
fn kept_windows_of_a_prompt_in_use_go_one_by_one_and_are_compressed() {
    let mut cache = open(&options(50, 80, None));
    let tokens = tokens(0, 112);
    let id = cache.create();
    compute(&mut cache, id, &tokens[..100]).unwrap();
    let ends = || (8..=96).step_by(8);
    ends().for_each(|end| cache.mark_at(id, end));
    // Each block of four tokens takes two pages, and there are none left.
    compute(&mut cache, id, &tokens).unwrap();
    cache.validate().unwrap();
    let stats = cache.stats();
    assert_eq!((stats.thinned_pages, stats.evicted_pages), (6, 0), "{stats:?}");
    cache.persist().unwrap(); // waits for what is being compressed
    assert_eq!(cache.stats().compressed_pages, 6);
    assert!(ends().all(|end| cache.lookup(&tokens[..end]).len() == end));
}

#[test]
fn fewer_compressed_pages_can_be_asked_for_at_any_time() {
    let directory = tempfile::tempdir().unwrap();
    let cold = ColdOptions { queue: 1, ..cold(&directory.path().join("cold"), 400) };
    let mut cache = open(&options(80, 80, Some(cold)));
    for kind in 0..4 {
        visit(&mut cache, &tokens(kind, 100));
    }
    cache.persist().unwrap();
    let before = cache.warm_bytes();
    cache.set_warm_limit(before / 2);
    cache.validate().unwrap();
    assert!(cache.warm_bytes() <= before / 2 && cache.warm_bytes() > 0);
    cache.set_warm_limit(0);
    cache.validate().unwrap();
    assert_eq!(cache.warm_bytes(), 0);
    for kind in 0..4 {
        visit_loosely(&mut cache, &tokens(kind, 100));
    }
}

#[test]
fn random_operations_agree_with_a_plain_vector_in_all_tiers_under_every_policy() {
    for policy in EvictionPolicy::ALL {
        random_operations(policy);
    }
}

fn random_operations(policy: EvictionPolicy) {
    let directory = tempfile::tempdir().unwrap();
    let (mut total, mut gone) = ((0, 0), (0, 0));
    for (seed, warm_pages) in [(1, 0), (2, 40), (3, 4)] {
        let path = directory.path().join(format!("cold{seed}"));
        let cold = ColdOptions { queue: 24, ..cold(&path, 150) };
        let cache = open(&Options { policy, ..options(60, warm_pages, Some(cold)) });
        let seeded = Seeded::new(seed);
        let mut run = Run { cache, plain: Vec::new(), seeded, reused: 0, refused: 0 };
        for step in 0..1_500 {
            run.step();
            if step % 7 == 0 {
                run.cache.poll();
            }
            run.cache.validate().unwrap_or_else(|error| panic!("step {step}: {error}"));
            for (id, tokens) in &run.plain {
                check(&run.cache, *id, tokens);
            }
        }
        let stats = run.cache.stats();
        total = (total.0 + stats.warm_hits, total.1 + stats.cold_hits);
        gone = (gone.0 + stats.warm_evicted_pages, gone.1 + stats.cold.evicted_pages);
        assert_eq!(stats.cold.bad_slots, 0);
    }
    assert!(total.0 > 20 && total.1 > 100, "{policy}: warm and cold hits: {total:?}");
    assert!(gone.0 > 100 && gone.1 > 100, "{policy}: pages that lower tiers gave up: {gone:?}");
}

/// A file written by one cache, damaged by `damage`, and what the next cache makes of it.
fn after(damage: impl Fn(&mut Vec<u8>)) -> (KvCache, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("cold");
    let options = options(200, 0, Some(cold(&path, 400)));
    let mut cache = open(&options);
    for kind in 0..3 {
        visit(&mut cache, &tokens(kind, 100));
    }
    drop(cache);
    let mut bytes = std::fs::read(&path).unwrap();
    damage(&mut bytes);
    std::fs::write(&path, bytes).unwrap();
    (open(&options), directory)
}

/// Whatever is found is right; returns how much that was.
fn found(cache: &mut KvCache) -> usize {
    cache.validate().expect("books in order");
    (0..3).map(|kind| visit_loosely(cache, &tokens(kind, 100))).sum()
}

/// As [`visit`], for files that may disappoint: less may come than was promised.
fn visit_loosely(cache: &mut KvCache, tokens: &[u32]) -> usize {
    let found = cache.lookup(tokens);
    let id = cache.create();
    let len = cache.adopt(id, &found, usize::MAX).expect("a living sequence");
    assert!(len <= found.len());
    check(cache, id, &tokens[..len]);
    compute(cache, id, tokens).expect("room for one sequence");
    check(cache, id, tokens);
    cache.remove(id);
    cache.validate().expect("books in order");
    len
}

#[test]
fn flipped_bytes_are_misses_and_counted() {
    let (mut bad, mut right) = (0, 0);
    for seed in 0..12 {
        let (mut cache, _directory) = after(|bytes| {
            let mut seeded = Seeded::new(seed);
            for _ in 0..1 + seed {
                let at = 4096 + seeded.below(bytes.len() - 4096);
                bytes[at] ^= 1 << seeded.below(8);
            }
        });
        right += found(&mut cache);
        bad += cache.stats().cold.bad_slots;
    }
    assert!(bad > 12, "damaged slots that were noticed: {bad}");
    assert!(right > 12 * 50, "the others are still good: {right}");
}

#[test]
fn torn_slots_are_misses() {
    let (mut whole, _directory) = after(|_| {});
    assert_eq!((found(&mut whole), whole.stats().cold.bad_slots), (300, 0));
    // The beginning of a slot is what another slot holds, as after a crash in the middle of a
    // write: a part of the header, which has 88 bytes, all of it, or some of the page too.
    for (seed, cut) in [24, 64, 80, 88, 89, 700, PAGE_BYTES].into_iter().enumerate() {
        let (mut cache, _directory) = after(|bytes| {
            let mut seeded = Seeded::new(seed as u64);
            let slot = (PAGE_BYTES + 200).next_multiple_of(4096);
            let third = (bytes.len() - 4096) / slot / 3;
            // The first prompt loses a page. Where the header is whole, two slots say that they
            // hold one page of another prompt, and the earlier one is believed.
            let (to, from) = (seeded.below(third), 3 * third - 1 - seeded.below(third));
            let source = bytes[4096 + from * slot..][..cut].to_vec();
            bytes[4096 + to * slot..][..cut].copy_from_slice(&source);
        });
        let found = found(&mut cache);
        let bad = cache.stats().cold.bad_slots;
        assert!(bad > 0 && found < 300, "{cut} bytes: {bad} bad slots, {found} positions found");
    }
}

#[test]
fn a_truncated_file_serves_what_is_left_of_it() {
    let mut lengths = Vec::new();
    for part in [0, 1, 5, 9] {
        let (mut cache, _directory) = after(|bytes| bytes.truncate(bytes.len() * part / 10));
        lengths.push(found(&mut cache));
    }
    assert_eq!(lengths[0], 0);
    assert!(lengths[1] < lengths[3] && lengths[3] > 100, "{lengths:?}");
}

#[test]
fn a_file_of_another_model_counts_as_empty() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("cold");
    let first = options(200, 0, Some(cold(&path, 400)));
    visit(&mut open(&first), &tokens(0, 100));
    let key = ColdOptions { content_key: 8, ..cold(&path, 400) };
    let cache = open(&options(200, 0, Some(key)));
    assert!(cache.lookup(&tokens(0, 100)).is_empty());
    assert_eq!((cache.stats().cold.foreign, cache.cold_pages()), (1, 0));
    drop(cache);
    std::fs::write(&path, b"somebody's diary").unwrap();
    let cache = open(&first);
    assert_eq!((cache.stats().cold.foreign, cache.cold_pages()), (1, 0));
    drop(cache);
    // A different window makes different pages, whatever the key says.
    visit(&mut open(&first), &tokens(0, 100));
    let mut other = shape(WINDOWED);
    other.groups[0] = Group { layers: vec![0], window: Some(12) };
    let cache = KvCache::with_options(other, &first).unwrap();
    assert_eq!(cache.stats().cold.foreign, 1);
}

#[test]
fn a_file_in_use_and_a_missing_directory_are_clear_errors() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("cold");
    let first = options(200, 0, Some(cold(&path, 400)));
    let _cache = open(&first);
    let begin = Instant::now();
    let error = KvCache::with_options(shape(WINDOWED), &first).unwrap_err();
    assert!(matches!(error, Error::InUse { .. }), "{error}");
    // Somebody may only have looked whether it is in use.
    assert!(begin.elapsed() >= Duration::from_millis(100), "{:?}", begin.elapsed());
    let nowhere = options(200, 0, Some(cold(&directory.path().join("no/where"), 400)));
    let error = KvCache::with_options(shape(WINDOWED), &nowhere).unwrap_err();
    assert!(error.to_string().contains("no/where"), "{error}");
    let tiny = ColdOptions { bytes: 100, ..cold(&directory.path().join("tiny"), 1) };
    let error = KvCache::with_options(shape(WINDOWED), &options(9, 0, Some(tiny))).unwrap_err();
    assert!(matches!(error, Error::ColdCapacity { got: 100, .. }), "{error}");
}

#[test]
fn the_policy_decides_which_resident_pages_go() {
    // Room for two prompts, and no other tier.
    for (policy, expected) in [(EvictionPolicy::Lru, 0), (EvictionPolicy::Lfu, 60)] {
        let mut cache = open(&Options { policy, ..options(60, 0, None) });
        let lens = [0, 0, 0, 1, 2, 0].map(|kind| visit(&mut cache, &tokens(kind, 60)));
        assert_eq!(lens, [0, 60, 60, 0, 0, expected], "{policy}");
        assert!(cache.stats().evicted_pages > 0, "{policy}: {:?}", cache.stats());
    }
}

#[test]
fn the_policy_decides_what_the_file_gives_up() {
    for (policy, expected) in [(EvictionPolicy::Lru, 0), (EvictionPolicy::Lfu, 60)] {
        let directory = tempfile::tempdir().unwrap();
        // 60 slots: three prompts and a half.
        let file = ColdOptions { bytes: 61 * 4096, ..cold(&directory.path().join("cold"), 0) };
        let options = Options { policy, ..options(60, 0, Some(file)) };
        let mut cache = open(&options);
        for kind in [0, 0, 0, 1, 2, 3, 4] {
            visit(&mut cache, &tokens(kind, 60));
            cache.persist().unwrap();
        }
        drop(cache);
        // Only the file is left.
        let mut cache = open(&options);
        assert_eq!(cache.lookup(&tokens(0, 60)).len(), expected, "{policy}");
        assert_eq!(cache.lookup(&tokens(4, 60)).len(), 60, "{policy}");
        // What is known of uses went with the process: the file's order is what there is.
        for kind in [5, 6, 7] {
            visit(&mut cache, &tokens(kind, 60));
            cache.persist().unwrap();
        }
        drop(cache);
        assert!(open(&options).lookup(&tokens(0, 60)).is_empty(), "{policy}");
    }
}

#[test]
fn the_policy_decides_which_compressed_pages_go() {
    for (policy, expected) in [(EvictionPolicy::Lru, 0), (EvictionPolicy::Lfu, 60)] {
        let mut cache = open(&Options { policy, ..options(60, 30, None) });
        let mut visit = |kind, n| {
            let len = visit(&mut cache, &tokens(kind, n));
            cache.persist().unwrap(); // waits for what is being compressed
            len
        };
        assert_eq!([0; 3].map(|kind| visit(kind, 60)), [0, 60, 60]);
        // A prompt that leaves no room for others pushes the first one out of memory.
        visit(9, 112);
        (1..6).for_each(|kind| assert_eq!(visit(kind, 60), 0));
        assert_eq!(visit(0, 60), expected, "{policy}");
        let stats = cache.stats();
        assert!(stats.warm_evicted_pages > 20, "{policy}: {stats:?}");
        assert_eq!(stats.warm_hits > 10, expected > 0, "{policy}: {stats:?}");
    }
}

#[test]
fn a_large_compressed_tier_is_given_up_on_a_small_stack() {
    let mut cache = open(&options(80, 20_000, None));
    for kind in 0..300 {
        visit(&mut cache, &tokens(kind, 100));
    }
    cache.persist().unwrap();
    assert!(cache.stats().compressed_pages > 5_000, "{:?}", cache.stats());
    let give_up = move || {
        cache.set_warm_limit(0);
        cache.validate().unwrap();
        assert_eq!(cache.warm_bytes(), 0);
    };
    std::thread::Builder::new().stack_size(128 << 10).spawn(give_up).unwrap().join().unwrap();
}

#[test]
fn a_full_file_gives_up_whole_chains_the_oldest_first_also_after_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let options = options(60, 0, Some(cold(&directory.path().join("cold"), 60)));
    let mut cache = open(&options);
    for kind in 0..8 {
        visit(&mut cache, &tokens(kind, 60));
        cache.persist().unwrap();
    }
    drop(cache);
    let mut cache = open(&options);
    let whole = |cache: &KvCache, kind| cache.lookup(&tokens(kind, 60)).len() == 60;
    // Seventeen pages each.
    assert!((5..8).all(|kind| whole(&cache, kind)));
    visit(&mut cache, &tokens(8, 60));
    cache.persist().unwrap();
    drop(cache);
    let cache = open(&options);
    assert!((6..9).all(|kind| whole(&cache, kind)));
}

#[test]
fn what_was_used_last_before_a_restart_goes_last_after_it() {
    let directory = tempfile::tempdir().unwrap();
    // Hardly anything is written before the end, which writes what was used last first.
    let file =
        ColdOptions { queue: 1, bytes: 21 * 4096, ..cold(&directory.path().join("cold"), 0) };
    let options = options(60, 0, Some(file));
    let open = || KvCache::with_options(shape(FULL), &options).unwrap();
    let mut cache = open();
    for kind in 0..2 {
        assert_eq!(visit(&mut cache, &tokens(kind, 40)), 0);
    }
    cache.persist().unwrap();
    drop(cache);
    let mut cache = open();
    visit(&mut cache, &tokens(2, 40));
    cache.persist().unwrap();
    drop(cache);
    let found = [0, 1, 2].map(|kind| open().lookup(&tokens(kind, 40)).len());
    assert_eq!(found, [0, 40, 40]);
}

#[test]
fn a_file_may_be_as_long_as_there_are_numbers_and_is_cut_where_it_may_be_shorter() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("cold");
    let limited = |slots: Option<usize>| {
        let file = cold(&path, slots.unwrap_or(0));
        let bytes = if slots.is_some() { file.bytes } else { u64::MAX };
        options(60, 0, Some(ColdOptions { bytes, ..file }))
    };
    let mut cache = open(&limited(None));
    visit(&mut cache, &tokens(0, 60));
    cache.persist().unwrap();
    drop(cache);
    let long = std::fs::metadata(&path).unwrap().len();
    let short = limited(Some(5));
    drop(open(&short));
    let cut = std::fs::metadata(&path).unwrap().len();
    assert!(cut < long && cut <= short.cold.unwrap().bytes, "{long} to {cut} bytes");
}
