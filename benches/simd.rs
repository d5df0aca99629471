//! How many times as fast as plain code is each operation on this machine's best instruction set?
//!
//! `cargo bench -p oss-kernels --bench simd` prints a table: both take turns, medians, one thread,
//! operands in cache. Plain code is one kernel for all processors, but no straw man: the compiler
//! vectorises what it can of it for the architecture's baseline (SSE2 on x86-64, NEON on Arm). What
//! is promised are the ratios of the original design; nothing for copies, which are as fast as
//! their stores: f32, bf16 numbers made wide, and a single key's scattered over its page.

#[path = "support/packed.rs"]
mod packed;

use oss_kernels::attention::{PAGE, Query, Shape, TileSlots, attend};
use oss_kernels::elementwise::Gate;
use oss_kernels::{
    Activation, GateUpSums, InputBuffer, Panel, Product, linear, prepare, prepare_gated, softmax,
};
use oss_quant::kv::{KvFormat, Rows};
use oss_quant::{CodeFormat, Dtype, FloatFormat, Matrix, Packing, Visitor};
use oss_simd::{Isa, Kernel, Simd};
use oss_testing::median;
use packed::{numbers, packed};
use std::hint::black_box;
use std::time::Instant;

const COLS: usize = 2880;
const ROWS: usize = 64;
const HEAD_DIM: usize = 64;
const ROUNDS: usize = 15;
/// How long a measurement should take, in seconds.
const SAMPLE: f64 = 0.01;

/// Seconds of a call, on average over as many as fill a sample.
fn seconds(calls: usize, isa: Isa, operation: &mut dyn FnMut(Isa)) -> f64 {
    let start = Instant::now();
    for _ in 0..calls {
        operation(isa);
    }
    start.elapsed().as_secs_f64() / calls as f64
}

/// Times an operation on both instruction sets in turn and prints its row; 0 promises nothing.
fn row(name: &str, promised: f64, operation: &mut dyn FnMut(Isa)) {
    let isas = [Isa::scalar(), Isa::detect().expect("OSS_ISA names one that is here")];
    let calls = isas.map(|isa| (SAMPLE / seconds(1, isa, operation)).ceil() as usize);
    let mut samples = [Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        for ((isa, calls), samples) in isas.into_iter().zip(calls).zip(&mut samples) {
            samples.push(seconds(calls, isa, operation));
        }
    }
    let [plain, best] = samples.map(|seconds| median(seconds).expect("samples"));
    let (plain_us, best_us, ratio) = (plain * 1e6, best * 1e6, plain / best);
    let promised = if promised > 0.0 { promised.to_string() } else { "-".to_owned() };
    println!("| {name} | {plain_us:.2} | {best_us:.2} | {ratio:.1} | {promised} |");
}

fn products() {
    let cases = [
        (Dtype::Mxfp4, Activation::Int8),
        (Dtype::Q8_0, Activation::Int8),
        (Dtype::Q6K, Activation::Int8),
        (Dtype::Bf16, Activation::Bf16),
    ];
    for (dtype, activation) in cases {
        let cols = COLS.next_multiple_of(dtype.block_len());
        let (packing, bytes) = packed(dtype, ROWS, cols);
        let matrix = Matrix { packing, bytes: &bytes };
        for tokens in [1, 32] {
            let mut input = InputBuffer::new(tokens, cols, activation);
            for row in 0..tokens {
                prepare(Isa::scalar(), activation, &numbers(cols), input.row(row));
            }
            let product = Product { matrix, input: input.view(), activation };
            let rows: Vec<u32> = (0..tokens as u32).collect();
            let (mut panel, mut out) = (Panel::ZERO, vec![0.0; tokens * ROWS]);
            let name = format!("matrix product, {} × {tokens} tokens", dtype.name());
            row(&name, 8.0, &mut |isa| {
                linear(isa, product, (&rows, 0..packing.groups()), &mut panel, &mut out);
            });
        }
    }
}

fn attention() {
    let isa = Isa::scalar();
    for format in [KvFormat::F32, KvFormat::Bf16, KvFormat::Int8] {
        let positions = 512;
        let mut slots = vec![vec![0; format.slot_bytes(HEAD_DIM)]; positions / PAGE];
        for position in 0..positions {
            let slot = &mut slots[position / PAGE];
            format.write_key(isa, slot, position % PAGE, &numbers(HEAD_DIM));
            format.write_value(isa, slot, position % PAGE, &numbers(HEAD_DIM));
        }
        let heads = numbers(8 * HEAD_DIM);
        let shape = Shape { format, head_dim: HEAD_DIM, scale: 0.125 };
        let query = Query { heads: &heads, sinks: None, start: 0, end: positions, blocks: None };
        let mut scratch = vec![0.0; shape.scratch_len(8)];
        row(&format!("attention, {format}, 8 heads, {positions} positions"), 5.0, &mut |isa| {
            let slot = |page: usize| slots[page].as_slice();
            attend(isa, shape, &[query], (slot, TileSlots::default()), &mut scratch, |_, out| {
                _ = black_box(out);
            });
        });
    }
}

