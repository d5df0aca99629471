//! Does attention keep up with memory and with the multipliers, per format of keys and values and
//! instruction set?
//!
//! - *decode*: one token against keys and values that no cache holds, on all threads, beside
//!   reading memory.
//! - *prompt*: as many neighbouring tokens as a call should bring, against keys and values in
//!   cache, on one thread, beside multiply-adds: what exponentials take is not counted.
//! - *join*: four splits of a long sequence become one result.

#[path = "support/shares.rs"]
mod shares;

use oss_kernels::attention::{
    PAGE, QUERIES, Query, SPLIT, Shape, attend, attend_split, join_splits,
};
use oss_machine::beyond_caches;
use oss_memory::{Buffer, Pages};
use oss_quant::kv::KvFormat;
use oss_simd::Isa;
use oss_testing::Seeded;
use oss_threads::PerWorker;
use shares::{Bound, Shares, Work};
use std::cell::LazyCell;
use std::hint::black_box;

const HEAD_DIM: usize = 64;
/// Query heads that share a key/value head.
const HEADS: usize = 8;
/// Positions of a sequence in memory.
const LONG: usize = 4096;
/// Positions of a sequence in cache.
const SHORT: usize = 512;
/// Bytes of keys and values that a call of *decode* goes on by.
const CALL: usize = 16 << 20;

fn numbers(n: usize) -> Vec<f32> {
    Seeded::new(1).normals(n, 1.0)
}

const fn shape(format: KvFormat) -> Shape {
    Shape { format, head_dim: HEAD_DIM, scale: 0.125 }
}

/// One page of a key/value head.
fn slot(format: KvFormat) -> Vec<u8> {
    let mut slot = vec![0; format.slot_bytes(PAGE, HEAD_DIM)];
    for (position, row) in numbers(PAGE * HEAD_DIM).chunks_exact(HEAD_DIM).enumerate() {
        format.write_key(Isa::scalar(), &mut slot, position, row);
        format.write_value(Isa::scalar(), &mut slot, position, row);
    }
    slot
}

/// One token of each sequence: each call goes on where the last one ended.
fn decode(shares: &mut Shares, format: KvFormat) {
    let team = shares.team.clone();
    let page = slot(format);
    let sequence = LONG / PAGE * page.len();
    let sequences = beyond_caches() / sequence;
    let cached = LazyCell::new(|| {
        let mut bytes = Buffer::new(sequences * sequence, Pages::Huge).expect("memory");
        bytes.chunks_exact_mut(page.len()).for_each(|to| to.copy_from_slice(&page));
        bytes
    });
    let heads = numbers(HEADS * HEAD_DIM);
    let query = Query { heads: &heads, sinks: None, start: 0, end: LONG, blocks: None };
    let at_once = (CALL / sequence).next_multiple_of(team.threads());
    let work = Work {
        bound: Bound::Memory,
        amount: at_once * sequence,
        things: (at_once * LONG, "position"),
    };
    for isa in Isa::available() {
        let mut scratch = vec![vec![0.0; shape(format).scratch_len(HEADS)]; team.threads()];
        let mut first = 0;
        shares.kernel(&format!("attention, {format}, decode"), isa, work, || {
            let cached = &cached[..sequences * sequence];
            team.phase(at_once, PerWorker::new(&mut scratch), |at, scratch| {
                let at = (first + at.index) % sequences * sequence;
                let slot = |n| &cached[at + n * page.len()..][..page.len()];
                attend(isa, shape(format), &[query], slot, scratch, |_, out| _ = black_box(out));
            });
            first = (first + at_once) % sequences;
        });
    }
}

/// Neighbouring tokens of one sequence.
fn prompt(shares: &mut Shares, format: KvFormat) {
    let pages = vec![slot(format); SHORT / PAGE];
    let heads = numbers(HEADS * HEAD_DIM);
    let query = |t| Query {
        heads: &heads,
        sinks: None,
        start: 0,
        end: SHORT - QUERIES + 1 + t,
        blocks: None,
    };
    let queries: [Query<'_>; QUERIES] = std::array::from_fn(query);
    let seen = queries.iter().map(|query| query.end).sum::<usize>();
    // Two products a number of each key, two a number of each value.
    let work = Work {
        bound: Bound::F32,
        amount: 4 * HEADS * HEAD_DIM * seen,
        things: (seen, "token and position"),
    };
    let mut scratch = vec![0.0; shape(format).scratch_len(QUERIES * HEADS)];
    for isa in Isa::available() {
        shares.kernel(&format!("attention, {format}, prompt"), isa, work, || {
            let slot = |page: usize| pages[page].as_slice();
            let give = |_, out: &[f32]| _ = black_box(out);
            attend(isa, shape(format), &queries, slot, &mut scratch, give);
        });
    }
}

/// What was found of each split of one token.
fn join(shares: &mut Shares) {
    let shape = shape(KvFormat::Bf16);
    let page = slot(KvFormat::Bf16);
    let heads = numbers(HEADS * HEAD_DIM);
    let query = Query { heads: &heads, sinks: None, start: 0, end: LONG, blocks: None };
    let mut scratch = vec![0.0; shape.scratch_len(HEADS)];
    let splits: Vec<Vec<f32>> = (0..LONG / SPLIT)
        .map(|n| attend_split(Isa::scalar(), shape, &[query], n, |_| &page, &mut scratch).to_vec())
        .collect();
    let amount = splits.iter().map(|split| size_of_val(split.as_slice())).sum();
    let work = Work { bound: Bound::Cache, amount, things: (HEADS, "head") };
    for isa in Isa::available() {
        shares.kernel("attention, join of 4 splits", isa, work, || {
            let partial = |split: usize| splits[split].as_slice();
            let give = |_, out: &[f32]| _ = black_box(out);
            join_splits(isa, shape, &[query], partial, &mut scratch, give);
        });
    }
}

fn main() {
    let mut shares = Shares::new();
    for format in KvFormat::ALL {
        decode(&mut shares, format);
        prompt(&mut shares, format);
    }
    join(&mut shares);
    shares.finish();
}
