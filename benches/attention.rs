//! Does attention keep up with memory and with the multipliers, per format of keys and values and
//! instruction set?
//!
//! - *decode*: one token against keys and values that no cache holds, on all threads, beside
//!   reading memory; *in splits* that workers share, and of *chosen blocks* alone.
//! - *prompt*: as many neighbouring tokens as a call should bring, against keys and values in
//!   cache, on one thread, beside multiply-adds: what exponentials take is not counted. Of *chosen
//!   blocks*, each token has another that only some of the others see.
//! - *select*: which blocks a token sees, or as many tokens as in a prompt, by the means of pages,
//!   bound in the same ways; means lie one after the other, not behind slots.
//! - *merge*: four splits of a long sequence become one result.

#[path = "support/shares.rs"]
mod shares;

use oss_kernels::attention::{
    PAGE, QUERIES, Query, SPLIT, Shape, SparseAttention, TILE, TileSlots, attend, attend_split,
    merge_splits, select_blocks,
};
use oss_machine::beyond_caches;
use oss_memory::{Buffer, Pages};
use oss_quant::kv::{KvFormat, mean_bytes};
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
/// Bytes of keys and values, or of means, that a call of *decode* goes on by.
const CALL: usize = 16 << 20;
/// What tokens see of a sequence in memory: half of it.
const SPARSE: SparseAttention = SparseAttention { first: TILE, window: 16 * TILE, blocks: 15 };

fn numbers(n: usize) -> Vec<f32> {
    Seeded::new(1).normals(n, 1.0)
}

const fn shape(format: KvFormat) -> Shape {
    Shape { format, head_dim: HEAD_DIM, scale: 0.125 }
}

/// One page of a key/value head.
fn slot(format: KvFormat) -> Vec<u8> {
    let mut slot = vec![0; format.slot_bytes(HEAD_DIM)];
    for (position, row) in numbers(PAGE * HEAD_DIM).chunks_exact(HEAD_DIM).enumerate() {
        format.write_key(Isa::scalar(), &mut slot, position, row);
        format.write_value(Isa::scalar(), &mut slot, position, row);
    }
    slot
}

/// What is done with the n-th split of a sequence, or with all of it, in scratch.
type Unit<'u> = dyn for<'a> Fn(usize, &dyn Fn(usize) -> &'a [u8], &mut [f32]) + Sync + 'u;

/// One token of each sequence: each call goes on where the last one ended.
fn decode(shares: &mut Shares, format: KvFormat) {
    let team = shares.team.clone();
    let page = slot(format);
    let sequence = LONG / PAGE * page.len();
    let sequences = beyond_caches() / sequence;
    let cached = LazyCell::new(|| {
        let mut bytes = Buffer::new(sequences * sequence, Pages::Transparent).expect("memory");
        bytes.chunks_exact_mut(page.len()).for_each(|to| to.copy_from_slice(&page));
        bytes
    });
    let heads = numbers(HEADS * HEAD_DIM);
    // The first block, every third between, and the window.
    let blocks: Vec<u32> = (0..1).chain((1..46).step_by(3)).chain(48..64).collect();
    let all = Query { heads: &heads, sinks: None, start: 0, end: LONG, blocks: None };
    let chosen = Query { blocks: Some(&blocks), ..all };
    let at_once = (CALL / sequence).next_multiple_of(team.threads());
    let work = |seen: usize| Work {
        bound: Bound::Memory,
        amount: at_once * sequence / LONG * seen,
        things: (at_once * seen, "position"),
    };
    for isa in Isa::available() {
        let mut scratch = vec![vec![0.0; shape(format).scratch_len(HEADS)]; team.threads()];
        let mut first = 0;
        // A phase in which each unit does something with the slots of a sequence.
        let mut phase = |units: usize, unit: &Unit<'_>| {
            let cached = &cached[..sequences * sequence];
            team.phase(at_once * units, PerWorker::new(&mut scratch), |at, scratch| {
                let begin = (first + at.index / units) % sequences * sequence;
                let slot = |n: usize| &cached[begin + n * page.len()..][..page.len()];
                unit(at.index % units, &slot, scratch);
            });
            first = (first + at_once) % sequences;
        };
        let ways = [("", all, LONG), (", chosen blocks", chosen, TILE * blocks.len())];
        for (way, query, seen) in ways {
            let name = format!("attention, {format}, decode{way}");
            shares.kernel(&name, isa, work(seen), || {
                phase(1, &|_, slot, scratch| {
                    let give = |_, out: &[f32]| _ = black_box(out);
                    attend(
                        isa,
                        shape(format),
                        &[query],
                        (slot, TileSlots::default()),
                        scratch,
                        give,
                    );
                });
            });
        }
        let name = format!("attention, {format}, decode in splits");
        shares.kernel(&name, isa, work(LONG), || {
            phase(LONG / SPLIT, &|split, slot, scratch| {
                black_box(attend_split(isa, shape(format), &[all], split, slot, scratch));
            });
        });
    }
}

