//! Codes of 8 bits times many rows of codes, on processors that add products of bytes in 16 bits,
//! which hold two of them: as products of 16 bits, which take all planes of a row at once. The same
//! sums as in [`codes`](super::codes).

use super::codes::{BLOCKS, Groups, calls, parts};
use super::pairs::row_parts;
use super::{Gemm, SharedPrefetch};
use crate::input::FINE_BITS;
use oss_quant::{CodeFormat, GROUP_ROWS};
use oss_simd::{Extension, Kernel, Simd, array_of};
use std::marker::PhantomData;

/// The most rows that are widened at a time, for all groups of a call.
const CHUNK: usize = 64;

/// The most rows of a tile.
const TILE: usize = 4;

/// Scratch of [`linear`](super::linear): some columns of a group and of some rows, as 16 bits.
#[derive(Clone, Debug)]
pub(super) struct Wide {
    weights: [WideWeights; BLOCKS],
    rows: [[WideNumbers; BLOCKS]; CHUNK],
}

impl Wide {
    pub(super) const ZERO: Self = Self {
        weights: [WideWeights { codes: [[0; GROUP_ROWS]; 16], scale: [0.0; GROUP_ROWS] }; BLOCKS],
        rows: [[WideNumbers { pairs: [0; 16], start: 0, scale: 0.0 }; BLOCKS]; CHUNK],
    };
}

/// 32 columns of a group.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct WideWeights {
    /// Vector `c`: the codes of columns `c` and `16 + c`, in the halves of the lanes.
    codes: [[i32; GROUP_ROWS]; 16],
    scale: [f32; GROUP_ROWS],
}

/// 32 columns of a row: number = code × scale.
#[derive(Clone, Copy, Debug)]
struct WideNumbers {
    /// The codes of columns `c` and `16 + c`.
    pairs: [i32; 16],
    /// What sums start with, for weights whose codes count from 128.
    start: i32,
    scale: f32,
}

/// All rows of a call times all of its groups. Gives the call back where other ways are faster.
pub(super) struct WideProducts<'w, 'a, 'b, F> {
    pub(super) gemm: Gemm<'a, 'b>,
    pub(super) wide: &'w mut Wide,
    pub(super) format: PhantomData<F>,
}

impl<'a, 'b, F: CodeFormat> Kernel for WideProducts<'_, 'a, 'b, F> {
    type Output = Option<Gemm<'a, 'b>>;
    const EXTENSION: Extension = Extension::Bytes;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Self::Output {
        let Self { mut gemm, wide, .. } = self;
        if const { !S::DOT_WIDE_IS_FASTER || calls::<F>() > 0 } {
            return Some(gemm);
        }
        const { assert!(calls::<F>() > 0 || F::ZERO == 128, "8-bit codes that count from 128") };
        let (groups, all) = (Groups::new(&gemm), gemm.groups.clone());
        for blocks in parts(gemm.product.matrix.packing.n_blocks(), 1) {
            for (first, n) in row_parts(gemm.rows.len(), CHUNK) {
                wide.widen(s, &gemm, (first, n), blocks);
                for group in all.clone() {
                    wide.unpack::<S, F>(s, groups, group, blocks);
                    let next = (group + 1).min(all.end - 1);
                    let next = groups.blocks::<F>(next, blocks);
                    let next = SharedPrefetch::new(next, n, blocks.1 - blocks.0);
                    tiles(s, &mut gemm, wide, ChunkRange { group, blocks, first, n, next });
                }
            }
        }
        None
    }
}

impl Wide {
    /// Makes numbers of 16 bits of some blocks of the `n` rows of a call from `first` on.
    #[inline(always)]
    fn widen<S: Simd>(
        &mut self,
        s: S,
        gemm: &Gemm<'_, '_>,
        (first, n): (usize, usize),
        (begin, end): (usize, usize),
    ) {
        let planes = gemm.planes;
        for (row, to) in self.rows.iter_mut().enumerate().take(n) {
            let finest = planes * (first + row) + planes - 1;
            let coarse = &gemm.code_row(planes * (first + row))[begin..end];
            let fine = &gemm.code_row(finest)[begin..end];
            for ((coarse, fine), to) in coarse.iter().zip(fine).zip(to) {
                let halves: [_; 2] = array_of(|half| {
                    let fine = s.load_i8_i32(&fine.codes.as_chunks().0[half]);
                    if planes == 1 {
                        return fine;
                    }
                    let coarse = s.load_i8_i32(&coarse.codes.as_chunks().0[half]);
                    s.add_i32(s.shl_i32::<FINE_BITS>(coarse), fine)
                });
                let low = s.and_i32(halves[0], s.splat_i32(0xffff));
                s.store_i32(s.or_i32(low, s.shl_i32::<16>(halves[1])), &mut to.pairs);
                to.start = fine.zero_point_sum;
                if planes > 1 {
                    to.start += coarse.zero_point_sum << FINE_BITS;
                }
                to.scale = fine.scale;
            }
        }
    }

