//! Weights in bf16 times many rows of bf16 numbers, two columns at a time, on processors that add
//! the products of a pair at once: the same sums as in [`floats`](super::floats).

use super::codes::GROUPS;
use super::floats::{RUN, STEP, add_run};
use super::{Gemm, SharedPrefetch};
use crate::Input;
use oss_quant::GROUP_ROWS;
use oss_simd::{Extension, Kernel, Simd, array_of};

/// From how many input rows on this pays.
pub(super) const PAIR_ROWS: usize = 12;

/// The most rows whose factors are made at a time, for all groups of a call.
const CHUNK: usize = 32;

/// The most rows of a tile.
const TILE: usize = 6;

/// Bytes of two columns of a group.
const PAIR_BYTES: usize = 4 * GROUP_ROWS;

/// Scratch of [`linear`](super::linear): some columns of some rows, as products of bf16 take them.
#[derive(Clone, Debug)]
#[repr(align(64))]
pub(super) struct Factors([[u32; RUN / 2]; CHUNK]);

impl Factors {
    pub(super) const ZERO: Self = Self([[0; RUN / 2]; CHUNK]);
}

/// All rows of a call times all of its groups. Gives the call back where the processor adds
/// products of bf16 one by one.
pub(super) struct Pairs<'a, 'b> {
    pub(super) gemm: Gemm<'a, 'b>,
    pub(super) factors: &'b mut Factors,
}

impl<'a, 'b> Kernel for Pairs<'a, 'b> {
    type Output = Option<Gemm<'a, 'b>>;

    const EXTENSION: Extension = Extension::Bf16;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Self::Output {
        let Self { mut gemm, factors } = self;
        if const { S::BF16_STEPS > 1 || S::REGISTERS < 32 } {
            return Some(gemm);
        }
        let (all, n_rows) = (gemm.columns.clone(), gemm.rows.len());
        for begin in all.clone().step_by(RUN) {
            let columns = (begin, all.end.min(begin + RUN));
            for (first, n) in row_parts(n_rows, CHUNK) {
                for (row, factors) in factors.0.iter_mut().enumerate().take(n) {
                    let values = values(&gemm, first + row, columns);
                    for ([first, second], pair) in values.as_chunks().0.iter().zip(factors) {
                        *pair = first.to_bits() >> 16 | second.to_bits() & 0xffff_0000;
                    }
                }
                let mut group = gemm.groups.start;
                while group < gemm.groups.end {
                    let n_groups = GROUPS.min(gemm.groups.end - group);
                    let range = ChunkRange { group, columns, first, n };
                    match n_groups {
                        GROUPS => tiles::<S, GROUPS>(s, &mut gemm, factors, range),
                        _ => tiles::<S, 1>(s, &mut gemm, factors, range),
                    }
                    group += n_groups;
                }
            }
        }
        None
    }
}

/// Some columns of a call's row, and as many after them as make whole steps.
#[inline(always)]
fn values<'a>(gemm: &Gemm<'a, '_>, row: usize, (begin, end): (usize, usize)) -> &'a [f32] {
    let Input { stride, values, .. } = gemm.product.input;
    let row = &values[gemm.rows[row] as usize * stride..][..stride];
    &row[begin - gemm.columns.start..][..(end - begin).next_multiple_of(STEP)]
}

/// So many rows in parts of `most` at most, all about as long: the first of each, and how many.
pub(super) fn row_parts(n: usize, most: usize) -> impl Iterator<Item = (usize, usize)> {
    let n_parts = n.div_ceil(most);
    (0..n_parts).map(move |part| {
        let first = part * n / n_parts;
        (first, (part + 1) * n / n_parts - first)
    })
}

/// Some columns of the groups from `group` on, and the `n` rows from `first`, of which the scratch
/// holds the factors.
#[derive(Clone, Copy)]
struct ChunkRange {
    group: usize,
    columns: (usize, usize),
    first: usize,
    n: usize,
}

