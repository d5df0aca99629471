//! Requests that had better wait a moment: for pages on their way from the file, or for another
//! request that is computing the same prefix.

use std::cmp::Reverse;

use crate::step::{Scheduler, Task};

/// Requests at the head of the queue whose pages are fetched before there is room for them; those
/// of others, when they could be admitted before these.
const LOOK_AHEAD: usize = 4;

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
    /// They are on their way; so many were missing before.
    Asked(usize),
    /// They are here, or do not come.
    Done,
}

impl Scheduler {
    /// Which request leaves the queue next, by priority and age: none that waits for pages.
    pub(crate) fn next_waiting(&mut self) -> Option<usize> {
        self.in_order().into_iter().find(|&index| !self.is_held(index))
    }

    /// Asks for the pages of those who will be next.
    pub(crate) fn fetch_ahead(&mut self) {
        if self.cache_options.cold.is_none() {
            return;
        }
        for index in self.in_order().into_iter().take(LOOK_AHEAD) {
            if self.queue[index].hold.fetch == Fetch::Unknown {
                self.is_fetched(index);
            }
        }
    }

    /// Those who wait and take what there is, the next one first.
    fn in_order(&self) -> Vec<usize> {
        let ready = |index: &usize| self.queue[*index].producer.has_room();
        let mut order: Vec<usize> = (0..self.queue.len()).filter(ready).collect();
        order.sort_by_key(|&index| (Reverse(self.queue[index].priority), self.queue[index].id));
        order
    }

    fn is_held(&mut self, index: usize) -> bool {
        let task = &self.queue[index];
        if !self.options.reuse_prefixes || task.needs_whole_prompt() {
            return false;
        }
        self.is_behind(index) || !self.is_fetched(index)
    }

    /// Whether a running task is still computing what this one can take over from it.
    fn is_behind(&mut self, index: usize) -> bool {
        let task = &self.queue[index];
        if let Some((leader, shared)) = task.hold.leader
            && self.running.iter().any(|other| other.id == leader && self.lacks(other, shared))
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
        let shared = |other: &Task| {
            let pairs = most.iter().zip(&other.tokens);
            let common = pairs.take_while(|(a, b)| a == b).count();
            (other.id, common / page_tokens * page_tokens)
        };
        // Who is more urgent does not wait for those who get fewer rows.
        let others = self.running.iter().filter(|other| other.priority >= task.priority);
        let computing = others.filter(|other| self.lacks(other, shared(other).1)).map(shared);
        let (leader, len) = computing.max_by_key(|(_, len)| *len)?;
        let kept = task.session.map_or(0, |session| self.sessions.common(session, most));
        (len > kept && len > self.cache.lookup(most).len()).then_some((leader, len))
    }

    /// Whether the pages of a request are at hand as far as they will be: asks for those that lie
    /// in the file. As it asks again only while fewer are missing, it ends.
    fn is_fetched(&mut self, index: usize) -> bool {
        let task = &mut self.queue[index];
        if self.cache_options.cold.is_none() || task.hold.fetch == Fetch::Done {
            return true;
        }
        let found = self.cache.lookup(&task.tokens);
        let waits = matches!(task.hold.fetch, Fetch::Asked(_)) && self.cache.is_fetching();
        // What comes for others is no reason to wait for once its own are here.
        if waits && self.cache.missing(&found) > 0 {
            return false;
        }
        let missing = self.cache.prefetch(&found);
        let goes_on = match task.hold.fetch {
            Fetch::Unknown => missing > 0,
            Fetch::Asked(before) => missing > 0 && missing < before,
            Fetch::Done => false,
        };
        task.hold.fetch = if goes_on { Fetch::Asked(missing) } else { Fetch::Done };
        !goes_on
    }
}
