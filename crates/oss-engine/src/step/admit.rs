//! From the queue to the cache, and back when pages run out.

use std::sync::atomic::Ordering;

use oss_cache::SequenceId;

use crate::budget::ALWAYS_ROWS;
use crate::step::hold::Hold;
use crate::step::{Scheduler, Task, common};

/// Room for an answer's first tokens, so that it does not lose its pages at once.
const HEADROOM: usize = 32;

impl Scheduler {
    /// Admits what waits, in order of priority and age, while there is room: in one turn no more
    /// than may run, as a prompt whose logits are known may be answered at once. Whether any was.
    pub(crate) fn admit(&mut self) -> bool {
        self.cache.poll();
        self.fetch_ahead();
        let mut admitted = 0;
        while admitted < self.sequence_limit()
            && self.has_place()
            && let Some(next) = self.next_waiting()
        {
            let mut task = self.queue.remove(next);
            let before = self.cache.stats();
            let (cached, has_room) = self.give_sequence_and_room(&mut task);
            task.back.add(&before, &self.cache.stats());
            if !has_room && !self.running.is_empty() {
                self.give_back(&mut task, cached);
                self.queue.push(task);
                break;
            }
            if !task.was_admitted() {
                self.waiting.fetch_sub(1, Ordering::AcqRel);
                let [asked, known] =
                    [task.tokens.len(), cached].map(|len| self.cache.pages_to_resume(len));
                self.recorder.lock().tiers.count(asked, known, task.back);
            }
            task.admitted(cached, &self.recorder);
            admitted += 1;
            self.pulse.fetch_add(1, Ordering::Relaxed);
            if let Some(task) = self.answer_repeat(task) {
                self.running.push(task);
            }
        }
        // Those that ran before: who submits counts the others, up to the queue's limit.
        let again = self.queue.iter().filter(|task| task.was_admitted()).count();
        self.recorder.lock().queued = again;
        admitted > 0
    }

    /// Whether one more sequence may run.
    fn has_place(&self) -> bool {
        let active = self.running.iter().filter(|task| task.producer.has_room()).count();
        active < self.sequence_limit()
    }

    /// Gives a task its sequence, and sees to room for the rest; returns how many tokens need not
    /// be computed, and whether there is room.
    fn give_sequence_and_room(&mut self, task: &mut Task) -> (usize, bool) {
        task.repeat = self.known_logits(task);
        let mut cached = self.give_sequence(task);
        loop {
            let (has_room, gave_up) = self.make_room_for(task);
            // What lies in lower tiers comes back to free pages: it may find some now.
            if !gave_up || !self.knows_more(task, cached) {
                return (cached, has_room);
            }
            self.take_sequence(task);
            cached = self.give_sequence(task);
        }
    }

    /// Whether a longer prefix of a task is known than the one that it was given.
    fn knows_more(&self, task: &Task, cached: usize) -> bool {
        let most = most_known(task);
        self.takes_over(task) && self.cache.lookup(&task.tokens[..most]).len() > cached
    }

    /// Gives a task its sequence: its session's, or a new one that begins with the longest prefix
    /// that the cache has; returns how many tokens need not be computed.
    fn give_sequence(&mut self, task: &mut Task) -> usize {
        let (sequence, len) = if task.needs_whole_prompt() {
            if let Some(session) = task.session {
                self.sessions.forget(session, &mut self.cache);
            }
            (self.cache.create(), 0)
        } else {
            self.known_prefix(task)
        };
        task.sequence = Some(sequence);
        len
    }

