//! S3-FIFO (Yang, Zhang, Qiu, Yue, Rashmi: FIFO queues are all you need for cache eviction,
//! SOSP 2023).
//!
//! Newcomers enter a small queue, a tenth of all keys. Who has been used when leaving it moves to
//! the main queue; who has not is evicted, and its content is remembered for a while: should it
//! come again, it goes to the main queue at once. The main queue gives used keys further rounds.

use std::collections::{HashMap, VecDeque};

use super::Policy;
use super::list::{Links, List, Table};

/// Uses are counted up to this.
const MOST_USES: u8 = 3;

#[derive(Debug, Clone, Copy)]
struct Entry {
    content: u64,
    uses: u8,
    main: bool,
}

#[derive(Debug, Default)]
pub(super) struct S3Fifo {
    links: Links,
    small: List,
    main: List,
    entries: Table<Entry>,
    ghosts: Ghosts,
}

/// Contents evicted from the small queue, oldest first.
#[derive(Debug, Default)]
struct Ghosts {
    queue: VecDeque<u64>,
    /// How often each content is in the queue.
    counts: HashMap<u64, u32>,
}

impl Ghosts {
    fn remember(&mut self, content: u64, most: usize) {
        self.queue.push_back(content);
        *self.counts.entry(content).or_insert(0) += 1;
        while self.queue.len() > most {
            let oldest = self.queue.pop_front().expect("longer than `most`");
            if let Some(count) = self.counts.get_mut(&oldest) {
                *count -= 1;
                if *count == 0 {
                    self.counts.remove(&oldest);
                }
            }
        }
    }

    fn contains(&self, content: u64) -> bool {
        self.counts.contains_key(&content)
    }
}

impl S3Fifo {
    fn promote(&mut self, key: u32) {
        self.links.unlink(&mut self.small, key);
        self.links.push_back(&mut self.main, key);
        let entry = self.entries.get_mut(key).expect("in the small queue");
        entry.main = true;
        entry.uses = 0;
    }

    /// One round over the small queue.
    fn small_victim(&mut self, evictable: &mut dyn FnMut(u32) -> bool) -> Option<u32> {
        for _ in 0..self.small.len {
            let key = self.small.front;
            let entry = *self.entries.get_mut(key).expect("in the small queue");
            if entry.uses > 0 {
                self.promote(key);
            } else if evictable(key) {
                self.remove(key);
                self.ghosts.remember(entry.content, self.entries.len.max(16));
                return Some(key);
            } else {
                self.links.unlink(&mut self.small, key);
                self.links.push_back(&mut self.small, key);
            }
        }
        None
    }

    /// Rounds over the main queue until uses are spent.
    fn main_victim(&mut self, evictable: &mut dyn FnMut(u32) -> bool) -> Option<u32> {
        for _ in 0..self.main.len * (usize::from(MOST_USES) + 1) {
            let key = self.main.front;
            let entry = self.entries.get_mut(key).expect("in the main queue");
            if entry.uses == 0 && evictable(key) {
                self.remove(key);
                return Some(key);
            }
            entry.uses = entry.uses.saturating_sub(1);
            self.links.unlink(&mut self.main, key);
            self.links.push_back(&mut self.main, key);
        }
        None
    }
}

impl Policy for S3Fifo {
    fn insert(&mut self, key: u32, content: u64) {
        let main = self.ghosts.contains(content);
        self.entries.insert(key, Entry { content, uses: 0, main });
        let list = if main { &mut self.main } else { &mut self.small };
        self.links.push_back(list, key);
    }

    fn touch(&mut self, key: u32) {
        if let Some(entry) = self.entries.get_mut(key) {
            entry.uses = (entry.uses + 1).min(MOST_USES);
        }
    }

    fn remove(&mut self, key: u32) {
        if let Some(entry) = self.entries.take(key) {
            let list = if entry.main { &mut self.main } else { &mut self.small };
            self.links.unlink(list, key);
        }
    }

    fn victim(&mut self, evictable: &mut dyn FnMut(u32) -> bool) -> Option<u32> {
        let small_first = self.small.len * 10 >= self.entries.len || self.main.len == 0;
        let first = match small_first {
            true => self.small_victim(evictable),
            false => self.main_victim(evictable),
        };
        first.or_else(|| match small_first {
            true => self.main_victim(evictable),
            false => self.small_victim(evictable),
        })
    }

    fn len(&self) -> usize {
        self.entries.len
    }
}
