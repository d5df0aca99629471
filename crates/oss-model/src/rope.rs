//! The angles of rotary positions.

use crate::config::{RopeConfig, RopeScaling};
use crate::error::Result;
use oss_memory::lengthen;
use std::f64::consts::PI;

/// The frequencies of a model's pairs, ready to be multiplied with positions.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// `[head_dim / 2]`: radians per position.
    frequencies: Vec<f64>,
    /// What cosines and sines are multiplied with.
    factor: f64,
}

impl Rope {
    /// The frequencies `theta^(-2 i / dim)`, stretched as the configuration says.
    #[must_use]
    pub fn new(config: &RopeConfig, head_dim: usize) -> Self {
        let dim = head_dim as f64;
        let plain = (0..head_dim / 2).map(|i| config.theta.powf(-2.0 * i as f64 / dim));
        let plain: Vec<f64> = plain.collect();
        let mut factor = 1.0;
        let frequencies = match &config.scaling {
            RopeScaling::None => plain,
            RopeScaling::Linear { factor } => plain.iter().map(|f| f / factor).collect(),
            RopeScaling::Divisors(divisors) => {
                plain.iter().zip(divisors).map(|(f, d)| f / f64::from(*d)).collect()
            }
            &RopeScaling::Bands { factor, low, high, original } => {
                plain.iter().map(|f| banded(*f, factor, (low, high), original)).collect()
            }
            &RopeScaling::Yarn {
                factor: stretch,
                beta_fast,
                beta_slow,
                original,
                truncate,
                attention_factor,
            } => {
                factor = attention_factor
                    .unwrap_or_else(|| if stretch <= 1.0 { 1.0 } else { 0.1 * stretch.ln() + 1.0 });
                let pair = |rotations: f64| {
                    dim * (original / (rotations * 2.0 * PI)).ln() / (2.0 * config.theta.ln())
                };
                let (mut first, mut last) = (pair(beta_fast), pair(beta_slow));
                if truncate {
                    (first, last) = (first.floor(), last.ceil());
                }
                let (first, last) = (first.max(0.0), last.min(dim - 1.0));
                let width = if last > first { last - first } else { 0.001 };
                let stretched = |(i, f): (usize, &f64)| {
                    let ramp = ((i as f64 - first) / width).clamp(0.0, 1.0);
                    f / stretch * ramp + f * (1.0 - ramp)
                };
                plain.iter().enumerate().map(stretched).collect()
            }
        };
        Self { frequencies, factor }
    }

    /// Writes the cosines and sines of a position, `head_dim / 2` each.
    pub fn angles(&self, position: usize, cos: &mut [f32], sin: &mut [f32]) {
        for ((frequency, cos), sin) in self.frequencies.iter().zip(cos).zip(sin) {
            let (s, c) = (frequency * position as f64).sin_cos();
            *cos = (c * self.factor) as f32;
            *sin = (s * self.factor) as f32;
        }
    }
}

/// Cosines and sines of all positions up to the furthest that was met: each is computed once,
/// whoever comes there later.
pub(crate) struct Angles {
    /// `[positions, 2, head_dim / 2]`: those of a position lie together.
    numbers: Vec<f32>,
    /// Cosines, and sines, of a position.
    half: usize,
    /// Numbers of all positions that a sequence may have.
    most: usize,
}

impl Angles {
    /// Of no position yet, for heads of `head_dim` and sequences of up to `context_len` positions.
    pub(crate) const fn new(head_dim: usize, context_len: usize) -> Self {
        let half = head_dim / 2;
        Self { numbers: Vec::new(), half, most: 2 * half * context_len }
    }

    /// Computes what is missing up to `position`. Memory doubles when it is full: at the beginning
    /// of a page from the second one on.
    ///
    /// # Errors
    /// When the system refuses memory; what was known stays.
    pub(crate) fn reach(&mut self, rope: &Rope, position: usize) -> Result<()> {
        let known = self.numbers.len() / (2 * self.half);
        for position in known..=position {
            let first = self.numbers.len();
            lengthen(&mut self.numbers, first + 2 * self.half)?;
            let (cos, sin) = self.numbers[first..].split_at_mut(self.half);
            rope.angles(position, cos, sin);
        }
        Ok(())
    }

    /// The cosines and sines of a position that was reached, `head_dim / 2` each.
    pub(crate) fn of(&self, position: usize) -> (&[f32], &[f32]) {
        self.numbers[2 * self.half * position..][..2 * self.half].split_at(self.half)
    }

    /// Bytes that they take when a sequence is as long as it may be.
    pub(crate) const fn bytes(&self) -> usize {
        4 * self.most
    }
}

/// Llama 3.1's rule: long wavelengths stretched, short ones kept, a linear blend between.
fn banded(frequency: f64, factor: f64, (low, high): (f64, f64), original: f64) -> f64 {
    let wavelength = 2.0 * PI / frequency;
    if wavelength < original / high {
        frequency
    } else if wavelength > original / low {
        frequency / factor
    } else {
        let blend = (original / wavelength - low) / (high - low);
        (1.0 - blend) * frequency / factor + blend * frequency
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn yarn_without_truncation_blends_from_the_exact_edges() {
        // gpt-oss: pairs 8.09 to 17.40 of 32 are blended.
        let scaling = RopeScaling::Yarn {
            factor: 32.0,
            beta_fast: 32.0,
            beta_slow: 1.0,
            original: 4096.0,
            truncate: false,
            attention_factor: None,
        };
        let rope = Rope::new(&RopeConfig { theta: 150_000.0, scaling }, 64);
        let plain = |i: f64| 150_000f64.powf(-i / 32.0);
        assert_eq!(rope.frequencies[8], plain(8.0));
        assert!(rope.frequencies[9] < plain(9.0) && rope.frequencies[9] > plain(9.0) / 32.0);
        assert!((rope.frequencies[18] / (plain(18.0) / 32.0) - 1.0).abs() < 1e-12);
        assert!((rope.factor - 1.346_573_590_279_973).abs() < 1e-12);
    }

    #[test]
    fn position_zero_turns_nothing() {
        let rope = Rope::new(&RopeConfig { theta: 10_000.0, scaling: RopeScaling::None }, 8);
        let (mut cos, mut sin) = ([0.0; 4], [1.0; 4]);
        rope.angles(0, &mut cos, &mut sin);
        assert_eq!((cos, sin), ([1.0; 4], [0.0; 4]));
    }

    #[test]
    fn a_position_has_its_angles_whenever_it_is_reached() {
        let bands = RopeScaling::Bands { factor: 8.0, low: 1.0, high: 4.0, original: 64.0 };
        let yarn = RopeScaling::Yarn {
            factor: 32.0,
            beta_fast: 32.0,
            beta_slow: 1.0,
            original: 64.0,
            truncate: true,
            attention_factor: None,
        };
        for scaling in [RopeScaling::None, bands, yarn] {
            let rope = Rope::new(&RopeConfig { theta: 500_000.0, scaling }, 20);
            let mut angles = Angles::new(20, 1001);
            for furthest in [0, 1, 40, 17, 1000] {
                angles.reach(&rope, furthest).unwrap();
                for position in 0..=furthest {
                    let (mut cos, mut sin) = ([0.0; 10], [0.0; 10]);
                    rope.angles(position, &mut cos, &mut sin);
                    assert_eq!(angles.of(position), (&cos[..], &sin[..]), "{position}");
                }
            }
            assert_eq!(angles.bytes(), 1001 * 20 * 4);
        }
    }
}
