//! The tokens so far, and how often each occurs in the penalties' window.

use std::collections::HashMap;

/// How often a token occurs in the window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Count {
    /// In all that is counted.
    pub(crate) all: u32,
    /// In generated tokens alone.
    pub(crate) generated: u32,
}

/// Which tokens of the window are counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Counted {
    #[default]
    Nothing,
    /// Those that were generated.
    Generated,
    /// Those of the prompt, too.
    All,
}

/// Windows up to this length have their room from the start, twice over: a hash table that is never
/// half full clears the places of what has left it without asking for memory.
const ROOM: usize = 1024;

/// Prompt and generated tokens. The counts are a function of the tokens, the window and what is
/// counted alone.
#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    tokens: Vec<u32>,
    prompt_len: usize,
    counted: Counted,
    /// How many of the last tokens are looked at; 0 is all.
    window: usize,
    counts: HashMap<u32, Count>,
}

impl History {
    pub(crate) fn new(counted: Counted, window: usize) -> History {
        // One more than the window: a token comes before the oldest leaves.
        let room = match counted {
            Counted::Nothing => 0,
            _ => 2 * (window.min(ROOM) + 1),
        };
        History { counted, window, counts: HashMap::with_capacity(room), ..History::default() }
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
        let index = self.tokens.len() - 1;
        if self.is_counted(index) {
            let count = self.counts.entry(id).or_default();
            count.all += 1;
            count.generated += u32::from(index >= self.prompt_len);
        }
        if let (1.., Some(gone)) = (self.window, index.checked_sub(self.window))
            && self.is_counted(gone)
        {
            self.uncount(gone);
        }
    }

    pub(crate) fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// How many tokens were generated.
    pub(crate) fn generated(&self) -> usize {
        self.tokens.len() - self.prompt_len
    }

    /// Each token of the window once, in no particular order.
    pub(crate) fn counts(&self) -> impl Iterator<Item = (u32, Count)> + '_ {
        self.counts.iter().map(|(&id, &count)| (id, count))
    }

    /// Whether the token at that index is counted while it is in the window.
    fn is_counted(&self, index: usize) -> bool {
        match self.counted {
            Counted::Nothing => false,
            Counted::Generated => index >= self.prompt_len,
            Counted::All => true,
        }
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
            0 => 0,
            window => len.saturating_sub(window),
        };
        let start = match history.counted {
            Counted::Generated => start.max(history.prompt_len),
            _ => start,
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
        let cases = [0, 1, 2, 7, 100].map(|w| [(Counted::All, w), (Counted::Generated, w)]);
        for (counted, window) in cases.into_iter().flatten() {
            let mut history = History::new(counted, window);
            history.prompt(&[1, 2, 1, 3, 1, 1]);
            for _ in 0..400 {
                history.push(seeded.below(5) as u32);
                assert_eq!(history.counts, recount(&history), "{counted:?}, window {window}");
            }
        }
    }

    #[test]
    fn a_prompt_that_no_penalty_looks_at_is_not_counted() {
        for (counted, expected) in
            [(Counted::Nothing, 0), (Counted::Generated, 0), (Counted::All, 3)]
        {
            let mut history = History::new(counted, 0);
            history.prompt(&[1, 2, 1, 3]);
            assert_eq!(history.counts.len(), expected, "{counted:?}");
        }
    }
}
