//! Stop texts: found across tokens, never shown in part.

/// Holds text back while it may be the beginning of a stop text.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stopper {
    stops: Vec<String>,
    /// A stop text counts that is complete after so many tokens.
    after: usize,
    /// Tokens that have come.
    tokens: usize,
    held: String,
    /// Bytes of `held` that came with tokens before those that count.
    spent: usize,
}

impl Stopper {
    /// Stops at texts that are complete after the first `after` tokens. Empty ones are none.
    pub(crate) fn new(stops: Vec<String>, after: usize) -> Self {
        let stops = stops.into_iter().filter(|stop| !stop.is_empty()).collect();
        Self { stops, after, ..Self::default() }
    }

    /// What comes next is of one more token.
    pub(crate) fn token(&mut self) {
        self.tokens += 1;
    }

    /// Takes text; gives what may be shown, and whether a stop text came right after it.
    pub(crate) fn push(&mut self, text: &str) -> (String, bool) {
        if self.stops.is_empty() {
            return (text.to_owned(), false);
        }
        self.held.push_str(text);
        if self.tokens <= self.after {
            self.spent = self.held.len();
        }
        if let Some(at) = self.stops.iter().filter_map(|stop| self.find(stop)).min() {
            self.held.truncate(at);
            return (std::mem::take(&mut self.held), true);
        }
        let keep = self.stops.iter().map(|stop| overlap(&self.held, stop)).max().unwrap_or(0);
        let kept = self.held.split_off(self.held.len() - keep);
        let shown = std::mem::replace(&mut self.held, kept);
        self.spent = self.spent.saturating_sub(shown.len());
        (shown, false)
    }

    /// Where in `held` a stop text begins whose end is not spent.
    fn find(&self, stop: &str) -> Option<usize> {
        let first = (self.spent + 1).saturating_sub(stop.len());
        let first = (first..=self.held.len()).find(|at| self.held.is_char_boundary(*at))?;
        self.held[first..].find(stop).map(|at| first + at)
    }

    /// No more text comes: what was held back was no stop text.
    pub(crate) fn finish(&mut self) -> String {
        self.spent = 0;
        std::mem::take(&mut self.held)
    }
}

/// Bytes of the longest end of `text` that `stop` begins with.
pub(crate) fn overlap(text: &str, stop: &str) -> usize {
    let most = text.len().min(stop.len() - 1);
    let fits = |&n: &usize| {
        text.is_char_boundary(text.len() - n)
            && stop.as_bytes().starts_with(&text.as_bytes()[text.len() - n..])
    };
    (1..=most).rev().find(fits).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is shown of a text that comes in pieces, and whether it was stopped.
    fn shown(stops: &[&str], pieces: &[&str]) -> (String, bool) {
        shown_after(0, stops, pieces)
    }

    /// The same, of stop texts that count after so many pieces.
    fn shown_after(after: usize, stops: &[&str], pieces: &[&str]) -> (String, bool) {
        let mut stopper = Stopper::new(stops.iter().map(|s| (*s).to_owned()).collect(), after);
        let mut all = String::new();
        for piece in pieces {
            stopper.token();
            let (text, stopped) = stopper.push(piece);
            all += &text;
            if stopped {
                return (all, true);
            }
        }
        all += &stopper.finish();
        (all, false)
    }

    #[test]
    fn a_stop_text_across_pieces_is_found_and_not_shown() {
        assert_eq!(shown(&["END"], &["ab", "cE", "N", "D", "ef"]), ("abc".into(), true));
        assert_eq!(shown(&["aab"], &["a", "a", "a", "b"]), ("a".into(), true));
    }

    #[test]
    fn what_only_began_like_a_stop_text_is_shown() {
        assert_eq!(shown(&["END"], &["abE", "Nx", "E"]), ("abENxE".into(), false));
        assert_eq!(shown(&[""], &["abc"]), ("abc".into(), false));
    }

    #[test]
    fn the_earliest_of_several_stop_texts_counts() {
        assert_eq!(shown(&["y", "xy"], &["a", "x", "y"]), ("a".into(), true));
        assert_eq!(shown(&["ü!", "é"], &["aü", "b", "é"]), ("aüb".into(), true));
    }

    #[test]
    fn a_stop_text_counts_that_is_complete_after_enough_tokens() {
        assert_eq!(shown_after(2, &["b"], &["ab", "b", "c", "bd"]), ("abbc".into(), true));
        assert_eq!(shown_after(2, &["END"], &["aEND", "E", "ND"]), ("aEND".into(), true));
        assert_eq!(shown_after(3, &["END"], &["aEND", "E", "ND"]), ("aENDEND".into(), false));
        let stops = ["\n", "\nUser:"];
        assert_eq!(shown_after(2, &stops, &["a", "\n", "b", "\n"]), ("a\nb".into(), true));
        assert_eq!(shown_after(2, &stops, &["a", "\n", "User", ":"]), ("a".into(), true));
        assert_eq!(shown_after(1, &["é!", "éa"], &["é", "!"]), (String::new(), true));
    }

    #[test]
    fn what_was_spent_of_one_message_is_none_of_the_next() {
        let mut stopper = Stopper::new(vec!["END".into(), "b".into()], 1);
        stopper.token();
        assert_eq!(stopper.push("aEN"), ("a".into(), false));
        assert_eq!(stopper.finish(), "EN");
        stopper.token();
        assert_eq!(stopper.push("b"), (String::new(), true));
    }

    #[test]
    fn nothing_is_held_back_longer_than_needed() {
        let mut stopper = Stopper::new(vec!["END".into()], 0);
        stopper.token();
        assert_eq!(stopper.push("abE"), ("ab".into(), false));
        assert_eq!(stopper.push("Q"), ("EQ".into(), false));
    }
}
