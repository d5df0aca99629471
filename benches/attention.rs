//! Does attention keep up with memory? One token against keys and values that no cache holds, and
//! many tokens of a prompt: ns per position, GB/s of keys and values, and products a second.
//!
//! `cargo bench -p oss-kernels --bench attention` prints a table; all formats take turns, medians.
//! `OSS_BENCH_THREADS` (2) chooses the threads.

use oss_kernels::attention::{PAGE, QUERIES, Query, Shape, attend};
use oss_memory::{Buffer, Pages};
use oss_quant::kv::KvFormat;
use oss_simd::Isa;
use oss_testing::median;
use oss_threads::{PerWorker, Team};
use std::hint::black_box;
use std::time::Instant;

const HEAD_DIM: usize = 64;
/// Query heads that share a key/value head.
const HEADS: usize = 8;
const POSITIONS: usize = 4096;
/// Bytes of keys and values: more than caches hold.
const BYTES: usize = 256 << 20;
const ROUNDS: usize = 9;

/// Keys and values of some sequences, one after the other.
struct Cached {
    format: KvFormat,
    slot_bytes: usize,
    sequences: usize,
    bytes: Buffer,
}

impl Cached {
    fn new(isa: Isa, format: KvFormat) -> Self {
        let slot_bytes = format.slot_bytes(PAGE, HEAD_DIM);
        let mut slot = vec![0; slot_bytes];
        for position in 0..PAGE {
            let at = |n: usize| ((position * HEAD_DIM + n) as f32 * 0.7).sin();
            let row: Vec<f32> = (0..HEAD_DIM).map(at).collect();
            format.write_key(isa, &mut slot, position, &row);
            format.write_value(isa, &mut slot, position, &row);
        }
        let sequence_bytes = POSITIONS / PAGE * slot_bytes;
        let sequences = BYTES / sequence_bytes;
        let mut bytes = Buffer::new(sequences * sequence_bytes, Pages::Huge).expect("memory");
        let used = &mut bytes[..sequences * sequence_bytes];
        used.chunks_exact_mut(slot_bytes).for_each(|to| to.copy_from_slice(&slot));
        Self { format, slot_bytes, sequences, bytes }
    }

    /// Seconds of so many neighbouring tokens of each sequence against all before them.
    fn seconds(&self, isa: Isa, team: &Team, tokens: usize) -> f64 {
        let shape = Shape { format: self.format, head_dim: HEAD_DIM, scale: 0.125 };
        let heads: Vec<f32> = (0..HEADS * HEAD_DIM).map(|n| (n as f32 * 0.3).cos()).collect();
        let queries: Vec<Query<'_>> = (0..tokens)
            .map(|t| Query {
                heads: &heads,
                sinks: None,
                start: 0,
                end: POSITIONS - tokens + 1 + t,
            })
            .collect();
        let scratch = || vec![0.0; shape.scratch_len(tokens * HEADS)];
        let mut scratch: Vec<_> = (0..team.threads()).map(|_| scratch()).collect();
        let start = Instant::now();
        team.phase(self.sequences, PerWorker::new(&mut scratch), |unit, scratch| {
            let first = unit.index * (POSITIONS / PAGE);
            let slot = |page| &self.bytes[(first + page) * self.slot_bytes..][..self.slot_bytes];
            attend(isa, shape, &queries, slot, scratch, |_, out| _ = black_box(out));
        });
        start.elapsed().as_secs_f64()
    }
}

fn main() {
    let isa = Isa::detect().expect("OSS_ISA names one that is here");
    let threads = std::env::var("OSS_BENCH_THREADS").map_or(2, |n| n.parse().expect("a number"));
    let team = Team::new(threads).expect("threads");
    println!("{isa}, {threads} threads, {HEADS} heads of {HEAD_DIM}, {POSITIONS} positions\n");
    println!("| keys and values | tokens | ns a token and position | GB/s | GFLOP/s |");
    println!("|---|---:|---:|---:|---:|");
    let cached = KvFormat::ALL.map(|format| Cached::new(isa, format));
    for tokens in [1, QUERIES] {
        let mut seconds = cached.each_ref().map(|_| Vec::new());
        for _ in 0..ROUNDS {
            for (cached, seconds) in cached.iter().zip(&mut seconds) {
                seconds.push(cached.seconds(isa, &team, tokens));
            }
        }
        for (cached, seconds) in cached.iter().zip(seconds) {
            let seconds = median(seconds).expect("rounds");
            let positions = (cached.sequences * POSITIONS) as f64;
            let bytes = positions * cached.slot_bytes as f64 / PAGE as f64;
            let operations = positions * (4 * HEADS * HEAD_DIM * tokens) as f64;
            println!(
                "| {} | {tokens} | {:.1} | {:.1} | {:.0} |",
                cached.format,
                seconds * 1e9 / positions / tokens as f64,
                bytes / 1e9 / seconds,
                operations / 1e9 / seconds,
            );
        }
    }
}
