//! The tier with threads that a test holds up.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Sender, channel};

use super::*;
use crate::shape::{Group, Shape};
use crate::tier::moves::Tiers;
use crate::tier::workers::PATIENCE;
use crate::{KvCache, Options};

const PAGE: usize = 4;

/// One group of layers that need every position, and room for so many pages.
fn cache(pages: usize, warm_bytes: usize, cold: ColdOptions) -> KvCache {
    let groups = vec![Group { layers: vec![0], window: None }];
    let shape = Shape { page_tokens: PAGE, n_kv_heads: 1, head_dim: 1, slot_bytes: 4096, groups };
    let capacity_bytes = pages * shape.largest_page_bytes();
    let options = Options { capacity_bytes, warm_bytes, cold: Some(cold), ..Options::default() };
    KvCache::with_options(shape, &options).expect("a sound shape and file")
}

fn cold(directory: &tempfile::TempDir, queue: usize) -> ColdOptions {
    let path = directory.path().join("cold");
    ColdOptions { path, bytes: 1 << 20, queue, content_key: 7 }
}

fn tokens(kind: u32, pages: usize) -> Vec<u32> {
    (0..(pages * PAGE) as u32).map(|index| kind * 10_000 + index).collect()
}

/// Commits so many pages of tokens in a sequence of their own and lets it go.
fn visit(cache: &mut KvCache, kind: u32, pages: usize) {
    let tokens = tokens(kind, pages);
    let id = cache.create();
    cache.reserve(id, tokens.len()).expect("room for one sequence");
    cache.commit_tokens(id, tokens.into_iter());
    cache.remove(id);
}

/// Blocks of such a prompt that are known.
fn known(cache: &KvCache, kind: u32, pages: usize) -> usize {
    cache.lookup(&tokens(kind, pages)).len() / PAGE
}

fn tier(cache: &mut KvCache) -> &mut Cold {
    cache.tiers.cold.as_mut().expect("there is a file")
}

/// Begins each write, or read, when told so, or at once after that is dropped.
fn hold(cold: &mut Cold, most: usize, reads: bool) -> Sender<()> {
    let (told, gate) = channel();
    let (file, sizes) = (cold.file.clone(), cold.sizes);
    let work = move |job: &mut Job| {
        let _ = gate.recv();
        let at = sizes.offset(job.slot);
        let done = if reads {
            file.read_at(&mut job.bytes, at)
        } else {
            sizes.seal(&mut job.bytes);
            file.write_at(&job.bytes, at)
        };
        job.done = done.is_ok();
    };
    let held = if reads { &mut cold.reader } else { &mut cold.writer };
    *held = Worker::start("held", most, work).expect("a thread");
    told
}

/// A disk that has room for so many slots.
fn limit(cold: &mut Cold) -> Arc<AtomicU32> {
    let limit = Arc::new(AtomicU32::new(u32::MAX));
    let (file, sizes, room) = (cold.file.clone(), cold.sizes, limit.clone());
    let work = move |job: &mut Job| {
        sizes.seal(&mut job.bytes);
        job.done = job.slot < room.load(Ordering::Relaxed)
            && file.write_at(&job.bytes, sizes.offset(job.slot)).is_ok();
    };
    cold.writer = Worker::start("limited", 64, work).expect("a thread");
    limit
}

/// Until nothing is being written, or waits for that.
fn settle(cache: &mut KvCache) {
    while cache.wait_for_tiers() || tier(cache).writer.is_busy() {
        cache.poll();
        cache.validate().expect("books in order");
    }
}

