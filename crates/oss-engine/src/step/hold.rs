//! Requests that had better wait a moment: for pages on their way from the file, or for another
//! request that is computing the same prefix.

use std::cmp::Reverse;

use oss_cache::Match;

use crate::step::{Scheduler, Task, common};

/// Requests at the head of the queue whose pages are fetched before there is room for them; those
/// of others, when they could be admitted before these.
const LOOK_AHEAD: usize = 4;

/// How often a request asks again for pages of which none has come, where the queue of reads may
/// have been full of others' when it asked first. Where some were read, there was no room for them,
/// and they would be read forever.
const CHANCES: u8 = 16;

/// Why a request waits although there is room.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Hold {
    /// Another task, and how many tokens of it this one shares.
    leader: Option<(u64, usize)>,
    fetch: Fetch,
}

/// The pages of a prompt that lie in the file alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Fetch {
    /// Nobody has looked.
    #[default]
    Unknown,
    /// They are on their way, as many at a time as the queue of reads takes.
    Asked {
        /// How many were missing when they were asked for.
        missing: usize,
        /// How often they may still be asked for in vain.
        chances: u8,
    },
    /// They are here, or do not come.
    Done,
}

impl Fetch {
    /// Pages that are on their way, or shall be.
    fn wanted(self) -> usize {
        match self {
            Self::Asked { missing, .. } => missing,
            Self::Unknown | Self::Done => 0,
        }
    }
}

impl Scheduler {
    /// Which request leaves the queue next, by priority and age: none that waits for pages.
    pub(crate) fn next_waiting(&mut self) -> Option<usize> {
        let mut ahead = 0;
        for index in self.in_order() {
            if !self.is_held(index, ahead) {
                return Some(index);
            }
            ahead += self.queue[index].hold.fetch.wanted();
        }
        None
    }

    /// Asks for the pages of those who will be next, and for more of those that were asked for:
    /// the first one's before all others', whether there is a place for it yet or not.
    pub(crate) fn fetch_ahead(&mut self) {
        if self.cache_options.cold.is_none() {
            return;
        }
        let mut ahead = 0;
        for (rank, index) in self.in_order().into_iter().enumerate() {
            match self.queue[index].hold.fetch {
                _ if !self.takes_over(&self.queue[index]) => {}
                Fetch::Unknown if rank < LOOK_AHEAD => {
                    self.is_fetched(index, ahead);
                }
                Fetch::Asked { missing, chances } if !self.reads_are_taken(ahead) => {
                    let found = self.cache.lookup(&self.queue[index].tokens);
                    let now = self.cache.missing(&found);
                    if now > 0 && (now < missing || chances > 0) {
                        self.ask(index, &found);
                    }
                }
                _ => {}
            }
            ahead += self.queue[index].hold.fetch.wanted();
        }
    }

    /// Whether requests that come first want all that the queue of reads takes, so many pages.
    fn reads_are_taken(&self, ahead: usize) -> bool {
        let queue = self.cache_options.cold.as_ref().map_or(0, |cold| cold.queue);
        ahead >= queue && self.cache.is_fetching()
    }

    /// Those who wait and take what there is, the next one first.
    fn in_order(&self) -> Vec<usize> {
        let ready = |index: &usize| self.queue[*index].producer.has_room();
        let mut order: Vec<usize> = (0..self.queue.len()).filter(ready).collect();
        order.sort_by_key(|&index| (Reverse(self.queue[index].priority), self.queue[index].id));
        order
    }

    fn is_held(&mut self, index: usize, ahead: usize) -> bool {
        self.takes_over(&self.queue[index])
            && (self.is_behind(index) || !self.is_fetched(index, ahead))
    }

    /// Whether a task takes over what others have computed of its prompt.
    pub(crate) fn takes_over(&self, task: &Task) -> bool {
        self.options.prefix_caching && !task.needs_whole_prompt()
    }

    /// Whether a running task is still computing what this one can take over from it.
    fn is_behind(&mut self, index: usize) -> bool {
        let task = &self.queue[index];
        if let Some((leader, shared)) = task.hold.leader
            && Task::find(&self.running, leader).is_some_and(|other| self.lacks(other, shared))
        {
            return true;
        }
        let leader = self.find_leader(task);
        let first = leader.is_some() && task.hold.leader.is_none();
        self.recorder.lock().shared_prefixes += u64::from(first);
        self.queue[index].hold.leader = leader;
        leader.is_some()
    }

    /// Whether a task has not yet computed its first tokens, and goes on doing so.
    fn lacks(&self, task: &Task, tokens: usize) -> bool {
        let computed = task.sequence.map_or(0, |sequence| self.cache.len(sequence));
        computed < tokens && task.producer.has_room()
    }

    /// The running task that is computing the longest prefix of this one, where that is more than
    /// what is known already.
    fn find_leader(&self, task: &Task) -> Option<(u64, usize)> {
        let page_tokens = self.cache.shape().page_tokens;
        let most = &task.tokens[..task.tokens.len() - 1];
        let shared =
            |other: &Task| (other.id, common(most, &other.tokens) / page_tokens * page_tokens);
        // Who is more urgent does not wait for those who get fewer rows.
        let others = self.running.iter().filter(|other| other.priority >= task.priority);
        let computing = others.filter(|other| self.lacks(other, shared(other).1)).map(shared);
        let (leader, len) = computing.max_by_key(|(_, len)| *len)?;
        let kept = task.session.map_or(0, |session| self.sessions.common(session, most));
        (len > kept && len > self.cache.lookup(most).len()).then_some((leader, len))
    }

    /// Whether the pages of a request are at hand as far as they will be: asks for those that lie
    /// in the file, where requests before it, which want `ahead` pages, leave room for that.
    fn is_fetched(&mut self, index: usize, ahead: usize) -> bool {
        let task = &self.queue[index];
        if self.cache_options.cold.is_none() || task.hold.fetch == Fetch::Done {
            return true;
        }
        let found = self.cache.lookup(&task.tokens);
        let waits = match task.hold.fetch {
            Fetch::Unknown => self.reads_are_taken(ahead),
            Fetch::Asked { .. } => self.cache.is_fetching(),
            Fetch::Done => false,
        };
        // What comes for others is no reason to wait for once its own are here.
        if waits && self.cache.missing(&found) > 0 {
            return false;
        }
        !self.ask(index, &found)
    }

    /// Asks for the pages of a request that lie in the file; whether they are worth waiting for. As
    /// it does so again only while fewer are missing, or a few times in vain, that ends.
    fn ask(&mut self, index: usize, found: &Match) -> bool {
        // Where nothing is on its way, the queue takes some of them for certain.
        let most = if self.cache.is_fetching() { CHANCES } else { 0 };
        let now = self.cache.prefetch(found);
        let comes = now > 0 && self.cache.is_fetching();
        let fetch = &mut self.queue[index].hold.fetch;
        *fetch = match *fetch {
            _ if !comes => Fetch::Done,
            Fetch::Unknown | Fetch::Done => Fetch::Asked { missing: now, chances: most },
            Fetch::Asked { missing, .. } if now < missing => {
                Fetch::Asked { missing: now, chances: 0 }
            }
            Fetch::Asked { missing, chances } => match chances.checked_sub(1) {
                Some(left) => Fetch::Asked { missing, chances: left.min(most) },
                None => Fetch::Done,
            },
        };
        *fetch != Fetch::Done
    }
}
