//! Any is evicted.

use super::Policy;
use super::list::Table;

#[derive(Debug, Default)]
pub(super) struct Random {
    keys: Vec<u32>,
    /// Where each key is in `keys`.
    at: Table<usize>,
    state: u64,
}

impl Policy for Random {
    fn insert(&mut self, key: u32, _content: u64, _uses: u8) {
        self.at.insert(key, self.keys.len());
        self.keys.push(key);
    }

    fn touch(&mut self, _key: u32) {}

    fn renew(&mut self, _key: u32) {}

    fn remove(&mut self, key: u32) {
        if let Some(at) = self.at.take(key) {
            self.keys.swap_remove(at);
            if let Some(&moved) = self.keys.get(at) {
                *self.at.get_mut(moved).expect("every key has a place") = at;
            }
        }
    }

    /// A random place and the next evictable key from there on, round the end.
    fn victim(&mut self, evictable: &mut dyn FnMut(u32) -> bool) -> Option<u32> {
        // SplitMix64 (Steele, Lea, Flood 2014).
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        let start = mixed as usize % self.keys.len().max(1);
        let (before, from) = self.keys.split_at(start.min(self.keys.len()));
        let key = from.iter().chain(before).copied().find(|&key| evictable(key))?;
        self.remove(key);
        Some(key)
    }

    fn len(&self) -> usize {
        self.keys.len()
    }
}