    /// Unpacks some blocks of a group.
    #[inline(always)]
    fn unpack<S: Simd, F: CodeFormat>(
        &mut self,
        s: S,
        groups: Groups<'_>,
        group: usize,
        (begin, end): (usize, usize),
    ) {
        let group = groups.part::<F, _>(group, begin, ());
        for (block, to) in self.weights.iter_mut().enumerate().take(end - begin) {
            let block = group.at(block);
            for (j, to) in to.codes.as_chunks_mut::<4>().0.iter_mut().enumerate() {
                let (bottom, top) = F::pair(s, block, j);
                let (bottom, top) = (s.u8_as_i32(bottom), s.u8_as_i32(top));
                let pairs = [
                    pair_bytes(s, bottom, s.shl_i32::<16>(top)),
                    pair_bytes(s, s.shr_i32::<8>(bottom), s.shl_i32::<8>(top)),
                    pair_bytes(s, s.shr_i32::<16>(bottom), top),
                    pair_bytes(s, s.shr_i32::<24>(bottom), s.shr_i32::<8>(top)),
                ];
                for (pairs, to) in pairs.into_iter().zip(to) {
                    s.store_i32(pairs, to);
                }
            }
            s.store(F::scales(s, block).0, &mut to.scale);
        }
    }
}

/// The first byte of a lane of `low`, and the third of one of `high`.
#[inline(always)]
fn pair_bytes<S: Simd>(s: S, low: S::I32, high: S::I32) -> S::I32 {
    s.or_i32(s.and_i32(low, s.splat_i32(0xff)), s.and_i32(high, s.splat_i32(0xff_0000)))
}

/// Some blocks of a group, and the `n` rows of a call from `first` on, of which the scratch holds
/// these blocks' numbers.
#[derive(Clone, Copy)]
struct ChunkRange<'a> {
    group: usize,
    blocks: (usize, usize),
    first: usize,
    n: usize,
    /// What is unpacked next.
    next: SharedPrefetch<'a>,
}

/// The rows of a chunk times a group, in tiles of about the same height.
#[inline(always)]
fn tiles<S: Simd>(s: S, gemm: &mut Gemm<'_, '_>, wide: &Wide, range: ChunkRange<'_>) {
    for (first, n) in row_parts(range.n, TILE) {
        let range = ChunkRange { next: range.next.for_rows(first, n), ..range };
        // None has fewer than 3: a chunk has sixteen rows at least, those of a call with planes.
        match n {
            4 => s.outline(Tile::<4> { gemm, wide, range, first }),
            3 => s.outline(Tile::<3> { gemm, wide, range, first }),
            n => unreachable!("a tile of {n} rows"),
        }
    }
}

/// A group times T rows of a chunk from its `first` on.
struct Tile<'w, 'a, 'b, 'c, const T: usize> {
    gemm: &'w mut Gemm<'a, 'b>,
    wide: &'w Wide,
    range: ChunkRange<'c>,
    first: usize,
}

impl<const T: usize> Kernel for Tile<'_, '_, '_, '_, T> {
    type Output = ();
    const EXTENSION: Extension = Extension::Bytes;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { gemm, wide, range, first } = self;
        let ChunkRange { group, blocks: (begin, end), .. } = range;
        let weights = &wide.weights[..end - begin];
        let rows: [&[WideNumbers]; T] = array_of(|t| &wide.rows[first + t][..end - begin]);
        let mut acc = [s.zero(); T];
        if begin > 0 {
            for (t, acc) in acc.iter_mut().enumerate() {
                let [sums] = gemm.out::<1>(group, range.first + first + t);
                *acc = s.load(sums);
            }
        }
        for (block, weights) in weights.iter().enumerate() {
            range.next.prefetch(s, block);
            let rows: [&WideNumbers; T] = array_of(|t| &rows[t][block]);
            let mut sums: [_; T] = array_of(|t| s.splat_i32(rows[t].start));
            for (c, codes) in weights.codes.iter().enumerate() {
                let codes = s.load_i32(codes);
                for t in 0..T {
                    sums[t] = s.dot_wide(sums[t], codes, rows[t].pairs[c]);
                }
            }
            let scale = s.load(&weights.scale);
            for t in 0..T {
                let scale = s.mul(scale, s.splat(rows[t].scale));
                acc[t] = s.fma(s.i32_to_f32(sums[t]), scale, acc[t]);
            }
        }
        for (t, acc) in acc.into_iter().enumerate() {
            let [sums] = gemm.out::<1>(group, range.first + first + t);
            s.store(acc, sums);
        }
    }
}
