//! What do the small operations between products and attention take, per instruction set: rotation,
//! norms, activations, rounding to codes, sums, routing?
//!
//! One thread, operands in cache: GB/s of what is read and written, beside reading as many bytes
//! from there. Exponentials and roots keep activations, softmax and routing below that; finding the
//! largest logits and adding sums of squares are code for any processor.

#[path = "support/shares.rs"]
mod shares;

use oss_kernels::elementwise::{Gate, rotate, scaled_add};
use oss_kernels::{
    Activation, GainedRows, GateUpSums, InputBuffer, prepare, prepare_gated, prepare_with_gain,
    rms_factor, route, softmax,
};
use oss_simd::Isa;
use oss_testing::Seeded;
use shares::{Bound, Shares, Work};
use std::hint::black_box;

const COLS: usize = 2880;
const HEAD_DIM: usize = 64;
const HEADS: usize = 64;
const EXPERTS: usize = 32;
const CHOSEN: usize = 4;

/// So many numbers read and written besides these bytes, for so many things.
const fn work(numbers: usize, bytes: usize, things: (usize, &'static str)) -> Work {
    Work { bound: Bound::Cache, amount: 4 * numbers + bytes, things }
}

fn numbers(n: usize) -> Vec<f32> {
    Seeded::new(1).normals(n, 1.0)
}

/// Rotates all heads of a token by its position.
fn rotation(shares: &mut Shares) {
    let (mut heads, angles) = (numbers(HEADS * HEAD_DIM), numbers(HEAD_DIM / 2));
    let (cos, sin): (Vec<f32>, Vec<f32>) = angles.iter().map(|a| (a.cos(), a.sin())).unzip();
    for isa in Isa::available() {
        let work = work(2 * heads.len() + HEAD_DIM, 0, (HEADS, "head"));
        shares.kernel("rotate, heads of 64", isa, work, || {
            heads.chunks_exact_mut(HEAD_DIM).for_each(|head| rotate(isa, head, &cos, &sin));
        });
    }
}

/// Adds an expert's output to the residual stream.
fn sum(shares: &mut Shares) {
    // Nothing is added, so that sums stay finite.
    let (x, mut to) = (numbers(COLS), numbers(COLS));
    for isa in Isa::available() {
        shares.kernel("scaled add", isa, work(3 * COLS, 0, (1, "row")), || {
            scaled_add(isa, black_box(0.0), &x, &mut to);
        });
    }
}

/// Writes a row in the forms that matrices take.
fn preparation(shares: &mut Shares) {
    let x = numbers(COLS);
    for activation in Activation::ALL {
        let mut input = InputBuffer::for_codes(1, COLS, activation);
        let work = work(COLS, input.bytes(), (1, "row"));
        for isa in Isa::available() {
            shares.kernel(&format!("prepare, {}", activation.name()), isa, work, || {
                prepare(isa, activation, black_box(&x), input.row(0));
            });
        }
    }
}

/// A norm's gains with its sums of squares, and the factor that these give.
fn norm(shares: &mut Shares) {
    let (x, gain) = (numbers(COLS), numbers(COLS));
    for activation in [Activation::F32, Activation::Int8] {
        let mut input = InputBuffer::for_codes(1, COLS, activation).with_squares(1);
        let work = work(2 * COLS, input.bytes(), (1, "row"));
        for isa in Isa::available() {
            shares.kernel(&format!("norm, {}", activation.name()), isa, work, || {
                let numbers = GainedRows { x: black_box(&x), width: COLS, gain: &gain };
                prepare_with_gain(isa, activation, numbers, &mut input);
            });
        }
    }
    let squares = vec![1.0; COLS / 32];
    let work = work(squares.len(), 0, (1, "row"));
    shares.kernel("norm, factor of the sums of squares", Isa::scalar(), work, || {
        black_box(rms_factor(black_box(&squares), COLS, 1e-5));
    });
}

/// The activation between the two halves of a feed-forward layer.
fn activation(shares: &mut Shares) {
    let sums = numbers(2 * COLS);
    let (width, n) = (sums.len(), sums.len());
    let mut input = InputBuffer::for_codes(1, COLS, Activation::Int8);
    let work = work(n, input.bytes(), (1, "row"));
    let clamped = Gate::Clamped { alpha: 1.702, limit: 7.0 };
    for (name, gate) in [("silu", Gate::Silu), ("clamped", clamped)] {
        for isa in Isa::available() {
            shares.kernel(&format!("gate and up, {name}, to int8"), isa, work, || {
                let sums = black_box(&sums[..]);
                let sums = GateUpSums { gate, sums, width, n, factors: &[], bias: None };
                prepare_gated(isa, Activation::Int8, sums, &mut input);
            });
        }
    }
}

/// Chooses experts, and shares of many numbers.
fn routing(shares: &mut Shares) {
    let logits = numbers(EXPERTS);
    let (mut experts, mut parts) = ([0; CHOSEN], [0.0; CHOSEN]);
    let mut all = numbers(COLS);
    for isa in Isa::available() {
        let choosing = work(EXPERTS + 2 * CHOSEN, 0, (1, "row"));
        shares.kernel("route, 4 of 32 experts", isa, choosing, || {
            route(isa, black_box(&logits), &mut experts, &mut parts);
        });
        shares.kernel("softmax", isa, work(2 * COLS, 0, (1, "row")), || softmax(isa, &mut all));
    }
}

fn main() {
    let mut shares = Shares::new();
    rotation(&mut shares);
    sum(&mut shares);
    preparation(&mut shares);
    norm(&mut shares);
    activation(&mut shares);
    routing(&mut shares);
    shares.finish();
}
