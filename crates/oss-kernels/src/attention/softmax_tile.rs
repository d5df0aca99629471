//! The softmax of a tile: scores become weights.

use super::{Running, TILE, Visible, wide};
use oss_quant::kv::Products;
use oss_simd::{Simd, math};
use std::ops::Range;

/// Turns a tile's scores into weights relative to the new maximum, as factors; returns what the
/// older values and the older sums of each head are to be multiplied with (the sums have been). A
/// head that sees nothing of the tile is left as it is, to the bit. `meanwhile` is called from time
/// to time, with which of so many times it is.
#[inline(always)]
pub(super) fn softmax_tile<S: Simd, P: Products, const H: usize>(
    s: S,
    scores: &mut [[f32; TILE]],
    visible: &Visible<H>,
    running: &mut Running<'_>,
    meanwhile: impl Fn(usize, usize),
) -> [f32; H] {
    const { assert!(H <= 16, "corrections of all heads in one vector") };
    let mut above = s.splat(f32::NEG_INFINITY);
    for (h, scores) in scores.iter_mut().enumerate() {
        let (begin, end) = (visible.begin[h], visible.end[h]);
        if begin >= end {
            continue;
        }
        if (begin, end) != (0, TILE) {
            mask_scores(s, scores, begin..end);
        }
        above = s.max(s.sub(largest(s, scores), s.splat(running.max[h])), above);
    }
    let mut corrections = [1.0; 16];
    // The longer the context, the fewer tiles bring a new maximum.
    if s.reduce_max(above) > 0.0 {
        let mut above = [0.0; 16];
        for h in 0..H {
            if visible.sees(h) {
                let max = running.max[h].max(s.reduce_max(largest(s, &scores[h])));
                above[h] = running.max[h] - max;
                running.max[h] = max;
            }
        }
        s.store(math::exp(s, s.load(&above)), &mut corrections);
    }
    let mut added = [s.zero(); H];
    let seen = visible.any.0 / 16..visible.any.1.div_ceil(16);
    let together = const { if wide::<S>() && H.is_multiple_of(4) { 4 } else { 1 } };
    for h in (0..H).step_by(together) {
        let (scores, max, added) = (&mut scores[h..], &running.max[h..], &mut added[h..]);
        let meanwhile = |i| meanwhile(4 * h / together + i, 4 * H / together);
        if const { wide::<S>() && H.is_multiple_of(4) } {
            weigh::<S, P, 4>(s, (scores, max), seen.clone(), added, meanwhile);
        } else {
            weigh::<S, P, 1>(s, (scores, max), seen.clone(), added, meanwhile);
        }
    }
    for h in 0..H {
        if visible.sees(h) {
            let sum = s.fma(s.load(&running.sum[h]), s.splat(corrections[h]), added[h]);
            s.store(sum, &mut running.sum[h]);
        }
    }
    *corrections.first_chunk().expect("H of 16")
}

/// Turns the scores of N heads at some of a tile's four times sixteen positions into weights, as
/// factors, relative to their maxima, and adds these up. All heads step by step together: one
/// exponential after the other would wait for itself.
#[inline(always)]
fn weigh<S: Simd, P: Products, const N: usize>(
    s: S,
    (scores, max): (&mut [[f32; TILE]], &[f32]),
    seen: Range<usize>,
    sums: &mut [S::F32],
    meanwhile: impl Fn(usize),
) {
    let mut added = [[s.zero(); N]; 2];
    for (half, added) in added.iter_mut().enumerate() {
        for i in seen.start.max(2 * half)..seen.end.min(2 * half + 2) {
            meanwhile(i);
            let mut weights = [s.zero(); N];
            for h in 0..N {
                weights[h] = s.sub(s.load(&scores[h].as_chunks().0[i]), s.splat(max[h]));
            }
            // What is masked has no weight.
            weights = math::exp_each(s, weights);
            for h in 0..N {
                added[h] = s.add(added[h], weights[h]);
                P::store_factors(s, weights[h], &mut scores[h].as_chunks_mut().0[i]);
            }
        }
    }
    for h in 0..N {
        sums[h] = s.add(added[0][h], added[1][h]);
    }
}

/// Masks the scores outside of some positions: less than any other.
#[inline(always)]
fn mask_scores<S: Simd>(s: S, scores: &mut [f32; TILE], seen: Range<usize>) {
    let lane = s.load(&oss_simd::array_of(|lane| lane as f32));
    let masked = s.splat(f32::NEG_INFINITY);
    for (i, scores) in scores.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let begin = s.splat(seen.start as f32 - (i * 16) as f32);
        let end = s.splat(seen.end as f32 - (i * 16) as f32);
        let x = s.select_lt(lane, begin, masked, s.load(scores));
        s.store(s.select_lt(lane, end, x, masked), scores);
    }
}

/// The largest of four of a tile's scores, sixteen times.
#[inline(always)]
fn largest<S: Simd>(s: S, scores: &[f32; TILE]) -> S::F32 {
    let (v, _) = scores.as_chunks::<16>();
    let low = s.max(s.load(&v[0]), s.load(&v[1]));
    s.max(low, s.max(s.load(&v[2]), s.load(&v[3])))
}
