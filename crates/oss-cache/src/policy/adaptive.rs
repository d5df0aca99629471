//! Age against uses, balanced by what is missed.
//!
//! The key is evicted whose age, divided by a power of its uses, is greatest; age is how long it
//! has not been used. With power 0 this is the least recently used; the greater the power, the more
//! the number of uses counts. So far it is hyperbolic caching (Blankstein, Sen, Freedman:
//! Hyperbolic caching, USENIX ATC 2017) with a power.
//!
//! The power follows the trace. The contents lately evicted are remembered with their uses. When
//! one comes again that had more uses than they have on average, uses predict what will be needed:
//! the power grows; when it had fewer, it shrinks.

use std::collections::{HashMap, VecDeque};

use super::Policy;
use super::list::{Links, List, Table};

/// Uses are counted up to this; there is one list for each number.
const MOST_USES: usize = 7;
/// Keys looked at in each list before a younger one of another list goes.
const GLANCE: usize = 256;
/// The power at first, and at most.
const FIRST_POWER: f64 = 0.5;
const MOST_POWER: f64 = 2.0;
/// How far the power moves in all when every content that was evicted comes again, with one unit
/// more (of the logarithm of its uses) than on average.
const PACE: f64 = 10.0;

#[derive(Clone, Copy, Debug)]
struct Entry {
    content: u64,
    uses: u8,
    /// When it was used last.
    used: u64,
}

#[derive(Debug)]
pub(super) struct Adaptive {
    links: Links,
    /// By number of uses, the key longest unused first.
    lists: [List; MOST_USES + 1],
    entries: Table<Entry>,
    clock: u64,
    power: f64,
    /// By number of uses: what an age is multiplied by.
    weights: [f64; MOST_USES + 1],
    ghosts: Ghosts,
}

impl Default for Adaptive {
    fn default() -> Adaptive {
        let mut policy = Adaptive {
            links: Links::default(),
            lists: Default::default(),
            entries: Table::default(),
            clock: 0,
            power: FIRST_POWER,
            weights: [1.0; MOST_USES + 1],
            ghosts: Ghosts::default(),
        };
        policy.set_power(FIRST_POWER);
        policy
    }
}

/// The logarithm of one more than the uses.
fn logarithm(uses: u8) -> f64 {
    (f64::from(uses) + 1.0).ln()
}

/// Contents lately evicted, oldest first.
#[derive(Debug, Default)]
struct Ghosts {
    queue: VecDeque<(u64, u64)>,
    /// Per content its uses, and the number of its latest eviction.
    latest: HashMap<u64, (u8, u64)>,
    /// Of the uses in `latest`.
    logarithms: f64,
    count: u64,
}

impl Ghosts {
    fn remember(&mut self, content: u64, uses: u8, most: usize) {
        self.take(content);
        self.count += 1;
        self.queue.push_back((content, self.count));
        self.latest.insert(content, (uses, self.count));
        self.logarithms += logarithm(uses);
        while self.queue.len() > most {
            let Some((oldest, number)) = self.queue.pop_front() else { break };
            if self.latest.get(&oldest).is_some_and(|(_, latest)| *latest == number) {
                self.take(oldest);
            }
        }
    }

    fn take(&mut self, content: u64) -> Option<u8> {
        let (uses, _) = self.latest.remove(&content)?;
        self.logarithms -= logarithm(uses);
        Some(uses)
    }

    /// The mean logarithm of the uses.
    fn mean(&self) -> f64 {
        self.logarithms / self.latest.len().max(1) as f64
    }
}

impl Adaptive {
    fn set_power(&mut self, power: f64) {
        self.power = power.clamp(0.0, MOST_POWER);
        for (uses, weight) in self.weights.iter_mut().enumerate() {
            *weight = (-self.power * logarithm(uses as u8)).exp();
        }
    }

    /// Makes a key the youngest of those with so many uses.
    fn refresh(&mut self, key: u32, more_uses: u8) {
        self.clock += 1;
        let Some(entry) = self.entries.get_mut(key) else { return };
        self.links.unlink(&mut self.lists[usize::from(entry.uses)], key);
        entry.uses = (entry.uses + more_uses).min(MOST_USES as u8);
        entry.used = self.clock;
        self.links.push_back(&mut self.lists[usize::from(entry.uses)], key);
    }

    /// The evictable key with the greatest weighed age, looking at no more than [`GLANCE`] of each
    /// list unless none of them may go. What is older is passed over: for it no time has passed.
    fn first(&mut self, evictable: &mut dyn FnMut(u32) -> bool) -> Option<u32> {
        let mut unseen = self.lists.map(|list| list.len);
        while unseen.iter().any(|keys| *keys > 0) {
            let mut glance = unseen.map(|keys| keys.min(GLANCE));
            while let Some(uses) = self.oldest(&glance) {
                (glance[uses], unseen[uses]) = (glance[uses] - 1, unseen[uses] - 1);
                let front = self.lists[uses].front;
                if let Some(key) = self.links.first(&mut self.lists[uses], 1, &mut *evictable) {
                    return Some(key);
                }
                self.entries.get_mut(front).expect("it is in a list").used = self.clock;
            }
        }
        None
    }

    /// The list whose first key has the greatest weighed age, of those with keys to look at.
    fn oldest(&mut self, keys: &[usize]) -> Option<usize> {
        let mut best = None;
        for (uses, list) in self.lists.iter().enumerate().filter(|(uses, _)| keys[*uses] > 0) {
            let used = self.entries.get_mut(list.front).expect("it is in a list").used;
            let age = (self.clock - used) as f64 * self.weights[uses];
            if best.is_none_or(|(oldest, _)| age > oldest) {
                best = Some((age, uses));
            }
        }
        best.map(|(_, uses)| uses)
    }
}

impl Policy for Adaptive {
    fn insert(&mut self, key: u32, content: u64, mut uses: u8) {
        self.clock += 1;
        let mean = self.ghosts.mean();
        if let Some(before) = self.ghosts.take(content) {
            let step = PACE / self.entries.len.max(16) as f64;
            self.set_power(self.power + step * (logarithm(before) - mean));
            uses = uses.max(before + 1);
        }
        let uses = uses.min(MOST_USES as u8);
        self.entries.insert(key, Entry { content, uses, used: self.clock });
        self.links.push_back(&mut self.lists[usize::from(uses)], key);
    }

    fn touch(&mut self, key: u32) {
        self.refresh(key, 1);
    }

    fn renew(&mut self, key: u32) {
        self.refresh(key, 0);
    }

    fn remove(&mut self, key: u32) {
        if let Some(entry) = self.entries.take(key) {
            self.links.unlink(&mut self.lists[usize::from(entry.uses)], key);
        }
    }

    fn victim(&mut self, evictable: &mut dyn FnMut(u32) -> bool) -> Option<u32> {
        let key = self.first(evictable)?;
        let most = self.entries.len.max(16);
        let Entry { content, uses, .. } = *self.entries.get_mut(key).expect("it is in a list");
        self.remove(key);
        self.ghosts.remember(content, uses, most);
        Some(key)
    }

    fn len(&self) -> usize {
        self.entries.len
    }
}
