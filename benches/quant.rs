//! How many GB/s do quantising, decoding, packing and unpacking move, per format and instruction
//! set, and how near is that to reading as many bytes from the same cache?
//!
//! Bytes are what is read and written. `dequantise` is how a token's embedding is looked up where
//! it is a tensor of the file, `unpack a row` where it is the head's matrix. `unpack` is what a
//! kernel pays before it multiplies: every code vector, scale and minimum of a group that lies in
//! cache is made and folded into one number. Files are quantised and packed by code for any
//! processor, once, when a model is loaded.

#[path = "support/packed.rs"]
mod packed;
#[path = "support/shares.rs"]
mod shares;

use oss_quant::kv::{KvCodec, KvFormat, KvVisitor, PAGE_TOKENS, Rows, mean_bytes};
use oss_quant::{CodeFormat, Dtype, Encoded, FloatFormat, Packed, Packing, Visitor};
use oss_simd::{Isa, Kernel, Simd};
use packed::{numbers, packed};
use shares::{Bound, Shares, Work};
use std::hint::black_box;

/// A multiple of 256 near the width of the models of interest.
const COLS: usize = 2816;
const ROWS: usize = 16;
const HEAD_DIM: usize = 64;
/// The heads whose keys and values are stored together.
const KV_HEADS: usize = 8;

/// So many bytes read and written in cache.
const fn work(amount: usize, things: (usize, &'static str)) -> Work {
    Work { bound: Bound::Cache, amount, things }
}

/// Unpacks a group, with just enough work on the vectors that none can be left out.
struct Unpack<'a> {
    packing: Packing,
    group: &'a [u8],
}

struct Fold<'a, S>(S, Unpack<'a>);

impl Kernel for Unpack<'_> {
    type Output = f32;
    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> f32 {
        self.packing.format.visit(Fold(s, self))
    }
}

impl<S: Simd> Visitor for Fold<'_, S> {
    type Output = f32;

    #[inline(always)]
    fn codes<F: CodeFormat>(self) -> f32 {
        let Fold(s, Unpack { packing, group }) = self;
        let n_blocks = packing.n_blocks();
        let (mut codes, mut steps) = (s.zero_i32(), s.zero());
        for block in 0..n_blocks {
            let block = F::block(group, n_blocks, block);
            for j in 0..4 {
                let (low, high) = F::pair(s, block, j);
                codes = s.add_i32(codes, s.or_i32(s.u8_as_i32(low), s.u8_as_i32(high)));
            }
            let scales = F::scales(s, block);
            steps = s.add(steps, s.add(scales.0, scales.1));
            if F::HAS_MIN {
                let mins = F::mins(s, block);
                steps = s.add(steps, s.add(mins.0, mins.1));
            }
        }
        s.reduce_add(s.add(steps, s.i32_to_f32(codes)))
    }

    #[inline(always)]
    fn floats<F: FloatFormat>(self) -> f32 {
        let Fold(s, Unpack { packing, group }) = self;
        let mut sums = [s.zero(); 2];
        for k in (0..packing.padded_cols()).step_by(2) {
            for (sum, column) in sums.iter_mut().zip(F::pair(s, group, k)) {
                *sum = s.add(*sum, column);
            }
        }
        s.reduce_add(s.add(sums[0], sums[1]))
    }
}

/// What becomes of files; packing and quantising have no vectors of their own.
fn file_formats(shares: &mut Shares, dtype: Dtype) {
    let (values, mut out) = (numbers(COLS), vec![0.0; COLS]);
    let mut row = vec![0; dtype.row_bytes(COLS).expect("whole blocks")];
    dtype.quantise_row(&values, &mut row).expect("finite values");
    let rows = vec![row.clone(); ROWS];
    let (packing, mut packed) = packed(dtype, ROWS, COLS);
    let name = dtype.name();
    let both = work(4 * COLS + row.len(), (1, "row"));
    let unpacked = work(4 * COLS + packed.len() / ROWS, (1, "row"));
    for isa in Isa::available() {
        shares.kernel(&format!("dequantise, {name}"), isa, both, || {
            dtype.dequantise_row(isa, black_box(&row), &mut out).expect("a whole row");
        });
        shares.kernel(&format!("unpack a row, {name}"), isa, unpacked, || {
            packing.unpack_row(isa, black_box(&packed), 1, &mut out);
        });
    }
    let isa = Isa::scalar();
    let moved = work(ROWS * row.len() + packed.len(), (ROWS, "row"));
    shares.kernel(&format!("pack, {name}"), isa, moved, || {
        packing
            .pack_group(0, |n| Encoded::Plain(black_box(&rows[n])), &mut packed)
            .expect("whole rows");
    });
    shares.kernel(&format!("quantise, {name}"), isa, both, || {
        dtype.quantise_row(black_box(&values), &mut row).expect("finite values");
    });
}

