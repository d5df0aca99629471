//! The angles of rotary positions.

use crate::config::{RopeConfig, RopeScaling};
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
            RopeScaling::FrequencyFactors(divisors) => {
                plain.iter().zip(divisors).map(|(f, d)| f / f64::from(*d)).collect()
            }
            &RopeScaling::FrequencyBands { factor, low, high, original } => {
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
                factor = attention_factor.unwrap_or_else(|| yarn_attention_factor(stretch, 1.0));
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

/// By what YaRN multiplies cosines and sines for positions stretched so far, under a coefficient
/// that is 1 where nothing else is said.
pub(crate) fn yarn_attention_factor(stretch: f64, coefficient: f64) -> f64 {
    if stretch <= 1.0 { 1.0 } else { 0.1 * coefficient * stretch.ln() + 1.0 }
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
    fn yarn_with_truncation_blends_from_whole_pairs_outside_of_the_edges() {
        let scaling = |beta_fast, beta_slow, truncate| RopeScaling::Yarn {
            factor: 32.0,
            beta_fast,
            beta_slow,
            original: 4096.0,
            truncate,
            attention_factor: Some(1.5),
        };
        let rope = |scaling| Rope::new(&RopeConfig { theta: 150_000.0, scaling }, 64);
        // Pairs 8.09 to 17.40 become 8 to 18: pair 9 is the first of ten steps.
        let plain = |i: f64| 150_000f64.powf(-i / 32.0);
        let blended = |i: f64, share: f64| plain(i) * (share / 32.0 + 1.0 - share);
        let (exact, whole) = (rope(scaling(32.0, 1.0, false)), rope(scaling(32.0, 1.0, true)));
        for (pair, share) in [(8u8, 0.0), (9, 0.1), (17, 0.9), (18, 1.0)] {
            let expected = blended(f64::from(pair), share);
            let got = whole.frequencies[usize::from(pair)];
            assert!((got / expected - 1.0).abs() < 1e-12, "pair {pair}: {got} of {expected}");
        }
        assert!(exact.frequencies[17] < whole.frequencies[17]);
        assert_eq!(whole.factor, 1.5);
        // More rotations left alone, and fewer stretched in full, move both edges.
        let wider = rope(scaling(64.0, 0.5, true));
        assert!(wider.frequencies[8] < whole.frequencies[8]);
        assert!(wider.frequencies[18] > whole.frequencies[18]);
    }

    #[test]
    fn position_zero_turns_nothing() {
        let rope = Rope::new(&RopeConfig { theta: 10_000.0, scaling: RopeScaling::None }, 8);
        let (mut cos, mut sin) = ([0.0; 4], [1.0; 4]);
        rope.angles(0, &mut cos, &mut sin);
        assert_eq!((cos, sin), ([1.0; 4], [0.0; 4]));
    }
}