#[test]
fn giving_memory_back_does_not_wait_for_a_slow_disk() {
    let slow = || {
        let work = |job: &mut Job| {
            thread::sleep(Duration::from_millis(20));
            job.done = true;
        };
        Worker::start("slow", 1, work).expect("a thread")
    };
    for is_warm in [false, true] {
        let directory = tempfile::tempdir().expect("folder");
        let mut cache = cache(60, if is_warm { 1 << 20 } else { 0 }, cold(&directory, 1));
        let Tiers { cold: Some(cold), .. } = &mut cache.tiers else { panic!("there is a file") };
        cold.writer = slow();
        visit(&mut cache, 0, 50);
        if is_warm {
            visit(&mut cache, 1, 50);
            while cache.note_packed(Wait::Forever) {}
            assert!(cache.warm_bytes() > 0);
        }
        let before = cache.stats().cold.dropped_writes;
        match is_warm {
            false => assert!(cache.set_capacity(0).is_ok()),
            true => cache.set_warm_limit(0),
        }
        cache.validate().expect("books in order");
        let dropped = cache.stats().cold.dropped_writes - before;
        assert!(dropped > 20, "compressed: {is_warm}: {dropped} of some 40 pages");
    }
}

#[test]
fn what_was_asked_of_a_slot_before_it_was_given_up_is_not_taken_for_what_it_holds_now() {
    let directory = tempfile::tempdir().expect("folder");
    let options = cold(&directory, 2);
    let page = [[1; 64], [2; 64]];
    let (mut cold, _) =
        Cold::open(&options, EvictionPolicy::Lru, 7, (PAGE, &[64])).expect("a file of its own");
    let owner = Owner { block: 1, group: 0 };
    let label = Label { hash: 1, parent: 0, index: 0, group: 0, tokens: &[1, 2, 3, 4] };
    for bytes in &page {
        let slot = cold.free_slot().expect("room");
        assert_eq!(slot, 0);
        assert!(cold.store(
            slot,
            owner,
            (0, 0),
            &label,
            Payload::Plain(PageBytes::from(&bytes[..]))
        ));
        assert_eq!(cold.written(Wait::Forever), Some(Ok(())));
        assert!(cold.fetch(slot, 64) && !cold.fetch(slot, 64) && cold.is_fetching());
        if bytes == &page[0] {
            cold.forget(slot);
        }
    }
    assert!(cold.fetched(Wait::Forever).is_some_and(|(slot, _)| slot.is_none()));
    let (slot, bytes) = cold.fetched(Wait::Forever).expect("an answer");
    assert_eq!((slot, cold.is_fetching()), (Some(0), false));
    assert_eq!(cold.unpack(&bytes, &label, 64), Some(&page[1][..]));
    assert!(cold.fetch(0, 64), "it may be asked for again");
}

#[test]
fn a_disk_that_hangs_is_waited_for_once() {
    let directory = tempfile::tempdir().expect("folder");
    let mut cache = cache(40, 0, cold(&directory, 1));
    let _told = hold(tier(&mut cache), 1, false);
    visit(&mut cache, 0, 30);
    let mut time = |kind, pages| {
        let begin = Instant::now();
        visit(&mut cache, kind, pages);
        begin.elapsed()
    };
    // One page leaves memory each time.
    let first = time(1, 11);
    let more: Duration = (2..12).map(|kind| time(kind, 1)).sum();
    assert!(first >= PATIENCE && more < 5 * PATIENCE, "{first:?}, ten more {more:?}");
    let stats = cache.stats();
    assert_eq!(stats.evicted_pages, 11, "{stats:?}");
    cache.validate().expect("books in order");
}

#[test]
fn a_slow_disk_is_waited_for_as_long_as_a_call_may_take_whatever_the_number_of_pages() {
    let directory = tempfile::tempdir().expect("folder");
    let mut cache = cache(40, 0, cold(&directory, 1));
    let slow = |job: &mut Job| {
        thread::sleep(PATIENCE * 2 / 3);
        job.done = true;
    };
    tier(&mut cache).writer = Worker::start("slow", 1, slow).expect("a thread");
    visit(&mut cache, 0, 30);
    let begin = Instant::now();
    visit(&mut cache, 1, 30);
    let time = begin.elapsed();
    assert!(time >= PATIENCE / 2 && time < 8 * PATIENCE, "{time:?}");
    assert_eq!(cache.stats().evicted_pages, 20);
}

