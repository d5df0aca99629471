//! How often each expert is needed.

use std::ops::Range;

/// Rows after which a recent count has lost two thirds of its weight.
const RECENT: f32 = 256.0;
/// The same for what lasts, and is kept from run to run.
const LASTING: f32 = 16_384.0;
/// The weight that an earlier run's counts have beside those of this one, so that old habits fade.
const EARLIER: f32 = 0.5;

/// How often rows of a layer were sent to each of its experts: what an engine may keep for the next
/// one with the same model. It changes how long steps take, never what they give.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Popularity {
    /// Rows of the layer, old ones fading.
    pub rows: f32,
    /// Those of them that were sent to each expert.
    pub sent: Vec<f32>,
}

impl Popularity {
    /// Whether it may be one of so many experts.
    pub(crate) fn is_sound(&self, experts: usize) -> bool {
        let Self { rows, sent } = self;
        let is_within = |sent: &f32| (0.0..=*rows).contains(sent);
        let is_count = rows.is_finite() && *rows >= 0.0;
        is_count && sent.len() == experts && sent.iter().all(is_within)
    }
}

/// What was counted of one expert.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    /// The share of recent rows that were sent to it.
    recent: f32,
    /// As of [`Popularity`].
    rows: f32,
    sent: f32,
}

/// The chance of each expert that a row of its layer is sent to it: half of it by recent rows, half
/// by all that were counted, those of earlier runs too.
#[derive(Debug)]
pub(super) struct Frequency {
    counts: Vec<Count>,
}

impl Frequency {
    pub(super) fn new(experts: usize) -> Self {
        Self { counts: vec![Count::default(); experts] }
    }

    /// Begins with what an earlier run has counted of a layer, whose experts have the numbers
    /// `layer`.
    pub(super) fn begin_with(&mut self, layer: Range<usize>, popularity: &Popularity) {
        let weight = EARLIER.min(LASTING / popularity.rows);
        let rows = weight * popularity.rows;
        let seen = 1.0 - (-rows / RECENT).exp();
        for (count, sent) in self.counts[layer].iter_mut().zip(&popularity.sent) {
            let recent = seen * sent / popularity.rows.max(1.0);
            *count = Count { recent, rows, sent: weight * sent };
        }
    }

    /// What was counted of a layer, for a later run.
    pub(super) fn popularity(&self, layer: Range<usize>) -> Popularity {
        let counts = &self.counts[layer];
        let rows = counts.first().map_or(0.0, |count| count.rows);
        // Many small numbers may add up to a little more.
        Popularity { rows, sent: counts.iter().map(|count| count.sent.min(rows)).collect() }
    }

    /// Counts the choices of so many rows of a layer, whose experts have the numbers `layer`.
    pub(super) fn observe(&mut self, layer: Range<usize>, choices: &[u32], rows: usize) {
        let (counts, rows) = (&mut self.counts[layer], rows as f32);
        let [recent, lasting] = [RECENT, LASTING].map(|memory| (-rows / memory).exp());
        for count in &mut *counts {
            count.recent *= recent;
            count.rows = lasting * count.rows + rows;
            count.sent *= lasting;
        }
        let each = (1.0 - recent) / rows.max(1.0);
        for expert in choices {
            let count = &mut counts[*expert as usize];
            count.recent += each;
            count.sent += 1.0;
        }
    }

    pub(super) fn chance(&self, expert: usize) -> f32 {
        let Count { recent, rows, sent } = self.counts[expert];
        (recent + sent / rows.max(1.0)) / 2.0
    }

    /// The experts that rows were sent to, the most popular first.
    pub(super) fn popular(&self) -> Vec<usize> {
        let ids = 0..self.counts.len();
        let mut popular: Vec<_> = ids.filter(|id| self.chance(*id) > 0.0).collect();
        popular.sort_by(|a, b| self.chance(*b).total_cmp(&self.chance(*a)));
        popular
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(got: f32, expected: f32) {
        assert!((got - expected).abs() < 0.01, "got {got}, expected {expected}");
    }

    #[test]
    fn chances_approach_the_shares_of_rows_and_fade_at_the_pace_of_rows() {
        let mut frequency = Frequency::new(6);
        // Layer 1 has experts 2 to 5; all rows choose its first, every other row its third.
        for row in 0..4000 {
            frequency.observe(2..6, if row % 2 == 0 { &[0, 2] } else { &[0, 1] }, 1);
        }
        near(frequency.chance(2), 1.0);
        near(frequency.chance(4), 0.5);
        assert_eq!([0, 1, 5].map(|expert| frequency.chance(expert)), [0.0; 3]);
        assert_eq!(frequency.popular()[0], 2);
        // One step of many rows counts as much as many of one.
        frequency.observe(2..6, &[3; 256], 256);
        near(frequency.counts[2].recent, (-1.0f32).exp());
        near(frequency.counts[5].recent, 1.0 - (-1.0f32).exp());
        // What lasts has hardly changed.
        let Count { rows, sent, .. } = frequency.counts[2];
        assert!(sent / rows > 0.9, "{sent} of {rows}");
    }

    #[test]
    fn an_earlier_run_counts_half_and_no_more_than_what_lasts() {
        let mut first = Frequency::new(4);
        for row in 0..100 {
            first.observe(1..4, if row % 4 == 0 { &[1] } else { &[2] }, 1);
        }
        let kept = first.popularity(1..4);
        assert!(kept.is_sound(3) && kept.sent[0] == 0.0, "{kept:?}");
        near(kept.sent[2] / kept.rows, 0.75);
        let mut second = Frequency::new(4);
        second.begin_with(1..4, &kept);
        assert_eq!(second.popular(), [3, 2]);
        assert_eq!(second.popularity(1..4).rows, kept.rows / 2.0);
        let half: Vec<f32> = kept.sent.iter().map(|sent| sent / 2.0).collect();
        assert_eq!(second.popularity(1..4).sent, half);
        // As many rows of other habits weigh more.
        second.observe(1..4, &[0; 100], 100);
        assert_eq!(second.popular()[0], 1);
        let many = Popularity { rows: 1e30, sent: vec![1e30, 0.0, 0.0] };
        second.begin_with(1..4, &many);
        near(second.popularity(1..4).rows / LASTING, 1.0);
        second.begin_with(1..4, &Popularity { rows: 0.0, sent: vec![0.0; 3] });
        assert!(second.popular().is_empty());
    }

    #[test]
    fn what_cannot_be_counted_is_no_popularity() {
        let of = |rows, sent: [f32; 2]| Popularity { rows, sent: sent.to_vec() };
        assert!(of(8.0, [0.0, 8.0]).is_sound(2) && of(0.0, [0.0; 2]).is_sound(2));
        assert!(!of(8.0, [0.0, 8.0]).is_sound(3), "another number of experts");
        let wrong = [
            of(8.0, [0.0, 8.5]),
            of(8.0, [-1.0, 8.0]),
            of(8.0, [f32::NAN, 0.0]),
            of(f32::NAN, [0.0; 2]),
            of(f32::INFINITY, [0.0; 2]),
            of(-1.0, [0.0; 2]),
        ];
        for wrong in wrong {
            assert!(!wrong.is_sound(2), "{wrong:?}");
        }
        assert!(!Popularity { rows: -1.0, sent: Vec::new() }.is_sound(0));
    }
}