/// What a kernel sees of a packed group.
fn unpacking(shares: &mut Shares, dtype: Dtype) {
    let (packing, packed) = packed(dtype, ROWS, COLS);
    let work = work(packed.len(), (ROWS, "row"));
    for isa in Isa::available() {
        shares.kernel(&format!("unpack, {}", dtype.name()), isa, work, || {
            black_box(isa.run(Unpack { packing, group: black_box(&packed) }));
        });
    }
}

/// Storing a page of keys and values at once, and its positions one after the other.
fn keys_and_values(shares: &mut Shares, format: KvFormat) {
    let numbers = numbers(KV_HEADS * PAGE_TOKENS * HEAD_DIM);
    let mut slots = vec![vec![0; format.slot_bytes(HEAD_DIM)]; KV_HEADS];
    let bytes = KV_HEADS * slots[0].len() + 2 * size_of_val(numbers.as_slice());
    let work = work(bytes, (KV_HEADS * PAGE_TOKENS, "key and value"));
    for isa in Isa::available() {
        shares.kernel(&format!("store pages, {format}"), isa, work, || {
            let heads = black_box(&numbers).chunks_exact(PAGE_TOKENS * HEAD_DIM);
            for (slot, numbers) in slots.iter_mut().zip(heads) {
                let rows = Rows { numbers, stride: HEAD_DIM, dim: HEAD_DIM, n: PAGE_TOKENS };
                format.write_keys(isa, slot, 0, rows);
                format.write_values(isa, slot, 0, rows);
            }
        });
        shares.kernel(&format!("store positions, {format}"), isa, work, || {
            let heads = black_box(&numbers).chunks_exact(PAGE_TOKENS * HEAD_DIM);
            for (slot, numbers) in slots.iter_mut().zip(heads) {
                for (position, row) in numbers.chunks_exact(HEAD_DIM).enumerate() {
                    format.write_key(isa, slot, position, row);
                    format.write_value(isa, slot, position, row);
                }
            }
        });
    }
}

/// Bytes of the keys of a slot.
struct KeyBytes;

impl KvVisitor for KeyBytes {
    type Output = usize;
    fn visit<C: KvCodec>(self) -> usize {
        C::key_bytes(HEAD_DIM)
    }
}

/// The mean of a page's keys, which attention may choose pages by.
fn means(shares: &mut Shares, format: KvFormat) {
    let numbers = numbers(PAGE_TOKENS * HEAD_DIM);
    let mut slot = vec![0; format.slot_bytes(HEAD_DIM)];
    let keys = Rows { numbers: &numbers, stride: HEAD_DIM, dim: HEAD_DIM, n: PAGE_TOKENS };
    format.write_keys(Isa::scalar(), &mut slot, 0, keys);
    let (slots, mut mean) = (vec![slot; KV_HEADS], vec![0; mean_bytes(HEAD_DIM)]);
    let bytes = KV_HEADS * (format.visit(KeyBytes) + mean.len());
    let work = work(bytes, (KV_HEADS, "page of a head"));
    for isa in Isa::available() {
        shares.kernel(&format!("mean of keys, {format}"), isa, work, || {
            for slot in black_box(&slots) {
                format.write_mean(isa, slot, HEAD_DIM, &mut mean);
            }
            black_box(&mut mean);
        });
    }
}

fn main() {
    let mut shares = Shares::new();
    for dtype in Packed::all().map(Packed::dtype) {
        file_formats(&mut shares, dtype);
        unpacking(&mut shares, dtype);
    }
    for format in KvFormat::ALL {
        keys_and_values(&mut shares, format);
        means(&mut shares, format);
    }
    shares.finish();
}