    fn known_prefix(&mut self, task: &Task) -> (SequenceId, usize) {
        let resume = |id| self.sessions.resume(id, &task.tokens, &mut self.cache);
        let resumed = task.session.and_then(resume);
        let most = most_known(task);
        let cache = &mut self.cache;
        let had = resumed.map_or(0, |(_, len)| len);
        let found = cache.lookup(&task.tokens[..most]);
        if !self.options.prefix_caching || found.len() <= had {
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

    /// Takes back a sequence of which the cache has so many tokens: a session keeps it, so that
    /// waiting alone loses nothing.
    fn give_back(&mut self, task: &mut Task, cached: usize) {
        task.repeat = None;
        match (task.session, task.sequence) {
            (Some(session), Some(sequence)) if cached > 0 && !task.was_admitted() => {
                task.sequence = None;
                self.sessions.keep(session, sequence, task.tokens[..cached].to_vec());
            }
            _ => self.take_sequence(task),
        }
    }

    fn take_sequence(&mut self, task: &mut Task) {
        if let Some(sequence) = task.sequence.take() {
            self.cache.remove(sequence);
        }
    }

    /// Whether the cache holds the task's tokens beside those that others still have to compute,
    /// and whether anything was given up for that: what sessions keep and what slow consumers hold
    /// up goes first, unless there were no room even so.
    fn make_room_for(&mut self, task: &Task) -> (bool, bool) {
        let Some(sequence) = task.sequence else { return (false, false) };
        let mut gave_up = false;
        loop {
            let others = self.running.iter().filter_map(|other| Some((other.sequence?, other)));
            let others = others.map(|(sequence, other)| (sequence, other.left(&self.cache)));
            let mut growing = vec![(sequence, task.left(&self.cache) + HEADROOM)];
            growing.extend(others);
            let rows = self.batching.max_batched_tokens.min(ALWAYS_ROWS);
            if self.cache.can_hold(&growing, rows).is_ok() {
                return (true, gave_up);
            }
            if !gave_up && self.least_bytes(task) > self.cache_limit() {
                return (false, false);
            }
            if !self.sessions.give_up_oldest(&mut self.cache) && !self.preempt_paused() {
                return (false, gave_up);
            }
            gave_up = true;
        }
    }

    /// Bytes that the pages of a task and of those that run and do not pause take at least. Pages
    /// that several may share, as their tokens are the same so far, count once.
    fn least_bytes(&self, task: &Task) -> usize {
        let (shape, page_tokens) = (self.cache.shape(), self.cache.shape().page_tokens);
        let active = self.running.iter().filter(|other| other.producer.has_room());
        let mut texts: Vec<(&[u32], usize)> =
            active.map(|other| (other.tokens.as_slice(), other.tokens.len())).collect();
        texts.push((&task.tokens, task.tokens.len() + HEADROOM));
        // Side by side are those that have most in common.
        texts.sort_unstable();
        let mut bytes = 0;
        let mut before: &[u32] = &[];
        for (tokens, len) in texts {
            let shared = common(before, tokens).div_ceil(page_tokens);
            let own = len.div_ceil(page_tokens) - shared;
            for (index, group) in shape.groups.iter().enumerate() {
                let window = group.window.map_or(own, |window| window.div_ceil(page_tokens));
                bytes += own.min(window) * self.cache.pages(index).page_bytes;
            }
            before = tokens;
        }
        bytes
    }

    /// Sends a sequence whose consumer is slow back to the queue.
    pub(crate) fn preempt_paused(&mut self) -> bool {
        let paused = self.running.iter().rposition(|task| !task.producer.has_room());
        let Some(index) = paused else { return false };
        self.preempt(index);
        true
    }

    /// Takes a running task's pages; it goes back to the queue, and later on from what the tiers
    /// have kept of them.
    pub(crate) fn preempt(&mut self, index: usize) {
        let mut task = self.running.remove(index);
        self.take_sequence(&mut task);
        task.hold = Hold::default();
        self.recorder.lock().preempted += 1;
        tracing::debug!(parent: &task.span, tokens = task.tokens.len(), "preempted");
        self.queue.push(task);
    }
}

/// How many of a task's tokens it may find computed: all but the last one, unless its logits are
/// known too.
fn most_known(task: &Task) -> usize {
    task.tokens.len() - usize::from(task.repeat.is_none())
}