/// Neighbouring tokens of one sequence.
fn prompt(shares: &mut Shares, format: KvFormat) {
    let pages = vec![slot(format); SHORT / PAGE];
    let heads = numbers(HEADS * HEAD_DIM);
    // The first block, one of the others, and the window.
    let blocks: [[u32; 4]; QUERIES] = std::array::from_fn(|t| [0, 1 + t as u32 % 5, 6, 7]);
    let query = |t| Query {
        heads: &heads,
        sinks: None,
        start: 0,
        end: SHORT - QUERIES + 1 + t,
        blocks: None,
    };
    let all: [Query<'_>; QUERIES] = std::array::from_fn(query);
    let chosen = std::array::from_fn(|t| Query { blocks: Some(&blocks[t][..]), ..all[t] });
    let mut scratch = vec![0.0; shape(format).scratch_len(QUERIES * HEADS)];
    for (way, queries, hidden) in [("", all, 0), (", chosen blocks", chosen, 4 * TILE)] {
        let seen = queries.iter().map(|query| query.end - hidden).sum::<usize>();
        // Two products a number of each key, two a number of each value.
        let work = Work {
            bound: Bound::F32,
            amount: 4 * HEADS * HEAD_DIM * seen,
            things: (seen, "token and position"),
        };
        for isa in Isa::available() {
            shares.kernel(&format!("attention, {format}, prompt{way}"), isa, work, || {
                let slot = |page: usize| pages[page].as_slice();
                let give = |_, out: &[f32]| _ = black_box(out);
                attend(
                    isa,
                    shape(format),
                    &queries,
                    (slot, TileSlots::default()),
                    &mut scratch,
                    give,
                );
            });
        }
    }
}

/// Which blocks a token of each sequence sees, and the tokens of a prompt.
fn choice(shares: &mut Shares) {
    let team = shares.team.clone();
    let means: Vec<u8> =
        numbers(LONG / PAGE * HEAD_DIM).into_iter().flat_map(f32::to_le_bytes).collect();
    let sequences = beyond_caches() / means.len();
    let cached = LazyCell::new(|| {
        let mut bytes = Buffer::new(sequences * means.len(), Pages::Transparent).expect("memory");
        bytes.chunks_exact_mut(means.len()).for_each(|to| to.copy_from_slice(&means));
        bytes
    });
    let mean_len = mean_bytes(HEAD_DIM);
    let heads = numbers(HEADS * HEAD_DIM);
    let query = Query { heads: &heads, sinks: None, start: 0, end: LONG, blocks: None };
    let room = SPARSE.n_blocks(LONG).expect("a token that chooses");
    // Those between the first positions and the window.
    let pages = (LONG - SPARSE.first - SPARSE.window) / PAGE;
    let at_once = (CALL / means.len()).next_multiple_of(team.threads());
    let amount = at_once * pages * mean_len;
    let work = Work { bound: Bound::Memory, amount, things: (at_once * pages, "page") };
    for isa in Isa::available() {
        let scratch = (vec![0.0; SPARSE.scratch_len(HEAD_DIM, 1)], vec![0; room]);
        let (mut scratch, mut first) = (vec![scratch; team.threads()], 0);
        shares.kernel("select, decode", isa, work, || {
            let cached = &cached[..sequences * means.len()];
            team.phase(at_once, PerWorker::new(&mut scratch), |at, (scratch, blocks)| {
                let begin = (first + at.index) % sequences * means.len();
                let mean = |page: usize| &cached[begin + page * mean_len..][..mean_len];
                select_blocks(isa, (HEAD_DIM, SPARSE), &[query], mean, scratch, blocks);
                black_box(blocks);
            });
            first = (first + at_once) % sequences;
        });
    }
    let amount = QUERIES * 2 * HEADS * HEAD_DIM * pages;
    let work = Work { bound: Bound::F32, amount, things: (QUERIES * pages, "token and page") };
    let mut scratch = vec![0.0; SPARSE.scratch_len(HEAD_DIM, QUERIES)];
    let mut blocks = vec![0; QUERIES * room];
    for isa in Isa::available() {
        shares.kernel("select, prompt", isa, work, || {
            let mean = |page: usize| &means[page * mean_len..][..mean_len];
            let queries = [query; QUERIES];
            select_blocks(isa, (HEAD_DIM, SPARSE), &queries, mean, &mut scratch, &mut blocks);
            black_box(&mut blocks);
        });
    }
}

/// What was found of each split of one token.
fn merge(shares: &mut Shares) {
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
        shares.kernel("attention, merge of 4 splits", isa, work, || {
            let partial = |split: usize| splits[split].as_slice();
            let give = |_, out: &[f32]| _ = black_box(out);
            merge_splits(isa, shape, &[query], partial, &mut scratch, give);
        });
    }
}

fn main() {
    let mut shares = Shares::new();
    for format in KvFormat::ALL {
        decode(&mut shares, format);
        prompt(&mut shares, format);
    }
    choice(&mut shares);
    merge(&mut shares);
    shares.finish();
}
