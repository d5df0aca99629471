//! How varied the generated text is.

use std::collections::{HashMap, HashSet};

/// The longest n-gram that is counted.
const LONGEST: usize = 3;

/// How diverse some generated tokens are ([`Report::of`]).
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

impl Report {
    /// The diversity of these tokens: generated ones alone, without their prompt.
    #[must_use]
    pub fn of(tokens: &[u32]) -> Report {
        let distinct = |index: usize| match tokens.len().saturating_sub(index) {
            0 => 1.0,
            all => tokens.windows(index + 1).collect::<HashSet<_>>().len() as f64 / all as f64,
        };
        let mut counts: HashMap<u32, u32> = HashMap::new();
        tokens.iter().for_each(|token| *counts.entry(*token).or_insert(0) += 1);
        let mut counts: Vec<u32> = counts.into_values().collect();
        // In a fixed order, so that the sum is the same each time.
        counts.sort_unstable();
        let total = tokens.len() as f64;
        let surprise = |&count: &u32| {
            let p = f64::from(count) / total;
            -p * p.ln()
        };
        let entropy = counts.iter().map(surprise).sum::<f64>().max(0.0);
        Report { tokens: tokens.len(), distinct: std::array::from_fn(distinct), entropy }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_without_repetition_is_all_distinct() {
        let report = Report::of(&[1, 2, 3, 4]);
        assert_eq!(report.distinct, [1.0; 3]);
        assert!((report.entropy - 4f64.ln()).abs() < 1e-15);
    }

    #[test]
    fn repetition_lowers_distinct_n_and_entropy() {
        let report = Report::of(&[1, 2, 1, 2, 1, 2]);
        assert_eq!(report.distinct, [2.0 / 6.0, 2.0 / 5.0, 2.0 / 4.0]);
        assert!((report.entropy - 2f64.ln()).abs() < 1e-15);
        assert_eq!(Report::of(&[5; 9]).entropy, 0.0);
    }

    #[test]
    fn an_empty_text_and_one_of_a_token_have_a_report() {
        assert_eq!(Report::of(&[]), Report { tokens: 0, distinct: [1.0; 3], entropy: 0.0 });
        assert_eq!(Report::of(&[7]), Report { tokens: 1, distinct: [1.0; 3], entropy: 0.0 });
    }
}
