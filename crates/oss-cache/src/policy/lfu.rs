//! The least frequently used is evicted first, the least recently used among equals.

use super::Policy;
use super::list::{Links, List, Table};

/// Uses are counted up to this.
const MOST_USES: usize = 255;
/// Keys looked at in each list before all are.
const GLANCE: usize = 32;

#[derive(Debug)]
pub(super) struct Lfu {
    links: Links,
    /// One list per number of uses.
    lists: Vec<List>,
    uses: Table<u8>,
}

impl Default for Lfu {
    fn default() -> Lfu {
        let lists = vec![List::default(); MOST_USES + 1];
        Lfu { links: Links::default(), lists, uses: Table::default() }
    }
}

impl Lfu {
    /// The first evictable key, looking at no more than `most` of a list.
    fn first(&mut self, most: usize, evictable: &mut dyn FnMut(u32) -> bool) -> Option<u32> {
        let mut lists = self.lists.iter_mut();
        lists.find_map(|list| self.links.first(list, most, &mut *evictable))
    }
}

impl Policy for Lfu {
    fn insert(&mut self, key: u32, _content: u64, uses: u8) {
        self.uses.insert(key, uses);
        self.links.push_back(&mut self.lists[usize::from(uses)], key);
    }

    fn touch(&mut self, key: u32) {
        if let Some(uses) = self.uses.get_mut(key) {
            self.links.unlink(&mut self.lists[usize::from(*uses)], key);
            *uses = uses.saturating_add(1);
            self.links.push_back(&mut self.lists[usize::from(*uses)], key);
        }
    }

    fn renew(&mut self, key: u32) {
        if let Some(uses) = self.uses.get_mut(key) {
            let list = &mut self.lists[usize::from(*uses)];
            self.links.unlink(list, key);
            self.links.push_back(list, key);
        }
    }

    fn remove(&mut self, key: u32) {
        if let Some(uses) = self.uses.take(key) {
            self.links.unlink(&mut self.lists[usize::from(uses)], key);
        }
    }

    fn victim(&mut self, evictable: &mut dyn FnMut(u32) -> bool) -> Option<u32> {
        let key = self.first(GLANCE, evictable).or_else(|| self.first(usize::MAX, evictable))?;
        self.remove(key);
        Some(key)
    }

    fn len(&self) -> usize {
        self.uses.len
    }
}
