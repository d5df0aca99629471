//! ARC, the adaptive replacement cache (Megiddo, Modha: ARC: a self-tuning, low overhead
//! replacement cache, FAST 2003), for keys that come and go by themselves.
//!
//! Keys used once and keys used again are two lists, oldest first. The contents lately evicted
//! from each are remembered: when one of them comes again, its list was too short, and the target
//! length of the first list moves that way. Because the cache decides when something must go, the
//! capacity is the number of keys in at that time.

use std::collections::{HashMap, VecDeque};

use super::Policy;
use super::list::{Links, List, Table};

/// Keys looked at in one list before the other one gets its chance.
const GLANCE: usize = 32;

#[derive(Debug, Clone, Copy)]
struct Entry {
    content: u64,
    again: bool,
}

#[derive(Debug, Default)]
pub(super) struct Arc {
    links: Links,
    once: List,
    again: List,
    entries: Table<Entry>,
    once_gone: Ghosts,
    again_gone: Ghosts,
    /// How long the list of keys used once should be.
    target: f64,
}

/// Contents evicted from one list, oldest first.
#[derive(Debug, Default)]
struct Ghosts {
    queue: VecDeque<(u64, u64)>,
    /// Per content the number of its latest eviction.
    latest: HashMap<u64, u64>,
    count: u64,
}

impl Ghosts {
    fn remember(&mut self, content: u64, most: usize) {
        self.count += 1;
        self.queue.push_back((content, self.count));
        self.latest.insert(content, self.count);
        while self.latest.len() > most || self.queue.len() > 2 * most {
            let Some((oldest, number)) = self.queue.pop_front() else { break };
            if self.latest.get(&oldest) == Some(&number) {
                self.latest.remove(&oldest);
            }
        }
    }

    fn take(&mut self, content: u64) -> bool {
        self.latest.remove(&content).is_some()
    }

    fn len(&self) -> f64 {
        self.latest.len() as f64
    }
}

impl Arc {
    fn list(&mut self, again: bool) -> &mut List {
        if again { &mut self.again } else { &mut self.once }
    }

    /// The oldest evictable key of one list, looking at no more than `most`. What may not go is in
    /// use, or carries what is younger: it becomes the youngest.
    fn oldest(
        &mut self,
        again: bool,
        most: usize,
        evictable: &mut dyn FnMut(u32) -> bool,
    ) -> Option<u32> {
        for _ in 0..self.list(again).len.min(most) {
            let key = self.list(again).front;
            if evictable(key) {
                return Some(key);
            }
            self.renew(key);
        }
        None
    }
}

impl Policy for Arc {
    fn insert(&mut self, key: u32, content: u64) {
        let most = (self.entries.len + 1) as f64;
        let (once_gone, again_gone) = (self.once_gone.len(), self.again_gone.len());
        let again = if self.once_gone.take(content) {
            self.target = (self.target + (again_gone / once_gone).max(1.0)).min(most);
            true
        } else if self.again_gone.take(content) {
            self.target = (self.target - (once_gone / again_gone).max(1.0)).max(0.0);
            true
        } else {
            false
        };
        self.entries.insert(key, Entry { content, again });
        let list = if again { &mut self.again } else { &mut self.once };
        self.links.push_back(list, key);
    }

    fn touch(&mut self, key: u32) {
        if let Some(entry) = self.entries.get_mut(key) {
            let from = if entry.again { &mut self.again } else { &mut self.once };
            self.links.unlink(from, key);
            entry.again = true;
            self.links.push_back(&mut self.again, key);
        }
    }

    fn renew(&mut self, key: u32) {
        if let Some(entry) = self.entries.get_mut(key) {
            let list = if entry.again { &mut self.again } else { &mut self.once };
            self.links.unlink(list, key);
            self.links.push_back(list, key);
        }
    }

    fn remove(&mut self, key: u32) {
        if let Some(entry) = self.entries.take(key) {
            let list = if entry.again { &mut self.again } else { &mut self.once };
            self.links.unlink(list, key);
        }
    }

    fn victim(&mut self, evictable: &mut dyn FnMut(u32) -> bool) -> Option<u32> {
        let again_first = (self.once.len as f64) <= self.target;
        let mut key = None;
        for most in [GLANCE, usize::MAX] {
            for again in [again_first, !again_first] {
                key = key.or_else(|| self.oldest(again, most, evictable));
            }
        }
        let key = key?;
        let most = self.entries.len.max(16);
        let Entry { content, again } = *self.entries.get_mut(key).expect("it is in a list");
        self.remove(key);
        match again {
            true => self.again_gone.remember(content, most),
            false => self.once_gone.remember(content, most),
        }
        Some(key)
    }

    fn len(&self) -> usize {
        self.entries.len
    }
}
