//! How fast are matrix products, per weight type, kind of activations and instruction set, and what
//! share of the machine's bound is that?
//!
//! - *decode*: one row times weights that no cache holds, on all threads, beside reading memory.
//! - *some rows*: the same for single weight rows here and there, each of which brings the 15 that
//!   are packed with it: logits of some tokens alone.
//! - *8 rows*, *64 rows*: what speculation or a small batch, and a prompt, bring to one unit of a
//!   gpt-oss layer (64 weight rows of 2,880 columns, which lie in cache), on one thread, beside the
//!   multipliers. 16-bit activations are two planes of bytes, and both products count.
//!
//! bf16 activations run the same code as f32 ones. How rows between these fare is what `stream`
//! asks.

#[path = "support/packed.rs"]
mod packed;
#[path = "support/shares.rs"]
mod shares;

use oss_kernels::{Activation, InputBuffer, Panel, Product, linear, linear_columns, prepare};
use oss_machine::beyond_caches;
use oss_memory::{Buffer, Pages};
use oss_quant::{Dtype, GROUP_ROWS, Matrix, Packed, Packing};
use oss_simd::Isa;
use oss_threads::PerWorker;
use packed::{numbers, packed};
use shares::{Bound, Shares, Work};
use std::cell::LazyCell;

const COLS: usize = 2880;
/// Weight rows of a unit, as the model's phases have them.
const UNIT: usize = 64;
/// Bytes of weights that a call of *decode* goes on by.
const CALL: usize = 16 << 20;
/// Experts, each of which is a row of a router.
const EXPERTS: usize = 32;

/// Rows of activations.
fn inputs(isa: Isa, activation: Activation, rows: usize, cols: usize) -> InputBuffer {
    let mut buffer = InputBuffer::new(rows, cols, activation);
    (0..rows).for_each(|row| prepare(isa, activation, &numbers(cols), buffer.row(row)));
    buffer
}

/// Groups from one of *some rows* to the next: a prime, so that all come in turn.
const APART: usize = 7919;

/// One row times weights in memory: each call goes on where the last one ended.
fn decode(shares: &mut Shares, dtype: Dtype, activation: Activation) {
    let team = shares.team.clone();
    let cols = COLS.next_multiple_of(dtype.block_len());
    let (unit, bytes) = packed(dtype, UNIT, cols);
    let units = beyond_caches() / bytes.len();
    let weights = LazyCell::new(|| {
        let mut weights = Buffer::new(units * bytes.len(), Pages::Transparent).expect("memory");
        weights.chunks_exact_mut(bytes.len()).for_each(|to| to.copy_from_slice(&bytes));
        weights
    });
    let packing = Packing::for_dtype(dtype, units * UNIT, cols).expect("whole blocks");
    let names = ["decode", "some rows"];
    let names = names.map(|name| format!("{name}, {} × {}", dtype.name(), activation.name()));
    let at_once = (CALL / bytes.len()).next_multiple_of(team.threads());
    let (groups, n) = (packing.groups(), at_once * unit.groups());
    let (bound, amount) = (Bound::Memory, at_once * bytes.len());
    for isa in Isa::available() {
        let input = inputs(isa, activation, 1, cols);
        let mut scratch = vec![(Panel::ZERO, vec![0.0; UNIT]); team.threads()];
        let (mut first, mut first_group) = (0, 0);
        let work = Work { bound, amount, things: (at_once * UNIT, "weight row") };
        shares.kernel(&names[0], isa, work, || {
            let matrix = Matrix { packing, bytes: &weights[..units * bytes.len()] };
            let product = Product { matrix, input: input.view(), activation };
            team.phase(at_once, PerWorker::new(&mut scratch), |at, (panel, out)| {
                let group = (first + at.index) % units * unit.groups();
                linear(isa, product, (&[0], group..group + unit.groups()), panel, out);
            });
            first = (first + at_once) % units;
        });
        let work = Work { bound, amount, things: (n, "weight row") };
        shares.kernel(&names[1], isa, work, || {
            let matrix = Matrix { packing, bytes: &weights[..units * bytes.len()] };
            let product = Product { matrix, input: input.view(), activation };
            team.phase(n, PerWorker::new(&mut scratch), |at, (panel, out)| {
                let group = (first_group + at.index) * APART % groups;
                linear(isa, product, (&[0], group..group + 1), panel, &mut out[..GROUP_ROWS]);
            });
            first_group = (first_group + n) % groups;
        });
    }
}

/// Some rows times weights in cache.
fn rows(shares: &mut Shares, dtype: Dtype, activation: Activation, n: usize) {
    let cols = COLS.next_multiple_of(dtype.block_len());
    let (packing, bytes) = packed(dtype, UNIT, cols);
    let matrix = Matrix { packing, bytes: &bytes };
    let all: Vec<u32> = (0..n as u32).collect();
    let name = format!("{n} rows, {} × {}", dtype.name(), activation.name());
    let planes = activation.planes();
    let bound = if planes > 0 { Bound::Int8 } else { Bound::F32 };
    let work = Work { bound, amount: 2 * n * UNIT * cols * planes.max(1), things: (n, "row") };
    for isa in Isa::available() {
        let input = inputs(isa, activation, n, cols);
        let product = Product { matrix, input: input.view(), activation };
        let (mut panel, mut out) = (Panel::ZERO, vec![0.0; n * packing.groups() * GROUP_ROWS]);
        shares.kernel(&name, isa, work, || {
            linear(isa, product, (&all, 0..packing.groups()), &mut panel, &mut out);
        });
    }
}

/// A router's columns that one worker has: a quarter of a row, times all experts.
fn columns(shares: &mut Shares) {
    let (packing, bytes) = packed(Dtype::Bf16, EXPERTS, COLS);
    let matrix = Matrix { packing, bytes: &bytes };
    let range = 0..(COLS / 4).next_multiple_of(32);
    let amount = bytes.len() * range.len() / COLS;
    let work = Work { bound: Bound::Cache, amount, things: (1, "row") };
    for isa in Isa::available() {
        let input = inputs(isa, Activation::F32, 1, range.len());
        let product = Product { matrix, input: input.view(), activation: Activation::F32 };
        let mut out = vec![0.0; EXPERTS];
        shares.kernel("columns of a router, BF16 × f32", isa, work, || {
            let groups = (&[0][..], 0..packing.groups());
            linear_columns(isa, product, groups, range.clone(), &mut out);
        });
    }
}

fn main() {
    let mut shares = Shares::new();
    for packed in Packed::all() {
        let dtype = packed.dtype();
        if packed.is_float() {
            // What such weights take where the choice is codes.
            decode(&mut shares, dtype, Activation::Bf16);
            rows(&mut shares, dtype, Activation::F32, 64);
        } else {
            decode(&mut shares, dtype, Activation::Int8);
            rows(&mut shares, dtype, Activation::Int8, 8);
            for activation in [Activation::Int8, Activation::Int16, Activation::F32] {
                rows(&mut shares, dtype, activation, 64);
            }
        }
    }
    columns(&mut shares);
    shares.finish();
}
