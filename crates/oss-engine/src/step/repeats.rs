//! The logits after whole prompts, so that a prompt that comes again needs no forward pass.

use std::collections::HashMap;
use std::sync::Arc;

use crate::error::Error;
use crate::step::run::{catch, finish_prompt, finish_row};
use crate::step::{Scheduler, Task};

/// Logits by prompt, the least recently used given up first.
pub(crate) struct Repeats {
    limit: usize,
    bytes: usize,
    clock: u64,
    entries: HashMap<u64, Entry>,
}

struct Entry {
    /// The whole prompt: the key alone proves nothing.
    tokens: Vec<u32>,
    logits: Arc<Vec<f32>>,
    used: u64,
}

impl Entry {
    fn bytes(&self) -> usize {
        4 * (self.tokens.len() + self.logits.len())
    }
}

impl Repeats {
    /// A store of at most `limit` bytes.
    pub(crate) fn new(limit: usize) -> Self {
        Self { limit, bytes: 0, clock: 0, entries: HashMap::new() }
    }

    /// Bytes of what is kept.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether such logits are kept at all: those that nobody could draw from are not.
    pub(crate) fn keeps(&self, tokens: &[u32], logits: &[f32]) -> bool {
        let is_drawable = |logit: &f32| *logit < f32::INFINITY;
        4 * (tokens.len() + logits.len()) <= self.limit && logits.iter().all(is_drawable)
    }

    /// The logits after a prompt, where they are known.
    pub(crate) fn get(&mut self, key: u64, tokens: &[u32]) -> Option<Arc<Vec<f32>>> {
        self.clock += 1;
        let entry = self.entries.get_mut(&key).filter(|entry| entry.tokens == tokens)?;
        entry.used = self.clock;
        Some(entry.logits.clone())
    }

    /// Keeps the logits after a prompt.
    pub(crate) fn keep(&mut self, key: u64, tokens: &[u32], logits: Vec<f32>) {
        if !self.keeps(tokens, &logits) {
            return;
        }
        self.clock += 1;
        let entry = Entry { tokens: tokens.to_vec(), logits: Arc::new(logits), used: self.clock };
        self.bytes += entry.bytes();
        if let Some(before) = self.entries.insert(key, entry) {
            self.bytes -= before.bytes();
        }
        while self.bytes > self.limit {
            let oldest = self.entries.iter().min_by_key(|(_, entry)| entry.used);
            let Some(key) = oldest.map(|(key, _)| *key) else { return };
            self.bytes -= self.entries.remove(&key).map_or(0, |entry| entry.bytes());
        }
    }

    /// Gives everything up.
    pub(crate) fn clear(&mut self) {
        self.entries.clear();
        self.bytes = 0;
    }
}

impl Scheduler {
    /// The logits after a task's whole prompt, where they are known and it can do with them.
    pub(crate) fn known_logits(&mut self, task: &Task) -> Option<Arc<Vec<f32>>> {
        if !self.takes_over(task) || task.drawn() > 0 {
            return None;
        }
        self.repeats.get(self.cache.prompt_key(&task.tokens), &task.tokens)
    }

    /// Draws the first token of a task whose whole prompt is known. Returns the task unless its
    /// answer is complete with that.
    pub(crate) fn answer_repeat(&mut self, mut task: Task) -> Option<Task> {
        let known = task.repeat.take().filter(|_| task.left(&self.cache) == 0);
        let Some(logits) = known else { return Some(task) };
        let logits = oss_memory::try_to_vec(&logits);
        let Self { cache, sessions, model, recorder, draw_scratch: scratch, .. } = self;
        finish_prompt(&mut task, cache, sessions);
        recorder.lock().repeated_prompts += 1;
        let position = task.prompt_len - 1;
        let drawn = logits.map_err(Error::from).and_then(|mut logits| {
            catch(|| finish_row(&mut task, position, &mut logits, (model.isa, recorder, scratch)))
        });
        if let Some(ending) = drawn.transpose() {
            self.end(task, ending);
            return None;
        }
        Some(task)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_is_believed_by_its_tokens() {
        let mut repeats = Repeats::new(1000);
        repeats.keep(7, &[1, 2], vec![0.5; 4]);
        assert_eq!(repeats.get(7, &[1, 2]).as_deref(), Some(&vec![0.5; 4]));
        assert_eq!(repeats.get(7, &[1, 3]), None);
        assert_eq!(repeats.get(8, &[1, 2]), None);
        assert_eq!(repeats.bytes(), 24);
    }

    #[test]
    fn the_limit_is_kept_by_giving_up_what_was_used_least_lately() {
        let mut repeats = Repeats::new(100);
        for key in 0..4 {
            repeats.keep(key, &[key as u32], vec![key as f32; 7]);
            repeats.get(0, &[0]);
        }
        assert_eq!(repeats.bytes(), 96);
        let known: Vec<u64> =
            (0..4).filter(|key| repeats.get(*key, &[*key as u32]).is_some()).collect();
        assert_eq!(known, [0, 2, 3]);
        repeats.keep(3, &[3], vec![1.0; 7]);
        assert_eq!(repeats.bytes(), 96);
        repeats.keep(9, &[9], vec![0.0; 25]);
        assert!(repeats.get(9, &[9]).is_none(), "larger than the store");
        for logit in [f32::NAN, f32::INFINITY] {
            repeats.keep(9, &[9], vec![0.0, logit]);
            assert!(repeats.get(9, &[9]).is_none(), "{logit}");
        }
        repeats.keep(9, &[9], vec![0.0, f32::NEG_INFINITY]);
        assert!(repeats.get(9, &[9]).is_some(), "a token that is never drawn");
        repeats.clear();
        assert_eq!((repeats.bytes(), repeats.get(0, &[0])), (0, None));
    }
}
