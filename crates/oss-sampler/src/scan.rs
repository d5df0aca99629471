//! Passes over all logits, in vectors: what a draw costs on a large vocabulary.
//!
//! The vocabulary is cut into blocks of 64, one word of a [`Mask`] each. The first pass keeps each
//! block's largest logit; later steps look only into blocks where that matters.

use crate::Mask;
use crate::noise::{self, Key, LARGEST_NOISE};
use oss_simd::{Isa, Kernel, Simd, math};

/// Logits per block.
pub(crate) const BLOCK: usize = 64;

/// What the first pass finds, besides the largest logit of each block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extremes {
    /// The largest logit.
    pub(crate) max: f32,
    /// Whether a logit is NaN.
    pub(crate) nan: bool,
}

/// Writes each block's largest logit to `block_max` (where no logit is NaN).
pub(crate) fn block_max(isa: Isa, logits: &[f32], block_max: &mut [f32]) -> Extremes {
    let expected = logits.len().div_ceil(BLOCK);
    assert_eq!(block_max.len(), expected, "blocks: got {}, expected {expected}", block_max.len());
    isa.run(BlockMax { logits, block_max })
}

/// Sets the logits that the mask does not allow to −∞.
pub(crate) fn exclude(isa: Isa, logits: &mut [f32], mask: &Mask) {
    isa.run(Exclude { logits, words: mask.words() });
}

/// `Σ exp((x − max) / temperature)` over all logits, the same on every instruction set.
///
/// Blocks whose largest term is below e⁻³⁰ are left out: together less than 1e-8 of the sum, which
/// is at least 1.
pub(crate) fn sum_exp(isa: Isa, scaled: ScaledLogits<'_>) -> f64 {
    isa.run(SumExp(scaled))
}

/// The token with the largest `(x − max) / temperature + noise(id)`, the lowest id among equals.
pub(crate) fn gumbel_argmax(isa: Isa, scaled: ScaledLogits<'_>, key: Key) -> u32 {
    isa.run(GumbelArgmax { scaled, key })
}

/// Logits with what the first pass knows about them, seen through a temperature.
#[derive(Clone, Copy)]
pub(crate) struct ScaledLogits<'a> {
    pub(crate) logits: &'a [f32],
    pub(crate) block_max: &'a [f32],
    /// The largest logit, finite.
    pub(crate) max: f32,
    /// Above zero.
    pub(crate) temperature: f32,
}

impl ScaledLogits<'_> {
    /// A logit's tempered distance from the largest: at most zero.
    pub(crate) fn value(&self, logit: f32) -> f32 {
        (logit - self.max) / self.temperature
    }
}

/// The lowest id of the largest logit.
pub(crate) fn first_of(logits: &[f32], block_max: &[f32], max: f32) -> u32 {
    let block =
        block_max.iter().position(|&largest| largest == max).expect("the largest is in a block");
    let start = block * BLOCK;
    let inside = logits[start..].iter().position(|&x| x == max).expect("it is in its block");
    (start + inside) as u32
}

/// Four vectors of a block; past the end, −∞.
#[inline(always)]
fn load_block<S: Simd>(s: S, block: &[f32]) -> [S::F32; 4] {
    match <&[f32; BLOCK]>::try_from(block) {
        Ok(full) => vectors(s, full),
        Err(_) => {
            let mut padded = [f32::NEG_INFINITY; BLOCK];
            padded[..block.len()].copy_from_slice(block);
            vectors(s, &padded)
        }
    }
}

#[inline(always)]
fn vectors<S: Simd>(s: S, full: &[f32; BLOCK]) -> [S::F32; 4] {
    let (parts, _) = full.as_chunks::<16>();
    [s.load(&parts[0]), s.load(&parts[1]), s.load(&parts[2]), s.load(&parts[3])]
}

struct BlockMax<'a> {
    logits: &'a [f32],
    block_max: &'a mut [f32],
}

impl Kernel for BlockMax<'_> {
    type Output = Extremes;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Extremes {
        let infinite = s.splat_i32(0x7f80_0000);
        let magnitude = s.splat_i32(0x7fff_ffff);
        // The sign bit of a lane is set once a logit of the lane is NaN: only a NaN's magnitude, as
        // an integer, is above infinity's.
        let mut nan = s.zero_i32();
        let mut max = f32::NEG_INFINITY;
        for (block, largest) in self.logits.chunks(BLOCK).zip(&mut *self.block_max) {
            let x = load_block(s, block);
            for part in x {
                let distance = s.sub_i32(infinite, s.and_i32(s.f32_as_i32(part), magnitude));
                nan = s.or_i32(nan, distance);
            }
            *largest = s.reduce_max(s.max(s.max(x[0], x[1]), s.max(x[2], x[3])));
            max = max.max(*largest);
        }
        let found = s.select_gt_i32((s.zero_i32(), nan), s.splat_i32(1), s.zero_i32());
        Extremes { max, nan: s.reduce_add_i32(found) != 0 }
    }
}