#[test]
fn what_a_hanging_disk_has_is_computed_again_and_found_there_later() {
    let directory = tempfile::tempdir().expect("folder");
    let mut cache = cache(20, 0, cold(&directory, 64));
    let told = hold(tier(&mut cache), 64, false);
    visit(&mut cache, 0, 4);
    visit(&mut cache, 1, 20);
    let found = cache.lookup(&tokens(0, 4));
    assert_eq!((found.len(), cache.missing(&found)), (4 * PAGE, 4));
    let begin = Instant::now();
    let id = cache.create();
    assert_eq!(cache.adopt(id, &found, usize::MAX).expect("a living sequence"), 0);
    let time = begin.elapsed();
    assert!(time >= PATIENCE && time < 20 * PATIENCE, "{time:?}");
    cache.validate().expect("books in order");
    assert_eq!(known(&cache, 0, 4), 4);
    drop(told);
    settle(&mut cache);
    assert_eq!(cache.adopt(id, &found, usize::MAX).expect("a living sequence"), 4 * PAGE);
}

#[test]
fn who_waits_for_a_disk_that_hangs_can_do_other_things_in_between() {
    let directory = tempfile::tempdir().expect("folder");
    let mut first = cache(20, 0, cold(&directory, 64));
    visit(&mut first, 0, 4);
    drop(first);
    let mut cache = cache(20, 0, cold(&directory, 64));
    let _told = hold(tier(&mut cache), 64, true);
    let found = cache.lookup(&tokens(0, 4));
    assert_eq!(cache.prefetch(&found), 4);
    let time = |cache: &mut KvCache| {
        let begin = Instant::now();
        assert!(cache.wait_for_tiers());
        begin.elapsed()
    };
    for _ in 0..2 {
        let time = time(&mut cache);
        assert!(time >= PATIENCE / 2 && time < 20 * PATIENCE, "{time:?}");
    }
    // So it is for what is still to be written.
    let other = tempfile::tempdir().expect("folder");
    let mut cache = self::cache(20, 0, cold(&other, 1));
    let _told = hold(tier(&mut cache), 1, false);
    visit(&mut cache, 0, 4);
    for _ in 0..2 {
        let time = time(&mut cache);
        assert!(time >= PATIENCE / 2 && time < 20 * PATIENCE, "{time:?}");
    }
}

#[test]
fn a_damaged_page_takes_no_other_one_with_it() {
    let directory = tempfile::tempdir().expect("folder");
    let path = directory.path().join("cold");
    // Room for a page in memory and for another one in the file.
    let file = ColdOptions { bytes: 4096 + 8192, ..cold(&directory, 2) };
    let mut cache = cache(1, 0, file);
    visit(&mut cache, 0, 1);
    cache.persist().expect("a file");
    let cold = cache.tiers.cold.take();
    visit(&mut cache, 1, 1);
    cache.tiers.cold = cold;
    std::fs::write(&path, vec![0; 4096 + 8192]).expect("a file");
    assert_eq!(cache.prefetch(&cache.lookup(&tokens(0, 1))), 1);
    while cache.is_fetching() {
        cache.wait_for_tiers();
    }
    cache.validate().expect("books in order");
    assert_eq!([0, 1].map(|kind| known(&cache, kind, 1)), [0, 1]);
}

#[test]
fn no_page_leaves_the_file_for_one_that_there_is_no_memory_for() {
    let directory = tempfile::tempdir().expect("folder");
    let file = ColdOptions { bytes: 4096 + 8192, ..cold(&directory, 2) };
    let mut cache = cache(1, 0, file);
    visit(&mut cache, 0, 1);
    cache.persist().expect("a file");
    tier(&mut cache).sizes.slot = usize::MAX;
    visit(&mut cache, 1, 1);
    cache.validate().expect("books in order");
    assert_eq!([0, 1].map(|kind| known(&cache, kind, 1)), [1, 1]);
    let stats = cache.stats().cold;
    assert_eq!((stats.evicted_pages, stats.dropped_writes), (0, 1), "{stats:?}");
}

