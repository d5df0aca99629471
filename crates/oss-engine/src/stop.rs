//! Stop texts: found across tokens, never shown in part.

/// Holds text back while it may be the beginning of a stop text.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stopper {
    stops: Vec<String>,
    held: String,
}

impl Stopper {
    /// Empty stop texts are none.
    pub(crate) fn new(stops: Vec<String>) -> Self {
        let stops = stops.into_iter().filter(|stop| !stop.is_empty()).collect();
        Self { stops, held: String::new() }
    }

    /// Takes text; gives what may be shown, and whether a stop text came right after it.
    pub(crate) fn push(&mut self, text: &str) -> (String, bool) {
        if self.stops.is_empty() {
            return (text.to_owned(), false);
        }
        self.held.push_str(text);
        let found = self.stops.iter().filter_map(|stop| self.held.find(stop.as_str())).min();
        if let Some(at) = found {
            self.held.truncate(at);
            return (std::mem::take(&mut self.held), true);
        }
        let keep = self.stops.iter().map(|stop| overlap(&self.held, stop)).max().unwrap_or(0);
        let kept = self.held.split_off(self.held.len() - keep);
        (std::mem::replace(&mut self.held, kept), false)
    }

    /// No more text comes: what was held back was no stop text.
    pub(crate) fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

/// Bytes of the longest end of `text` that `stop` begins with.
fn overlap(text: &str, stop: &str) -> usize {
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
        let mut stopper = Stopper::new(stops.iter().map(|s| (*s).to_owned()).collect());
        let mut all = String::new();
        for piece in pieces {
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
    fn nothing_is_held_back_longer_than_needed() {
        let mut stopper = Stopper::new(vec!["END".into()]);
        assert_eq!(stopper.push("abE"), ("ab".into(), false));
        assert_eq!(stopper.push("Q"), ("EQ".into(), false));
    }
}
