//! How varied the generated text is.

use std::collections::HashMap;

/// The longest n-gram that is counted.
const LONGEST: usize = 3;
/// Fills the unused places of a shorter n-gram; no token has this id.
const NOTHING: u32 = u32::MAX;

/// The diversity of what one sampler has generated so far (the prompt is not counted).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Report {
    /// Tokens generated.
    pub tokens: usize,
    /// distinct-1, distinct-2 and distinct-3: different n-grams over all n-grams (Li and others
    /// 2016), in [0, 1]; 1 when nothing repeats, also when there are no n-grams yet.
    pub distinct: [f64; LONGEST],
    /// The entropy of the generated tokens' frequencies, in nats; at most `ln(tokens)`.
    pub entropy: f64,
}

/// Counts of n-grams, kept while tokens come.
#[derive(Clone, Debug, Default)]
pub(crate) struct Diversity {
    grams: HashMap<[u32; LONGEST], u32>,
    distinct: [usize; LONGEST],
}

impl Diversity {
    /// Makes room for `tokens` more tokens.
    pub(crate) fn reserve(&mut self, tokens: usize) {
        self.grams.reserve(tokens * LONGEST);
    }

    /// Counts the n-grams that end with the last token.
    pub(crate) fn push(&mut self, generated: &[u32]) {
        for n in 1..=LONGEST.min(generated.len()) {
            let count = self.grams.entry(last(generated, n)).or_insert(0);
            *count += 1;
            self.distinct[n - 1] += usize::from(*count == 1);
        }
    }

    pub(crate) fn report(&self, tokens: usize) -> Report {
        let ratio = |n: usize| match tokens.saturating_sub(n) {
            0 => 1.0,
            grams => self.distinct[n] as f64 / grams as f64,
        };
        let mut counts: Vec<u32> =
            self.grams.iter().filter(|(gram, _)| gram[1] == NOTHING).map(|(_, &c)| c).collect();
        // In a fixed order, so that the sum is the same each time.
        counts.sort_unstable();
        let total = tokens as f64;
        let surprise = |&count: &u32| {
            let p = f64::from(count) / total;
            -p * p.ln()
        };
        let entropy = counts.iter().map(surprise).sum::<f64>().max(0.0);
        Report { tokens, distinct: std::array::from_fn(ratio), entropy }
    }
}

fn last(tokens: &[u32], n: usize) -> [u32; LONGEST] {
    let mut gram = [NOTHING; LONGEST];
    gram[..n].copy_from_slice(&tokens[tokens.len() - n..]);
    gram
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(tokens: &[u32]) -> Diversity {
        let mut diversity = Diversity::default();
        (1..=tokens.len()).for_each(|len| diversity.push(&tokens[..len]));
        diversity
    }

    #[test]
    fn a_text_without_repetition_is_all_distinct() {
        let report = of(&[1, 2, 3, 4]).report(4);
        assert_eq!(report.distinct, [1.0; 3]);
        assert!((report.entropy - 4f64.ln()).abs() < 1e-15);
    }

    #[test]
    fn repetition_lowers_distinct_n_and_entropy() {
        let report = of(&[1, 2, 1, 2, 1, 2]).report(6);
        assert_eq!(report.distinct, [2.0 / 6.0, 2.0 / 5.0, 2.0 / 4.0]);
        assert!((report.entropy - 2f64.ln()).abs() < 1e-15);
        assert_eq!(of(&[5; 9]).report(9).entropy, 0.0);
    }

    #[test]
    fn an_empty_text_and_one_of_a_token_have_a_report() {
        assert_eq!(of(&[]).report(0), Report { tokens: 0, distinct: [1.0; 3], entropy: 0.0 });
        assert_eq!(of(&[7]).report(1), Report { tokens: 1, distinct: [1.0; 3], entropy: 0.0 });
    }
}
