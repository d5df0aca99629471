//! What do the angles of a position take, which are computed once for each position that a model
//! meets, whoever comes there later?
//!
//! Double precision and the C library's functions, on one thread: the same code for any processor.

#[path = "support/shares.rs"]
mod shares;

use oss_model::{Rope, RopeConfig, RopeScaling};
use oss_simd::Isa;
use shares::{Bound, Shares, Work};
use std::hint::black_box;

/// Positions of a call: far ones, whose angles have many turns.
const POSITIONS: std::ops::Range<usize> = 100_000..100_016;

fn angles(shares: &mut Shares, name: &str, head_dim: usize, scaling: RopeScaling) {
    let rope = Rope::new(&RopeConfig { theta: 500_000.0, scaling }, head_dim);
    let (mut cos, mut sin) = (vec![0.0; head_dim / 2], vec![0.0; head_dim / 2]);
    let amount = POSITIONS.len() * 4 * head_dim;
    let work = Work { bound: Bound::Cache, amount, things: (POSITIONS.len(), "position") };
    let name = format!("angles, heads of {head_dim}, {name}");
    shares.kernel(&name, Isa::scalar(), work, || {
        for position in POSITIONS {
            rope.angles(black_box(position), &mut cos, &mut sin);
            black_box((&mut cos, &mut sin));
        }
    });
}

fn main() {
    let mut shares = Shares::new();
    let yarn = RopeScaling::Yarn {
        factor: 32.0,
        beta_fast: 32.0,
        beta_slow: 1.0,
        original: 4096.0,
        truncate: false,
        attention_factor: None,
    };
    let bands = RopeScaling::FrequencyBands { factor: 8.0, low: 1.0, high: 4.0, original: 8192.0 };
    angles(&mut shares, "stretched by YaRN", 64, yarn);
    angles(&mut shares, "stretched by bands", 128, bands);
    shares.finish();
}
