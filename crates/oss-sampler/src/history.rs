//! The tokens so far, and how often each occurs in the penalties' window.

use std::collections::HashMap;

/// How often a token occurs in the window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Count {
    /// In prompt and generated tokens.
    pub(crate) all: u32,
    /// In generated tokens alone.
    pub(crate) generated: u32,
}

/// Prompt and generated tokens. The counts are a function of the tokens and the window alone.
#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    tokens: Vec<u32>,
    prompt_len: usize,
    /// How many of the last tokens are counted, 0 is all; `None` counts nothing.
    window: Option<usize>,
    counts: HashMap<u32, Count>,
}

impl History {
    pub(crate) fn new(window: Option<usize>) -> History {
        History { window, ..History::default() }
    }

    /// Makes room, so that the next `tokens` tokens need no allocation.
    pub(crate) fn reserve(&mut self, tokens: usize, vocabulary: usize) {
        self.tokens.reserve(tokens);
        match self.window {
            None => {}
            Some(0) => self.counts.reserve(tokens.min(vocabulary)),
            Some(window) => self.counts.reserve(tokens.min(window + 1).min(vocabulary)),
        }
    }

    pub(crate) fn prompt(&mut self, ids: &[u32]) {
        for &id in ids {
            self.prompt_len += 1;
            self.push(id);
        }
    }

    /// Appends a token: generated, unless it lies within the prompt's length.
    pub(crate) fn push(&mut self, id: u32) {
        self.tokens.push(id);
        let Some(window) = self.window else { return };
        self.count(self.tokens.len() - 1);
        if window > 0 && self.tokens.len() > window {
            self.uncount(self.tokens.len() - 1 - window);
        }
    }

    pub(crate) fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    pub(crate) fn generated(&self) -> &[u32] {
        &self.tokens[self.prompt_len..]
    }

    /// Each token of the window once, in no particular order.
    pub(crate) fn counts(&self) -> impl Iterator<Item = (u32, Count)> + '_ {
        self.counts.iter().map(|(&id, &count)| (id, count))
    }

    fn count(&mut self, index: usize) {
        let count = self.counts.entry(self.tokens[index]).or_default();
        count.all += 1;
        count.generated += u32::from(index >= self.prompt_len);
    }

    fn uncount(&mut self, index: usize) {
        let id = self.tokens[index];
        let count = self.counts.get_mut(&id).expect("a token of the window is counted");
        count.all -= 1;
        count.generated -= u32::from(index >= self.prompt_len);
        if count.all == 0 {
            self.counts.remove(&id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use oss_testing::Seeded;

    fn recount(history: &History) -> HashMap<u32, Count> {
        let len = history.tokens.len();
        let start = match history.window {
            Some(window @ 1..) => len.saturating_sub(window),
            _ => 0,
        };
        let mut counts: HashMap<u32, Count> = HashMap::new();
        for index in start..len {
            let count = counts.entry(history.tokens[index]).or_default();
            count.all += 1;
            count.generated += u32::from(index >= history.prompt_len);
        }
        counts
    }

    #[test]
    fn counts_equal_a_recount_of_the_window_after_every_token() {
        let mut seeded = Seeded::new(11);
        for window in [0, 1, 2, 7, 100] {
            let mut history = History::new(Some(window));
            history.prompt(&[1, 2, 1, 3, 1, 1]);
            for _ in 0..400 {
                history.push(seeded.below(5) as u32);
                assert_eq!(history.counts, recount(&history), "window {window}");
            }
        }
    }
}