/// The rows of a chunk times G groups, in tiles of about the same height.
#[inline(always)]
fn tiles<S: Simd, const G: usize>(
    s: S,
    gemm: &mut Gemm<'_, '_>,
    factors: &Factors,
    range: ChunkRange,
) {
    let next: [_; G] = array_of(|g| {
        let times = (range.columns.1 - range.columns.0).div_ceil(STEP);
        SharedPrefetch::new(next_columns(gemm, range.group + g, range.columns), range.n, times)
    });
    for (first, n) in row_parts(range.n, TILE) {
        let next = array_of(|g| next[g].for_rows(first, n));
        // None has fewer than 4: a chunk has `PAIR_ROWS` rows at least.
        match n {
            6 => s.outline(Tile::<G, 6> { gemm, factors, range, first, next }),
            5 => s.outline(Tile::<G, 5> { gemm, factors, range, first, next }),
            4 => s.outline(Tile::<G, 4> { gemm, factors, range, first, next }),
            n => unreachable!("a tile of {n} rows"),
        }
    }
}

/// The weights that are multiplied after some columns of a group: the same columns of the group
/// [`GROUPS`] further on, or after a call's last ones the next columns of its first.
#[inline(always)]
fn next_columns<'a>(gemm: &Gemm<'a, '_>, group: usize, (begin, end): (usize, usize)) -> &'a [u8] {
    let (group, begin) = match group + GROUPS {
        next if next < gemm.groups.end => (next, begin),
        _ => (gemm.groups.start + (group - gemm.groups.start) % GROUPS, end),
    };
    let columns = gemm.group(group.min(gemm.groups.end - 1)).get(PAIR_BYTES / 2 * begin..);
    let columns = columns.unwrap_or_default();
    &columns[..columns.len().min(PAIR_BYTES / 2 * RUN)]
}

/// G groups times T rows of a chunk from its `first` on.
struct Tile<'w, 'a, 'b, 'c, const G: usize, const T: usize> {
    gemm: &'w mut Gemm<'a, 'b>,
    factors: &'w Factors,
    range: ChunkRange,
    first: usize,
    next: [SharedPrefetch<'c>; G],
}

impl<const G: usize, const T: usize> Kernel for Tile<'_, '_, '_, '_, G, T> {
    type Output = ();

    const EXTENSION: Extension = Extension::Bf16;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { gemm, factors, range, first, next } = self;
        let ChunkRange { group, columns: (begin, end), .. } = range;
        let steps = (end - begin).div_ceil(STEP);
        let weights: [&[[[u8; PAIR_BYTES]; 2]]; G] = array_of(|g| {
            &gemm.group(group + g).as_chunks().0.as_chunks().0[begin / STEP..][..steps]
        });
        let rows: [&[[u32; 2]]; T] = array_of(|t| &factors.0[first + t].as_chunks().0[..steps]);
        let mut sums = [[[s.zero(); 2]; T]; G];
        for step in 0..steps {
            for next in next {
                next.prefetch(s, step);
            }
            for pair in 0..2 {
                let weights: [_; G] =
                    array_of(|g| s.bf16_pairs(s.u8_as_i32(s.load_u8(&weights[g][step][pair]))));
                for t in 0..T {
                    let x = s.i32_as_f32(s.splat_i32(rows[t][step][pair] as i32));
                    for g in 0..G {
                        let sum = &mut sums[g][t][pair];
                        *sum = s.add_bf16(0, x, weights[g], *sum);
                    }
                }
            }
        }
        let is_first = begin == gemm.columns.start;
        for (g, sums) in sums.into_iter().enumerate() {
            for (t, sums) in sums.into_iter().enumerate() {
                let [out] = gemm.out::<1>(group + g, range.first + first + t);
                add_run(s, sums, is_first, out);
            }
        }
    }
}
