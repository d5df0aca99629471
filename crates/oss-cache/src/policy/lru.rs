//! The least recently used is evicted first.

use super::Policy;
use super::list::{Links, List, Table};

#[derive(Debug, Default)]
pub(super) struct Lru {
    links: Links,
    list: List,
    present: Table<()>,
}

impl Policy for Lru {
    fn insert(&mut self, key: u32, _content: u64, _uses: u8) {
        self.present.insert(key, ());
        self.links.push_back(&mut self.list, key);
    }

    fn touch(&mut self, key: u32) {
        if self.present.get_mut(key).is_some() {
            self.links.unlink(&mut self.list, key);
            self.links.push_back(&mut self.list, key);
        }
    }

    fn renew(&mut self, key: u32) {
        self.touch(key);
    }

    fn remove(&mut self, key: u32) {
        if self.present.take(key).is_some() {
            self.links.unlink(&mut self.list, key);
        }
    }

    fn victim(&mut self, evictable: &mut dyn FnMut(u32) -> bool) -> Option<u32> {
        let key = self.links.first(&mut self.list, usize::MAX, evictable)?;
        self.remove(key);
        Some(key)
    }

    fn len(&self) -> usize {
        self.present.len
    }
}