struct Exclude<'a> {
    logits: &'a mut [f32],
    words: &'a [u64],
}

impl Kernel for Exclude<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let bits = s.load_i32(&std::array::from_fn(|lane| 1 << lane));
        let nothing = s.splat(f32::NEG_INFINITY);
        for (block, &word) in self.logits.chunks_mut(BLOCK).zip(self.words) {
            if word == u64::MAX {
                continue;
            }
            let (parts, rest) = block.as_chunks_mut::<16>();
            for (index, part) in parts.iter_mut().enumerate() {
                let wanted = s.and_i32(s.splat_i32((word >> (16 * index)) as u16 as i32), bits);
                let kept = s.select_gt_i32(
                    (wanted, s.zero_i32()),
                    s.f32_as_i32(s.load(part)),
                    s.f32_as_i32(nothing),
                );
                s.store(s.i32_as_f32(kept), part);
            }
            let done = 16 * parts.len();
            for (index, logit) in rest.iter_mut().enumerate() {
                if word >> (done + index) & 1 == 0 {
                    *logit = f32::NEG_INFINITY;
                }
            }
        }
    }
}

struct SumExp<'a>(ScaledLogits<'a>);

impl Kernel for SumExp<'_> {
    type Output = f64;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> f64 {
        let scaled = self.0;
        let (max, temperature) = (s.splat(scaled.max), s.splat(scaled.temperature));
        let mut total = 0.0;
        // Single precision within 4,096 logits, double beyond.
        for (region, block_max) in scaled.logits.chunks(64 * BLOCK).zip(scaled.block_max.chunks(64))
        {
            let mut sums = [s.zero(); 4];
            for (block, &largest) in region.chunks(BLOCK).zip(block_max) {
                if scaled.value(largest) < -30.0 {
                    continue;
                }
                let x = load_block(s, block);
                for (sum, part) in sums.iter_mut().zip(x) {
                    let value = s.div(s.sub(part, max), temperature);
                    *sum = s.add(*sum, math::exp(s, value));
                }
            }
            let sum = s.add(s.add(sums[0], sums[1]), s.add(sums[2], sums[3]));
            total += f64::from(s.reduce_add(sum));
        }
        total
    }
}

struct GumbelArgmax<'a> {
    scaled: ScaledLogits<'a>,
    key: Key,
}

impl GumbelArgmax<'_> {
    /// Writes the noisy values of a block; the largest.
    #[inline(always)]
    fn score<S: Simd>(&self, s: S, block: usize, scores: &mut [f32; BLOCK]) -> f32 {
        let start = block * BLOCK;
        let logits = self.scaled.logits;
        let x = load_block(s, &logits[start..logits.len().min(start + BLOCK)]);
        let (max, temperature) = (s.splat(self.scaled.max), s.splat(self.scaled.temperature));
        let mut highest = s.splat(f32::NEG_INFINITY);
        let (parts, _) = scores.as_chunks_mut::<16>();
        for (index, part) in parts.iter_mut().enumerate() {
            let value = s.div(s.sub(x[index], max), temperature);
            let ids = noise::consecutive(s, (start + 16 * index) as u32);
            let noisy = s.add(value, noise::gumbel(s, self.key, ids));
            s.store(noisy, part);
            highest = s.max(highest, noisy);
        }
        s.reduce_max(highest)
    }
}

impl Kernel for GumbelArgmax<'_> {
    type Output = u32;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> u32 {
        let ScaledLogits { block_max, max, .. } = self.scaled;
        let mut scores = [0.0; BLOCK];
        // The winner scores at least what the block of the largest logit does, so blocks that
        // cannot reach that are passed over.
        let first = block_max.iter().position(|&largest| largest == max).unwrap_or(0);
        let floor = self.score(s, first, &mut scores);
        let (mut best, mut winner) = (f32::NEG_INFINITY, 0);
        for (block, &largest) in block_max.iter().enumerate() {
            if self.scaled.value(largest) + LARGEST_NOISE < floor.max(best) {
                continue;
            }
            let highest = self.score(s, block, &mut scores);
            if highest > best {
                let inside = scores.iter().position(|&x| x == highest).unwrap_or(0);
                (best, winner) = (highest, block * BLOCK + inside);
            }
        }
        winner as u32
    }
}
