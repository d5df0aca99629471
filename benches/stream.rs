//! Do matrix products keep up with memory? Products of weights that no cache holds, as decoding
//! meets them: GB/s of weights for 1 to 64 input rows, and the share of what reading them alone, in
//! the best of many ways, gives.
//!
//! `cargo bench -p oss-kernels --bench stream` prints a table; all columns take turns, medians. The
//! environment chooses otherwise: `OSS_BENCH_THREADS` (2), `OSS_BENCH_TYPES` (`mxfp4,q8_0`).

#[path = "support/packed.rs"]
mod packed;

use oss_kernels::{Activation, InputBuffer, Panel, Product, linear, prepare};
use oss_machine::ReadProbe;
use oss_memory::{Buffer, Pages};
use oss_quant::{Dtype, GROUP_ROWS, Matrix, Packing};
use oss_simd::Isa;
use oss_testing::median;
use oss_threads::{PerWorker, Team};
use packed::{numbers, packed};
use std::time::Instant;

const COLS: usize = 2880;
/// Weight rows of a unit, as the model's phases have them.
const UNIT: usize = 64;
const INPUT_ROWS: [usize; 9] = [1, 2, 3, 4, 6, 8, 12, 16, 64];
const ROUNDS: usize = 9;
/// Bytes of weights: more than caches hold.
const WEIGHTS: usize = 1536 << 20;

/// What a worker computes in.
struct Scratch {
    panel: Panel,
    out: Vec<f32>,
}

fn main() {
    let isa = Isa::detect().expect("OSS_ISA names one that is here");
    let threads = std::env::var("OSS_BENCH_THREADS").map_or(2, |n| n.parse().expect("a number"));
    let types = std::env::var("OSS_BENCH_TYPES").unwrap_or_else(|_| "mxfp4,q8_0".into());
    let team = Team::new(threads).expect("threads");
    let probe = ReadProbe::new(isa, threads).expect("memory and threads");
    println!("{isa}, {threads} threads, GB/s of weights (share of reading alone)\n");
    print!("| weights | reading |");
    INPUT_ROWS.iter().for_each(|n| print!(" {n} |"));
    println!("\n|---|---:|{}", "---:|".repeat(INPUT_ROWS.len()));
    for name in types.split(',') {
        let dtype = Dtype::all().find(|dtype| dtype.name().eq_ignore_ascii_case(name));
        table_row(&team, &probe, isa, dtype.expect("a type's name"));
    }
}

fn table_row(team: &Team, probe: &ReadProbe, isa: Isa, dtype: Dtype) {
    let cols = COLS.next_multiple_of(dtype.block_len());
    let (unit, bytes) = packed(dtype, UNIT, cols);
    let units = WEIGHTS / bytes.len();
    let mut weights = Buffer::new(units * bytes.len(), Pages::Transparent).expect("memory");
    weights.chunks_exact_mut(bytes.len()).for_each(|to| to.copy_from_slice(&bytes));
    let weights = &weights[..units * bytes.len()];
    let packing = Packing::for_dtype(dtype, units * UNIT, cols).expect("whole blocks");
    let matrix = Matrix { packing, bytes: weights };
    let most = INPUT_ROWS[INPUT_ROWS.len() - 1];
    let mut input = InputBuffer::new(most, cols, Activation::Int8);
    (0..most).for_each(|row| prepare(isa, Activation::Int8, &numbers(cols), input.row(row)));
    let product = Product { matrix, input: input.view(), activation: Activation::Int8 };
    let rows: Vec<u32> = (0..most as u32).collect();
    let groups = unit.groups();
    let len = most * groups * GROUP_ROWS;
    let scratch = || Scratch { panel: Panel::ZERO, out: vec![0.0; len] };
    let mut scratch: Vec<Scratch> = (0..team.threads()).map(|_| scratch()).collect();
    let mut seconds = vec![Vec::new(); 1 + INPUT_ROWS.len()];
    for _ in 0..ROUNDS {
        seconds[0].push(weights.len() as f64 / probe.rate_of(&[weights]));
        for (n, seconds) in INPUT_ROWS.into_iter().zip(&mut seconds[1..]) {
            let start = Instant::now();
            team.phase(units, PerWorker::new(&mut scratch), |unit, Scratch { panel, out }| {
                let groups = unit.index * groups..(unit.index + 1) * groups;
                let out = &mut out[..n * groups.len() * GROUP_ROWS];
                linear(isa, product, (&rows[..n], groups), panel, out);
            });
            seconds.push(start.elapsed().as_secs_f64());
        }
    }
    let rates = seconds.into_iter().map(|all| weights.len() as f64 / 1e9 / median(all).expect("s"));
    let rates: Vec<f64> = rates.collect();
    print!("| {} | {:.1} |", dtype.name(), rates[0]);
    rates[1..].iter().for_each(|rate| print!(" {rate:.1} ({:.0} %) |", 100.0 * rate / rates[0]));
    println!();
}
