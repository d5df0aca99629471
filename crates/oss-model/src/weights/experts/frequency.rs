//! How often each expert is needed.

use std::ops::Range;

/// Rows after which a count has lost two thirds of its weight.
const MEMORY: f32 = 256.0;

/// The chance of each expert that a row of its layer is sent to it, by what was counted; old counts
/// fade.
#[derive(Debug)]
pub(super) struct Frequency {
    chances: Vec<f32>,
}

impl Frequency {
    pub(super) fn new(experts: usize) -> Self {
        Self { chances: vec![0.0; experts] }
    }

    /// Counts the choices of so many rows of a layer, whose experts have the numbers `layer`.
    pub(super) fn observe(&mut self, layer: Range<usize>, choices: &[u32], rows: usize) {
        let kept = (-(rows as f32) / MEMORY).exp();
        let each = (1.0 - kept) / rows.max(1) as f32;
        let chances = &mut self.chances[layer];
        chances.iter_mut().for_each(|chance| *chance *= kept);
        for expert in choices {
            chances[*expert as usize] += each;
        }
    }

    pub(super) fn chance(&self, expert: usize) -> f32 {
        self.chances[expert]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chances_approach_the_shares_of_rows_and_fade_at_the_pace_of_rows() {
        let mut frequency = Frequency::new(6);
        // Layer 1 has experts 2 to 5; all rows choose its first, every other row its third.
        for row in 0..4000 {
            frequency.observe(2..6, if row % 2 == 0 { &[0, 2] } else { &[0, 1] }, 1);
        }
        let near = |got: f32, expected: f32| assert!((got - expected).abs() < 0.01, "{got}");
        near(frequency.chance(2), 1.0);
        near(frequency.chance(4), 0.5);
        assert_eq!([0, 1, 5].map(|expert| frequency.chance(expert)), [0.0; 3]);
        // One step of many rows counts as much as many of one.
        frequency.observe(2..6, &[3; 256], 256);
        near(frequency.chance(2), (-1.0f32).exp());
        near(frequency.chance(5), 1.0 - (-1.0f32).exp());
    }
}
