//! How many GB/s do quantising, decoding, packing and unpacking move, per format and instruction
//! set?
//!
//! `quantise` and `dequantise` count file bytes, `pack` and `unpack` packed bytes. `unpack` is what
//! a kernel pays before it multiplies: every code vector, scale and minimum of a group that lies in
//! cache is made and folded into one number.
#![expect(missing_docs, reason = "criterion_group makes public functions")]

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use oss_quant::{CodeFormat, Dtype, FloatFormat, Packed, Packing, Row, Visitor};
use oss_simd::{Isa, Kernel, Simd};
use std::hint::black_box;

/// A multiple of 256 near the width of the models of interest.
const COLS: usize = 2816;
const ROWS: usize = 16;

fn values() -> Vec<f32> {
    (0..COLS).map(|i| (i as f32 * 0.7).sin() * 0.05).collect()
}

fn file_row(dtype: Dtype) -> Vec<u8> {
    let mut row = vec![0; dtype.row_bytes(COLS).expect("whole blocks")];
    dtype.quantise_row(&values(), &mut row).expect("finite values");
    row
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

fn file_formats(c: &mut Criterion) {
    let values = values();
    for dtype in Packed::all().map(Packed::dtype) {
        let mut row = file_row(dtype);
        let mut out = vec![0.0; COLS];
        let bytes = Throughput::Bytes(row.len() as u64);
        let mut group = c.benchmark_group("dequantise");
        group.throughput(bytes.clone()).bench_function(dtype.name(), |b| {
            b.iter(|| dtype.dequantise_row(black_box(&row), &mut out));
        });
        group.finish();
        let mut group = c.benchmark_group("quantise");
        group.throughput(bytes).bench_function(dtype.name(), |b| {
            b.iter(|| dtype.quantise_row(black_box(&values), &mut row));
        });
        group.finish();
    }
}

fn packed_formats(c: &mut Criterion) {
    for dtype in Packed::all().map(Packed::dtype) {
        let row = file_row(dtype);
        let packing = Packing::for_dtype(dtype, ROWS, COLS).expect("whole blocks");
        let mut packed = vec![0; packing.bytes()];
        let bytes = Throughput::Bytes(packed.len() as u64);
        let mut group = c.benchmark_group("pack");
        group.throughput(bytes.clone()).bench_function(dtype.name(), |b| {
            b.iter(|| packing.pack_group(0, |_| Row::Plain(black_box(&row)), &mut packed));
        });
        group.finish();
        let mut group = c.benchmark_group("unpack");
        group.throughput(bytes);
        for isa in Isa::available() {
            let id = BenchmarkId::new(dtype.name(), isa.name());
            group.bench_function(id, |b| {
                b.iter(|| isa.run(Unpack { packing, group: black_box(&packed) }));
            });
        }
        group.finish();
    }
}

criterion_group!(benches, file_formats, packed_formats);
criterion_main!(benches);
