//! From the queue to the cache, and back when pages run out.

use std::cmp::Reverse;
use std::sync::atomic::Ordering;

use oss_cache::SequenceId;

use crate::step::{Scheduler, Task};

/// Room for an answer's first tokens, so that it does not lose its pages at once.
const HEADROOM: usize = 32;

impl Scheduler {
    /// Admits what waits, in order of priority and age, while there is room.
    pub(crate) fn admit(&mut self) {
        while let Some(next) = self.next_waiting() {
            let active = self.running.iter().filter(|task| task.producer.has_room()).count();
            if active >= self.options.max_sequences {
                return;
            }
            let mut task = self.queue.remove(next);
            let cached = self.give_sequence(&mut task);
            if !self.make_room_for(&task) && !self.running.is_empty() {
                self.take_sequence(&mut task);
                self.queue.push(task);
                return;
            }
            if !task.was_admitted() {
                self.waiting.fetch_sub(1, Ordering::AcqRel);
            }
            task.admitted(cached, &self.recorder);
            self.running.push(task);
        }
    }

    fn next_waiting(&self) -> Option<usize> {
        let order = |task: &Task| (Reverse(task.priority), task.id);
        // Who does not take what there is gets no more.
        let ready = |index: &usize| self.queue[*index].producer.has_room();
        let waiting = (0..self.queue.len()).filter(ready);
        waiting.min_by_key(|index| order(&self.queue[*index]))
    }

    /// Gives a task its sequence: its session's, or a new one that begins with the longest prefix
    /// that the cache has; returns how many tokens need not be computed.
    fn give_sequence(&mut self, task: &mut Task) -> usize {
        let (sequence, len) = if task.needs_whole_prompt() {
            (self.cache.create(), 0)
        } else {
            self.known_prefix(task)
        };
        task.sequence = Some(sequence);
        len
    }

    fn known_prefix(&mut self, task: &Task) -> (SequenceId, usize) {
        let cache = &mut self.cache;
        let session = task.session;
        let resumed = session.and_then(|id| self.sessions.resume(id, &task.tokens, cache));
        // The last token is always computed: its logits are wanted.
        let most = task.tokens.len() - 1;
        let had = resumed.map_or(0, |(_, len)| len);
        let found = cache.lookup(&task.tokens[..most]);
        if !self.options.reuse_prefixes || found.len() <= had {
            return resumed.unwrap_or_else(|| (cache.create(), 0));
        }
        if let Some((sequence, _)) = resumed {
            cache.remove(sequence);
        }
        let sequence = cache.create();
        // A sequence that was just made is known and empty.
        let len = cache.adopt(sequence, &found, most).unwrap_or(0);
        (sequence, len)
    }

    fn take_sequence(&mut self, task: &mut Task) {
        if let Some(sequence) = task.sequence.take() {
            self.cache.remove(sequence);
        }
    }

    /// Whether the cache holds the task's tokens beside those that others still have to compute;
    /// what sessions keep and what slow consumers hold up goes first.
    fn make_room_for(&mut self, task: &Task) -> bool {
        let Some(sequence) = task.sequence else { return false };
        loop {
            let promised: usize = self.running.iter().map(|other| other.left(&self.cache)).sum();
            let wanted = task.left(&self.cache) + promised + HEADROOM;
            if self.cache.can_reserve(sequence, wanted).is_ok() {
                return true;
            }
            if !self.sessions.give_up_oldest(&mut self.cache) && !self.preempt_paused() {
                return false;
            }
        }
    }

    /// Sends a sequence whose consumer is slow back to the queue.
    fn preempt_paused(&mut self) -> bool {
        let paused = self.running.iter().rposition(|task| !task.producer.has_room());
        let Some(index) = paused else { return false };
        self.preempt(index);
        true
    }

    /// Takes a running task's pages; it goes back to the queue and is computed anew later.
    pub(crate) fn preempt(&mut self, index: usize) {
        let mut task = self.running.remove(index);
        self.take_sequence(&mut task);
        self.recorder.lock().preempted += 1;
        tracing::debug!(parent: &task.span, tokens = task.tokens.len(), "preempted");
        self.queue.push(task);
    }
}
