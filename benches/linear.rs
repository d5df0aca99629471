//! How fast are matrix products, per weight type and instruction set, and what share of the
//! processor's peak is that?
//!
//! One unit of a gpt-oss layer (64 weight rows of 2,880 columns, which lie in cache) times 1 to 64
//! rows of activations. Throughput is in multiply-adds (elements) per second; `peak` is what
//! the instruction set does with byte products whose operands never leave registers.
#![expect(missing_docs, reason = "criterion_group makes public functions")]

#[path = "support/packed.rs"]
mod packed;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use oss_kernels::{Activation, InputBuffer, Panel, Product, linear, prepare};
use oss_quant::{Dtype, Matrix};
use oss_simd::{Isa, Kernel, Simd};
use packed::{numbers, packed};
use std::hint::black_box;
use std::time::Duration;

const COLS: usize = 2880;
const ROWS: usize = 64;
const MOST: usize = 64;

/// Independent chains of byte products.
struct Peak {
    calls: usize,
}

/// Multiply-adds of a call of `dot`.
const PER_DOT: usize = 64;

impl Peak {
    #[inline(always)]
    fn chains<S: Simd, const N: usize>(&self, s: S) -> i32 {
        let codes: [S::U8; N] = std::array::from_fn(|_| s.load_u8(black_box(&[1; 64])));
        let mut total = s.zero_i32();
        let mut quad = black_box(0);
        for _ in 0..self.calls / (4 * N) {
            let mut sums = [s.dot_start(0, 0); N];
            for _ in 0..4 {
                quad += 1;
                for (sum, codes) in sums.iter_mut().zip(codes) {
                    *sum = s.dot(*sum, codes, quad);
                }
            }
            for sum in sums {
                total = s.add_i32(total, s.dot_sum(sum));
            }
        }
        s.reduce_add_i32(total)
    }
}

impl Kernel for Peak {
    type Output = i32;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> i32 {
        if S::REGISTERS >= 32 { self.chains::<S, 12>(s) } else { self.chains::<S, 3>(s) }
    }
}

/// Rows of activations in all forms.
fn inputs(isa: Isa, cols: usize) -> InputBuffer {
    let mut buffer = InputBuffer::new(MOST, cols, Activation::Int8);
    for row in 0..MOST {
        prepare(isa, Activation::Int8, &numbers(cols), buffer.row(row));
    }
    buffer
}

fn products(c: &mut Criterion) {
    let types = [Dtype::Mxfp4, Dtype::Q8_0, Dtype::Q4_0, Dtype::Q4_1, Dtype::Q6K, Dtype::Bf16];
    let rows: Vec<u32> = (0..MOST as u32).collect();
    for isa in Isa::available() {
        let mut group = c.benchmark_group(format!("linear/{isa}"));
        group.sample_size(10);
        group.warm_up_time(Duration::from_millis(100));
        group.measurement_time(Duration::from_millis(300));
        let calls = 480_000;
        group.throughput(Throughput::Elements((calls * PER_DOT) as u64));
        group.bench_function("peak", |b| b.iter(|| isa.run(Peak { calls: black_box(calls) })));
        for dtype in types {
            let cols = COLS.next_multiple_of(dtype.block_len());
            let (packing, bytes) = packed(dtype, ROWS, cols);
            let matrix = Matrix { packing, bytes: &bytes };
            let inputs = inputs(isa, cols);
            let mut panel = Panel::ZERO;
            for activation in [Activation::Int8, Activation::F32] {
                let product = Product { matrix, input: inputs.view(), activation };
                for n in [1, 2, 4, 8, MOST] {
                    let mut out = vec![0.0; n * ROWS];
                    group.throughput(Throughput::Elements((n * ROWS * cols) as u64));
                    let name = format!("{}/{}", dtype.name(), activation.name());
                    group.bench_with_input(BenchmarkId::new(name, n), &n, |b, n| {
                        let all = 0..packing.groups();
                        let rows = &rows[..*n];
                        b.iter(|| linear(isa, product, (rows, all.clone()), &mut panel, &mut out));
                    });
                }
            }
        }
    }
}

criterion_group!(benches, products);
criterion_main!(benches);
