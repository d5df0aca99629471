//! The tier with threads that a test holds up.

use super::*;
use crate::shape::{Group, Shape};
use crate::tier::moves::Tiers;
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

/// Commits so many pages of tokens in a sequence of their own and lets it go.
fn visit(cache: &mut KvCache, kind: u32, pages: usize) {
    let tokens = (0..(pages * PAGE) as u32).map(|index| kind * 10_000 + index);
    let id = cache.create();
    cache.reserve(id, tokens.len()).expect("room for one sequence");
    cache.commit_tokens(id, tokens);
    cache.remove(id);
}

#[test]
fn giving_memory_back_does_not_wait_for_a_slow_disk() {
    let slow = || {
        let work = |parcel: &mut Parcel| {
            thread::sleep(Duration::from_millis(20));
            parcel.done = true;
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
            while cache.note_packed(Wait::Long) {}
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
        Cold::open(&options, PolicyKind::Lru, 7, (PAGE, &[64])).expect("a file of its own");
    let owner = Slot { block: 1, group: 0 };
    let label = Label { hash: 1, parent: 0, block: 0, group: 0, tokens: &[1, 2, 3, 4] };
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
        assert_eq!(cold.written(Wait::Long), Some(None));
        assert!(cold.fetch(slot, 64) && !cold.fetch(slot, 64) && cold.is_fetching());
        if bytes == &page[0] {
            cold.forget(slot);
        }
    }
    assert!(cold.fetched(Wait::Long).is_some_and(|(slot, _)| slot.is_none()));
    let (slot, bytes) = cold.fetched(Wait::Long).expect("an answer");
    assert_eq!((slot, cold.is_fetching()), (Some(0), false));
    assert_eq!(cold.unpack(&bytes, &label, 64), Some(&page[1][..]));
    assert!(cold.fetch(0, 64), "it may be asked for again");
}
