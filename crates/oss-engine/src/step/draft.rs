//! Prompt look-up: guesses how a text goes on from how it went on before.
//!
//! A [`Drafter`] finds the longest earlier place at which the text reads as it ends now, as the
//! match finder of a Lempel-Ziv compressor does, and proposes what followed there. It costs no
//! model, and is right where answers repeat their prompt or themselves: quotes, code, lists.
//!
//! Each token that comes is held against what would have been proposed, whether it was or not; so
//! how often guesses come true is measured before any is paid for.

use std::collections::HashMap;

/// Places with the same last two tokens that are compared, the latest first.
const CANDIDATES: usize = 16;
/// Tokens before a place that are compared.
const LONGEST: usize = 16;
/// Guesses after so many equal tokens, or more, are counted together.
const CLASSES: [usize; 4] = [2, 3, 4, 8];
/// How often guesses of each class are taken to come true before any has been seen.
const EXPECTED: [f64; CLASSES.len()] = [0.1, 0.2, 0.4, 0.6];
/// The weight of the newest guess.
const NEWEST: f64 = 0.125;

/// An earlier place at which the text read as it ends now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Match {
    /// The index of the token that followed there.
    at: usize,
    /// How many tokens before it are equal to the last ones.
    len: usize,
}

/// Guesses the next tokens of one text. It keeps no tokens: each call gets the text.
#[derive(Clone, Debug)]
pub(crate) struct Drafter {
    /// The last place after each pair of tokens.
    latest: HashMap<[u32; 2], u32>,
    /// For each place, the one before it after the same pair; 0: none.
    earlier: Vec<u32>,
    found: Option<Match>,
    /// How often guesses of each class come true.
    rates: [f64; CLASSES.len()],
}

impl Drafter {
    /// Reads the text so far.
    pub(crate) fn new(text: &[u32]) -> Self {
        let mut drafter = Self {
            latest: HashMap::with_capacity(text.len()),
            earlier: Vec::with_capacity(text.len() + 1),
            found: None,
            rates: EXPECTED,
        };
        (0..=text.len()).for_each(|place| drafter.enter(&text[..place]));
        drafter.found = drafter.search(text);
        drafter
    }

    /// `text` has one more token than at the last call.
    pub(crate) fn push(&mut self, text: &[u32]) {
        let expected = self.earlier.len();
        assert_eq!(text.len(), expected, "tokens: got {}, expected {expected}", text.len());
        self.enter(text);
        let before = self.found.take();
        if let Some(Match { at, len }) = before {
            let came_true = text[at] == text[text.len() - 1];
            let rate = &mut self.rates[class(len)];
            *rate += NEWEST * (f64::from(u8::from(came_true)) - *rate);
            self.found = came_true.then_some(Match { at: at + 1, len: len + 1 });
        }
        self.found = self.found.or_else(|| self.search(text));
    }

    /// The guess at the token `ahead` places after the end; none without an earlier place.
    pub(crate) fn guess(&self, text: &[u32], ahead: usize) -> Option<u32> {
        // Beyond the end the guesses go on from themselves: a text that repeats itself goes on so.
        self.found.map(|Match { at, .. }| text[at + ahead % (text.len() - at)])
    }

    /// How probable it is that the guesses at all tokens up to `ahead` come true.
    pub(crate) fn confidence(&self, ahead: usize) -> f64 {
        let Some(Match { len, .. }) = self.found else { return 0.0 };
        (len..=len + ahead).map(|len| self.rates[class(len)]).product()
    }

    /// Makes the place after `text` findable.
    fn enter(&mut self, text: &[u32]) {
        let place = text.len() as u32;
        let before = text.last_chunk().and_then(|pair: &[u32; 2]| self.latest.insert(*pair, place));
        self.earlier.push(before.unwrap_or(0));
    }

    /// The earlier place with the most equal tokens before it, the latest among equals.
    fn search(&self, text: &[u32]) -> Option<Match> {
        let mut best: Option<Match> = None;
        let mut at = self.earlier[text.len()] as usize;
        for _ in 0..CANDIDATES {
            if at == 0 {
                break;
            }
            let pairs = text[..at].iter().rev().zip(text.iter().rev());
            let len = pairs.take(LONGEST).take_while(|(a, b)| a == b).count();
            if best.is_none_or(|best| best.len < len) {
                best = Some(Match { at, len });
            }
            at = self.earlier[at] as usize;
        }
        best
    }
}

/// The class of guesses after `len` equal tokens.
fn class(len: usize) -> usize {
    CLASSES.iter().rposition(|least| *least <= len).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guesses(text: &[u32], n: usize) -> Vec<Option<u32>> {
        let drafter = Drafter::new(text);
        (0..n).map(|ahead| drafter.guess(text, ahead)).collect()
    }

    #[test]
    fn a_text_without_repetition_gives_no_guess() {
        for text in [&[][..], &[1], &[1, 2], &[1, 2, 3, 4], &[1, 2, 1]] {
            assert_eq!(guesses(text, 1), [None], "{text:?}");
            assert_eq!(Drafter::new(text).confidence(0), 0.0);
        }
    }

    #[test]
    fn the_longest_earlier_place_is_followed_and_the_latest_among_equals() {
        let text = [7, 1, 2, 3, 9, 1, 2, 4, 8, 1, 2, 5, 7, 1, 2];
        assert_eq!(guesses(&text, 2), [Some(3), Some(9)]);
        assert_eq!(guesses(&text[1..], 1), [Some(5)]);
    }

    #[test]
    fn a_text_that_repeats_itself_is_continued_beyond_its_end() {
        assert_eq!(guesses(&[5, 5, 5], 3), [Some(5); 3]);
        let expected = [1, 2, 3, 1, 2, 3, 1].map(Some);
        assert_eq!(guesses(&[1, 2, 3, 1, 2, 3], 7), expected);
    }

    #[test]
    fn text_that_comes_token_by_token_gives_the_guesses_of_the_whole() {
        let text: Vec<u32> = (0..200_u32).map(|i| i * i % 7 % 5).collect();
        let mut drafter = Drafter::new(&text[..1]);
        for len in 2..=text.len() {
            drafter.push(&text[..len]);
            let whole = Drafter::new(&text[..len]);
            assert_eq!(drafter.earlier, whole.earlier);
            if let Some(Match { at, len: equal }) = drafter.found {
                let equal = equal.min(LONGEST);
                assert_eq!(text[at - equal..at], text[len - equal..len], "after {len} tokens");
            }
            assert_eq!(drafter.found.is_some(), whole.found.is_some(), "after {len} tokens");
        }
    }

    #[test]
    fn confidence_follows_what_came_true() {
        let copied: Vec<u32> = (0..60).map(|i| i % 20).collect();
        let mut drafter = Drafter::new(&copied[..22]);
        let before = drafter.confidence(0);
        (23..=60).for_each(|len| drafter.push(&copied[..len]));
        assert!(drafter.confidence(0) > 0.9 && before <= EXPECTED[0], "{drafter:?}");
        assert!(drafter.confidence(3) < drafter.confidence(0));
        let mut wrong = copied;
        for i in 0..60 {
            wrong.extend([0, 1]);
            wrong.push(100 + i);
            (wrong.len() - 2..=wrong.len()).for_each(|len| drafter.push(&wrong[..len]));
        }
        assert!(drafter.rates[0] < 0.05, "{:?}", drafter.rates);
    }
}
