//! How much work it is to find that nothing may go.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::policy::Policy;
use crate::shape::{Group, Shape};
use crate::{EvictionPolicy, KvCache, Options};

const PAGE: usize = 4;

/// Counts the keys that it is asked to look at.
#[derive(Debug)]
struct Counting(Box<dyn Policy>, Arc<AtomicUsize>);

impl Policy for Counting {
    fn insert(&mut self, key: u32, content: u64, uses: u8) {
        self.0.insert(key, content, uses);
    }

    fn touch(&mut self, key: u32) {
        self.0.touch(key);
    }

    fn renew(&mut self, key: u32) {
        self.0.renew(key);
    }

    fn remove(&mut self, key: u32) {
        self.0.remove(key);
    }

    fn victim(&mut self, evictable: &mut dyn FnMut(u32) -> bool) -> Option<u32> {
        let seen = &self.1;
        self.0.victim(&mut |key| {
            seen.fetch_add(1, Ordering::Relaxed);
            evictable(key)
        })
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}

#[test]
fn spare_pages_are_not_looked_for_where_all_are_in_use() {
    let group = |layer: usize, window| Group { layers: vec![layer], window };
    let groups = vec![group(0, Some(8)), group(1, None)];
    let shape = Shape { page_tokens: PAGE, n_kv_heads: 1, head_dim: 1, slot_bytes: 4096, groups };
    let capacity_bytes = 1_100 * shape.largest_page_bytes();
    let options = Options { capacity_bytes, warm_bytes: 1 << 20, ..Options::default() };
    let mut cache = KvCache::with_options(shape, &options).expect("a sound shape");
    let seen = Arc::new(AtomicUsize::new(0));
    cache.policy = Box::new(Counting(EvictionPolicy::default().build(), seen.clone()));
    let id = cache.create();
    let grow = |cache: &mut KvCache, from: u32, n: u32| {
        cache.reserve(id, n as usize).expect("room");
        cache.commit_tokens(id, from..from + n);
    };
    (0..1_050).for_each(|block| grow(&mut cache, block * 4, 4));
    let idle: usize = (0..2).map(|group| cache.pages(group).idle).sum();
    assert!(idle > 20 && cache.pool.is_nearly_full(), "kept windows: {idle}");
    (0..100).for_each(|_| cache.poll());
    assert_eq!(seen.load(Ordering::Relaxed), 0);
    // Where some may go, they do.
    cache.remove(id);
    cache.poll();
    assert!(seen.load(Ordering::Relaxed) > 0 && !cache.pool.is_nearly_full());
    cache.validate().expect("books in order");
}
