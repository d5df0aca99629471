//! Single rows as numbers: those of files, and those of packed matrices.

use crate::formats::{Blocks, Floats, ScaleMin};
use crate::packing::{BLOCK_COLS, GROUP_ROWS};
use crate::planes::{Codes, Plane};
use crate::record::Place;
use oss_simd::{Isa, Kernel, Simd};
use std::marker::PhantomData;

/// Decodes a row of a file, whole blocks of codes.
pub(crate) fn row_of_codes<B: Blocks>(isa: Isa, bytes: &[u8], out: &mut [f32]) {
    isa.run(RowOfCodes::<B> { bytes, out, format: PhantomData });
}

struct RowOfCodes<'a, B> {
    bytes: &'a [u8],
    out: &'a mut [f32],
    format: PhantomData<B>,
}

impl<B: Blocks> Kernel for RowOfCodes<'_, B> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let blocks = self.bytes.chunks_exact(B::BYTES);
        for (block, out) in blocks.zip(self.out.chunks_exact_mut(B::LEN)) {
            for (part, out) in out.as_chunks_mut::<BLOCK_COLS>().0.iter_mut().enumerate() {
                values::<S, B>(s, &B::codes(block, part), B::scale_min(block, part), out);
            }
        }
    }
}

/// Decodes a row of a file, one number after the other.
pub(crate) fn row_of_floats<F: Floats>(isa: Isa, bytes: &[u8], out: &mut [f32]) {
    isa.run(RowOfFloats::<F> { bytes, out, format: PhantomData });
}

struct RowOfFloats<'a, F> {
    bytes: &'a [u8],
    out: &'a mut [f32],
    format: PhantomData<F>,
}

impl<F: Floats> Kernel for RowOfFloats<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (out, rest) = self.out.as_chunks_mut::<16>();
        let (bytes, bytes_rest) = self.bytes.split_at(16 * F::BYTES * out.len());
        for (bytes, out) in bytes.chunks_exact(16 * F::BYTES).zip(out) {
            s.store(F::decode(s, bytes), out);
        }
        if !rest.is_empty() {
            let mut padded = [0; MOST_BYTES];
            padded[..bytes_rest.len()].copy_from_slice(bytes_rest);
            s.store_partial(F::decode(s, &padded), rest);
        }
    }
}

/// Decodes a row of a packed group of codes.
pub(crate) fn packed_codes<B: Blocks>(isa: Isa, (group, lane): (&[u8], usize), out: &mut [f32]) {
    isa.run(PackedCodes::<B> { group, lane, out, format: PhantomData });
}

struct PackedCodes<'a, B> {
    group: &'a [u8],
    lane: usize,
    out: &'a mut [f32],
    format: PhantomData<B>,
}

impl<B: Blocks> Kernel for PackedCodes<'_, B> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { group, lane, out, .. } = self;
        // Formats of codes have whole blocks alone.
        let (out, _) = out.as_chunks_mut::<BLOCK_COLS>();
        let n_blocks = out.len();
        for (block, out) in out.iter_mut().enumerate() {
            let codes = &group[B::RECORD.codes_at(block)..][..B::RECORD.code_bytes];
            let tail = &group[B::RECORD.tail_at(n_blocks, block)..][..B::RECORD.tail_bytes];
            let place = Place { block: block % B::RECORD.blocks, lane };
            let codes = <B as Blocks>::Codes::get(codes, lane);
            values::<S, B>(s, &codes, B::packed_scale_min(tail, place), out);
        }
    }
}

/// Decodes a row of a packed group of floats.
pub(crate) fn packed_floats<F: Floats>(isa: Isa, (group, lane): (&[u8], usize), out: &mut [f32]) {
    isa.run(PackedFloats::<F> { group, lane, out, format: PhantomData });
}

struct PackedFloats<'a, F> {
    group: &'a [u8],
    lane: usize,
    out: &'a mut [f32],
    format: PhantomData<F>,
}

impl<F: Floats> Kernel for PackedFloats<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { group, lane, out, .. } = self;
        // Sixteen columns of all rows lie together.
        let tiles = group.chunks_exact(16 * GROUP_ROWS * F::BYTES);
        for (tile, out) in tiles.zip(out.chunks_mut(16)) {
            let mut bytes = [0; MOST_BYTES];
            for (column, bytes) in bytes.chunks_exact_mut(F::BYTES).enumerate().take(16) {
                bytes.copy_from_slice(&tile[F::offset(lane, column)..][..F::BYTES]);
            }
            let numbers = F::decode(s, &bytes);
            match out.first_chunk_mut() {
                Some(all) => s.store(numbers, all),
                None => s.store_partial(numbers, out),
            }
        }
    }
}

/// Bytes of sixteen numbers, at most.
const MOST_BYTES: usize = 16 * size_of::<f32>();

/// The values of 32 columns.
#[inline(always)]
fn values<S: Simd, B: Blocks>(
    s: S,
    codes: &Codes,
    of_halves: [ScaleMin; 2],
    out: &mut [f32; BLOCK_COLS],
) {
    let levels = codes.map(|code| B::level(code) as i8);
    let (levels, out) = (levels.as_chunks::<16>().0, out.as_chunks_mut::<16>().0);
    for ((levels, ScaleMin { scale, min }), out) in levels.iter().zip(of_halves).zip(out) {
        let levels = s.i32_to_f32(s.load_i8_i32(levels));
        let scaled = s.mul(s.splat(scale), levels);
        s.store(s.sub(scaled, s.splat(min)), out);
    }
}