fn activations() {
    let (sums, mut out) = (numbers(2 * COLS), vec![0.0; COLS]);
    let mut input = InputBuffer::new(1, COLS, Activation::F32);
    for (name, gate) in
        [("silu", Gate::Silu), ("clamped", Gate::Clamped { alpha: 1.702, limit: 7.0 })]
    {
        row(&format!("activation, {name}"), 3.0, &mut |isa| {
            let sums = black_box(&sums[..]);
            let (width, n) = (sums.len(), sums.len());
            let sums = GateUpSums { gate, sums, width, n, factors: &[], bias: None };
            prepare_gated(isa, Activation::F32, sums, &mut input);
        });
    }
    row("activation, softmax", 3.0, &mut |isa| softmax(isa, &mut out));
}

fn quantise() {
    let (x, mut input) = (numbers(COLS), InputBuffer::new(1, COLS, Activation::Int8));
    row("quantise, activations to int8", 4.0, &mut |isa| {
        prepare(isa, Activation::Int8, black_box(&x), input.row(0));
    });
    for format in KvFormat::ALL {
        let (page, single) = match format {
            KvFormat::F32 => (0.0, 0.0),
            KvFormat::Bf16 => (4.0, 0.0),
            _ => (4.0, 4.0),
        };
        let mut slots = vec![vec![0; format.slot_bytes(HEAD_DIM)]; 2];
        row(&format!("quantise, 32 keys and values to {format}"), page, &mut |isa| {
            let rows = x.chunks_exact(PAGE * HEAD_DIM);
            for (slot, numbers) in slots.iter_mut().zip(rows) {
                let rows =
                    Rows { numbers: black_box(numbers), stride: HEAD_DIM, dim: HEAD_DIM, n: PAGE };
                format.write_keys(isa, slot, 0, rows);
                format.write_values(isa, slot, 0, rows);
            }
        });
        let mut slot = vec![0; format.slot_bytes(HEAD_DIM)];
        row(&format!("quantise, key and value to {format}"), single, &mut |isa| {
            for (position, x) in x.chunks_exact(HEAD_DIM).take(PAGE).enumerate() {
                format.write_key(isa, &mut slot, position, black_box(x));
                format.write_value(isa, &mut slot, position, black_box(x));
            }
        });
    }
}

/// Every weight of a group as a number.
struct Dequantise<'a> {
    packing: Packing,
    group: &'a [u8],
    /// The numbers of a block of columns.
    out: &'a mut [[f32; 16]; 32],
}

struct With<'a, S>(S, Dequantise<'a>);

impl Kernel for Dequantise<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        self.packing.format.visit(With(s, self));
    }
}

/// Byte `B` of each lane, less `zero`, as numbers.
#[inline(always)]
fn column<S: Simd, const SHIFT: u32>(s: S, codes: S::U8, zero: i32) -> S::F32 {
    let byte = s.and_i32(s.shr_i32::<SHIFT>(s.u8_as_i32(codes)), s.splat_i32(255));
    s.i32_to_f32(s.sub_i32(byte, s.splat_i32(zero)))
}

impl<S: Simd> Visitor for With<'_, S> {
    type Output = ();

    #[inline(always)]
    fn codes<F: CodeFormat>(self) {
        let With(s, Dequantise { packing, group, out }) = self;
        let n_blocks = packing.n_blocks();
        for block in 0..n_blocks {
            let block = F::block(group, n_blocks, block);
            let (scales, mins) = (F::scales(s, block), F::mins(s, block));
            let out = black_box(&mut *out);
            for j in 0..4 {
                let (low, high) = F::pair(s, block, j);
                for (half, (codes, scale, min)) in
                    [(low, scales.0, mins.0), (high, scales.1, mins.1)].into_iter().enumerate()
                {
                    let columns = [
                        column::<S, 0>(s, codes, F::ZERO),
                        column::<S, 8>(s, codes, F::ZERO),
                        column::<S, 16>(s, codes, F::ZERO),
                        column::<S, 24>(s, codes, F::ZERO),
                    ];
                    let out = out[4 * j + 16 * half..].iter_mut();
                    for (column, out) in columns.into_iter().zip(out) {
                        s.store(s.sub(s.mul(column, scale), min), out);
                    }
                }
            }
        }
    }

    #[inline(always)]
    fn floats<F: FloatFormat>(self) {
        let With(s, Dequantise { packing, group, out }) = self;
        for block in (0..packing.padded_cols()).step_by(32) {
            let out = black_box(&mut *out);
            for (k, out) in (block..block + 32).step_by(2).zip(out.as_chunks_mut().0) {
                for (column, out) in F::pair(s, group, k).into_iter().zip::<&mut [_; 2]>(out) {
                    s.store(column, out);
                }
            }
        }
    }
}

fn dequantise() {
    for dtype in [Dtype::Mxfp4, Dtype::Q8_0, Dtype::Q4_0, Dtype::Q6K, Dtype::Bf16] {
        let (packing, bytes) = packed(dtype, ROWS, COLS.next_multiple_of(dtype.block_len()));
        let (group, mut out) = (&bytes[..packing.group_bytes()], [[0.0; 16]; 32]);
        let promised = if dtype == Dtype::Bf16 { 0.0 } else { 4.0 };
        row(&format!("dequantise, {}", dtype.name()), promised, &mut |isa| {
            isa.run(Dequantise { packing, group: black_box(group), out: &mut out });
        });
    }
}

fn main() {
    let isa = Isa::detect().expect("OSS_ISA names one that is here");
    println!("| operation | scalar, µs | {isa}, µs | times as fast | promised |");
    println!("|---|---|---|---|---|");
    products();
    attention();
    activations();
    quantise();
    dequantise();
    println!("\nscalar: compiled for the baseline, which the compiler vectorises for");
}
