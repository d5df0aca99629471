//! IQ4_NL: 32 columns, `value = d * LEVELS[code]`, in 18 bytes.
//!
//! ```text
//! 0  f16   d
//! 2  [16]  low nibbles: codes of columns 0..16, high nibbles: of columns 16..32
//! ```
//!
//! Packed: records of two blocks, 2 x 256 bytes of codes and a 64-byte tail of f16 scales
//! (576 bytes, as many as in the file). Kernels see the levels plus 128.

use super::f16_scale::{both, get, half_at, load, put, record, to_half};
use super::{Blocks, ScaleMin, fit, pair_nibbles, paired_nibbles};
use crate::bytes::array;
use crate::dtype::Codec;
use crate::planes::{Codes, Nibbles, Plane};
use crate::record::{Place, Record};
use crate::unpack::{Block, CodeFormat};
use oss_simd::Simd;

pub(crate) enum Iq4Nl {}

pub(crate) const CODEC: Codec = Codec::of_blocks::<Iq4Nl>();

/// What the codes stand for (ggml's `kvalues_iq4nl`), plus 128.
const TABLE: [u8; 16] = [1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241];

/// The code of the nearest level.
fn nearest(level: f32) -> u8 {
    let above = |code: usize| f32::from(TABLE[code]) - 128.0;
    (0..15).take_while(|&c| level > (above(c) + above(c + 1)) / 2.0).count() as u8
}

/// The least-squares scale for the codes that `inverse` gives, and the squared error's gain.
fn refine(values: &[f32], inverse: f32) -> (f32, f32) {
    let (mut xq, mut qq) = (0.0, 0.0);
    for &x in values {
        let q = Iq4Nl::level(nearest(x * inverse)) as f32;
        xq += x * q;
        qq += q * q;
    }
    (xq * xq / qq, xq / qq)
}

impl Blocks for Iq4Nl {
    const LEN: usize = 32;
    const BYTES: usize = 18;
    const F16_AT: &'static [usize] = &[0];
    type Codes = Nibbles;
    type Unpacked = Iq4Nl;

    fn codes(block: &[u8], _part: usize) -> Codes {
        paired_nibbles(array(block, 2))
    }

    fn level(code: u8) -> i32 {
        i32::from(TABLE[usize::from(code)]) - 128
    }

    fn scale_min(block: &[u8], _part: usize) -> [ScaleMin; 2] {
        both(half_at(block, 0), 0.0)
    }

    fn encode(values: &[f32], block: &mut [u8]) {
        let extreme = values.iter().fold(0.0_f32, |m, &x| if x.abs() > m.abs() { x } else { m });
        let mut best = (f32::NEG_INFINITY, 0.0);
        for nudge in -8..=8 {
            // The extreme at -127, or a little inside or outside of it.
            let inverse = -(127.0 + 2.0 * nudge as f32) / extreme;
            if inverse.is_finite() {
                let (gain, scale) = refine(values, inverse);
                if gain > best.0 {
                    best = (gain, scale);
                }
            }
        }
        let scale = to_half(best.1);
        let inverse = fit::inverse(scale.to_f32());
        let codes: Codes = std::array::from_fn(|column| nearest(values[column] * inverse));
        block[..2].copy_from_slice(&scale.to_le_bytes());
        block[2..].copy_from_slice(&pair_nibbles(&codes));
    }

    fn put_codes(block: &[u8], _part: usize, plane: &mut [u8], lane: usize) {
        Nibbles::put_bytes(array(block, 2), plane, lane);
    }

    fn put_tail(block: &[u8], tail: &mut [u8], place: Place) {
        put(&block[..2], tail, 0, place);
    }

    fn packed_scale_min(tail: &[u8], place: Place) -> [ScaleMin; 2] {
        both(get(tail, 0, place), 0.0)
    }
}

impl CodeFormat for Iq4Nl {
    const MAX_CODE: i32 = 241;
    const ZERO: i32 = 128;
    const HALVES: bool = false;
    const HAS_MIN: bool = false;
    const RECORD: Record = record(Nibbles::BYTES);

    #[inline(always)]
    fn pair<S: Simd>(s: S, block: Block<'_>, j: usize) -> (S::U8, S::U8) {
        s.nibble_lut(s.table(&TABLE), Nibbles::raw(s, block.codes, j))
    }

    #[inline(always)]
    fn scales<S: Simd>(s: S, block: Block<'_>) -> (S::F32, S::F32) {
        let scale = load(s, block, 0);
        (scale, scale)
    }
}
