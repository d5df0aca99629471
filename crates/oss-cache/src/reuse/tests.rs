//! How long a lookup takes.

use std::time::{Duration, Instant};

use crate::KvCache;
use crate::shape::{Group, Shape};
use crate::tree::{NodeId, ROOT};

const BLOCKS: u32 = 30_000;

/// How long it takes to go back through blocks of which only the first has its window, in a cache
/// with groups in this order.
fn time_to_go_back(windows: [Option<usize>; 2]) -> Duration {
    let group = |(layer, window)| Group { layers: vec![layer], window };
    let groups = windows.into_iter().enumerate().map(group).collect();
    let shape = Shape { page_tokens: 1, n_kv_heads: 1, head_dim: 1, slot_bytes: 64, groups };
    let mut cache = KvCache::new(shape, 1 << 20).expect("a sound shape");
    let (mut at, mut path) = (ROOT, Vec::<NodeId>::new());
    for token in 0..BLOCKS {
        at = cache.tree.insert(at, &[token]).expect("a new block");
        path.push(at);
        for (group, window) in windows.into_iter().enumerate() {
            if window.is_none() || token == 0 {
                cache.tree.places_mut(at, group).cold = token;
            }
        }
    }
    let begin = Instant::now();
    assert_eq!(cache.resume(&path, path.len()), 1);
    begin.elapsed()
}

#[test]
fn going_back_takes_as_long_whichever_group_is_listed_first() {
    let windowed_first = time_to_go_back([Some(2), None]);
    let full_first = time_to_go_back([None, Some(2)]);
    let most = 20 * windowed_first + Duration::from_millis(20);
    assert!(full_first < most, "{full_first:?}, {windowed_first:?} where windows come first");
}