#[test]
fn a_header_that_could_not_be_written_is_written_before_the_first_page() {
    let directory = tempfile::tempdir().expect("folder");
    let path = directory.path().join("cold");
    let sizes = Sizes::new(PAGE, 64, 7);
    std::fs::write(&path, b"somebody's diary").expect("a file");
    let mut stats = ColdStats::default();
    let file = RandomAccess::open_read_only(&path).expect("a file");
    let (seed, due) = begin_or_go_on(&file, &sizes, 5, &mut stats).expect("a header");
    assert_eq!((seed, due, stats.failed_writes), (5, Some(sizes.file_header(5)), 1));
    let file = Arc::new(RandomAccess::open(&path).expect("a file"));
    let mut writer = Worker::writer(file, sizes, due, 4).expect("a thread");
    for slot in [1, 0] {
        let bytes = vec![1; sizes.header + 64];
        assert!(writer.send(Job { slot, bytes, ..Job::default() }));
        assert!(writer.answer(Wait::Forever).is_some_and(|job| job.done));
    }
    let bytes = std::fs::read(&path).expect("a file");
    assert_eq!(bytes[..SECTOR], sizes.file_header(5));
    assert_eq!(bytes.len(), SECTOR + sizes.slot + sizes.header + 64, "both slots are there");
}

#[test]
fn where_the_disk_is_full_new_pages_go_where_others_were() {
    let directory = tempfile::tempdir().expect("folder");
    let mut cache = cache(60, 0, cold(&directory, 64));
    let room = limit(tier(&mut cache));
    room.store(8, Ordering::Relaxed);
    visit(&mut cache, 0, 6);
    settle(&mut cache);
    // What the disk does not take is still in memory.
    visit(&mut cache, 1, 6);
    settle(&mut cache);
    let failed = cache.stats().cold.failed_writes;
    assert!((1..=4).contains(&failed) && cache.cold_pages() == 8, "{:?}", cache.stats());
    visit(&mut cache, 2, 6);
    settle(&mut cache);
    assert_eq!(cache.stats().cold.failed_writes, failed, "it is not asked for more for a while");
    drop(cache);
    let mut cache = self::cache(60, 0, cold(&directory, 64));
    assert_eq!([1, 2].map(|kind| known(&cache, kind, 6)), [2, 6]);
    // One page is tried when some time has passed, and then all.
    let room = limit(tier(&mut cache));
    room.store(8, Ordering::Relaxed);
    visit(&mut cache, 3, 6);
    settle(&mut cache);
    room.store(u32::MAX, Ordering::Relaxed);
    tier(&mut cache).growth.again = Some(Instant::now());
    for kind in 4..6 {
        visit(&mut cache, kind, 6);
        settle(&mut cache);
    }
    assert!(cache.cold_pages() >= 9, "{}", cache.cold_pages());
    visit(&mut cache, 6, 6);
    settle(&mut cache);
    assert!(cache.cold_pages() >= 14, "{}", cache.cold_pages());
}

#[test]
fn a_disk_that_takes_nothing_keeps_what_it_has() {
    let directory = tempfile::tempdir().expect("folder");
    let mut cache = cache(60, 0, ColdOptions { bytes: 4096 + 8192 * 20, ..cold(&directory, 2) });
    let room = limit(tier(&mut cache));
    for kind in 0..2 {
        visit(&mut cache, kind, 10);
        settle(&mut cache);
    }
    assert_eq!(cache.cold_pages(), 20);
    room.store(0, Ordering::Relaxed);
    visit(&mut cache, 2, 4);
    settle(&mut cache);
    let left = cache.cold_pages();
    assert!(left >= 16, "{left}");
    for kind in 3..6 {
        visit(&mut cache, kind, 10);
        settle(&mut cache);
    }
    assert_eq!(cache.cold_pages(), left);
}
