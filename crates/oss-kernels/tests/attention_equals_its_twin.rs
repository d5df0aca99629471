//! Attention over pages against double precision, and against itself.

use oss_kernels::attention::{PAGE, Query, Shape, attend, attend_split, join_splits, splits};
use oss_quant::kv::KvFormat;
use oss_simd::Isa;
use oss_testing::{Seeded, assert_close, twins};

struct Pages {
    slots: Vec<Vec<u8>>,
    keys: Vec<Vec<f32>>,
    values: Vec<Vec<f32>>,
}

/// `n` positions; what lies behind them in the last page is as bad as it can be.
fn pages(format: KvFormat, dim: usize, n: usize, seeded: &mut Seeded) -> Pages {
    let bytes = format.slot_bytes(PAGE, dim);
    let mut slots = vec![vec![0xff; bytes]; n.div_ceil(PAGE)];
    let (mut keys, mut values) = (Vec::new(), Vec::new());
    for position in 0..n {
        let slot = &mut slots[position / PAGE];
        let (mut key, mut value) = (seeded.normals(dim, 1.0), seeded.normals(dim, 1.0));
        format.write_key(Isa::scalar(), slot, position % PAGE, &key);
        format.write_value(Isa::scalar(), slot, position % PAGE, &value);
        format.read_key(slot, position % PAGE, &mut key);
        format.read_value(slot, position % PAGE, &mut value);
        keys.push(key);
        values.push(value);
    }
    Pages { slots, keys, values }
}

fn run(isa: Isa, shape: Shape, query: Query<'_>, pages: &Pages) -> Vec<f32> {
    let n_heads = query.heads.len() / shape.head_dim;
    let mut scratch = vec![f32::NAN; shape.scratch_len(n_heads)];
    let mut out = vec![f32::NAN; query.heads.len()];
    let slot = |page: usize| pages.slots[page].as_slice();
    attend(isa, shape, &[query], slot, &mut scratch, |_, heads| out.copy_from_slice(heads));
    out
}

/// The same split by split, joined afterwards; what each query gets.
fn run_split(isa: Isa, shape: Shape, queries: &[Query<'_>], pages: &Pages) -> Vec<Vec<f32>> {
    let n_heads = queries.len() * queries[0].heads.len() / shape.head_dim;
    let mut scratch = vec![f32::NAN; shape.scratch_len(n_heads)];
    let slot = |page: usize| pages.slots[page].as_slice();
    let seen = splits(queries[0].start, queries[queries.len() - 1].end);
    let partials: Vec<Vec<f32>> = seen
        .clone()
        .map(|split| attend_split(isa, shape, queries, split, slot, &mut scratch).to_vec())
        .collect();
    let partial = |split: usize| partials[split - seen.start].as_slice();
    let mut out = vec![Vec::new(); queries.len()];
    scratch.fill(f32::NAN);
    join_splits(isa, shape, queries, partial, &mut scratch, |t, heads| out[t] = heads.to_vec());
    out
}

fn twin(shape: Shape, query: Query<'_>, pages: &Pages) -> Vec<f64> {
    let mut out = Vec::new();
    for (h, head) in query.heads.chunks_exact(shape.head_dim).enumerate() {
        let head = twins::widen(head);
        let mut scores: Vec<f64> = (query.start..query.end)
            .map(|p| twins::dot(&head, &twins::widen(&pages.keys[p])) * f64::from(shape.scale))
            .collect();
        scores.extend(query.sinks.map(|sinks| f64::from(sinks[h])));
        let weights = twins::softmax(&scores);
        for d in 0..shape.head_dim {
            let of = |p: usize| f64::from(pages.values[p][d]) * weights[p - query.start];
            out.push((query.start..query.end).map(of).sum());
        }
    }
    out
}

#[test]
fn attention_equals_double_precision_over_formats_shapes_and_windows() {
    let mut seeded = Seeded::new(3);
    for format in KvFormat::ALL {
        for (n_heads, dim) in [(1, 64), (3, 64), (8, 64), (9, 16), (2, 80), (15, 128)] {
            for (start, end) in [(0, 1), (0, 16), (3, 64), (0, 65), (60, 70), (7, 1100), (0, 2050)]
            {
                let pages = pages(format, dim, end, &mut seeded);
                let heads = seeded.normals(n_heads * dim, 1.0);
                let sinks = seeded.normals(n_heads, 3.0);
                for sinks in [None, Some(sinks.as_slice())] {
                    let shape = Shape { format, head_dim: dim, scale: 0.125 };
                    let query = Query { heads: &heads, sinks, start, end };
                    let want = twin(shape, query, &pages);
                    let first = run(Isa::scalar(), shape, query, &pages);
                    assert_close(&first, &want, 5e-6, 2e-5);
                    for isa in Isa::available() {
                        let got = run(isa, shape, query, &pages);
                        assert_eq!(got, first, "{isa} {format:?} {n_heads}×{dim} {start}..{end}");
                        let got = run_split(isa, shape, &[query], &pages);
                        assert_eq!(
                            got,
                            std::slice::from_ref(&first),
                            "{isa} {format:?} {start}..{end} split"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn a_huge_score_does_not_overflow() {
    let mut seeded = Seeded::new(4);
    let pages = pages(KvFormat::F32, 16, 100, &mut seeded);
    let heads: Vec<f32> = seeded.normals(16, 1.0).iter().map(|x| x * 1e4).collect();
    let shape = Shape { format: KvFormat::F32, head_dim: 16, scale: 1.0 };
    let query = Query { heads: &heads, sinks: Some(&[1e5]), start: 0, end: 100 };
    let want = twin(shape, query, &pages);
    assert_close(&run(Isa::scalar(), shape, query, &pages), &want, 1e-4, 1e-4);
}

#[test]
fn a_token_gets_the_same_bits_alone_and_among_its_neighbours() {
    let mut seeded = Seeded::new(5);
    let dim = 64;
    let pages = pages(KvFormat::Bf16, dim, 1_060, &mut seeded);
    let shape = Shape { format: KvFormat::Bf16, head_dim: dim, scale: 0.125 };
    for n_heads in [1, 3, 8] {
        for window in [1, 17, 128, usize::MAX] {
            for first in [0, 13, 60, 120, 1_020, 1_052] {
                let heads = seeded.normals(8 * n_heads * dim, 1.0);
                let sinks = seeded.normals(n_heads, 1.0);
                let query = |(t, heads)| {
                    let end: usize = first + t + 1;
                    Query { heads, sinks: Some(&sinks), start: end.saturating_sub(window), end }
                };
                let queries: Vec<_> =
                    heads.chunks_exact(n_heads * dim).enumerate().map(query).collect();
                for isa in Isa::available() {
                    for n in 1..=8 {
                        let mut scratch = vec![f32::NAN; shape.scratch_len(n * n_heads)];
                        let slot = |page: usize| pages.slots[page].as_slice();
                        attend(isa, shape, &queries[..n], slot, &mut scratch, |t, got| {
                            let alone = run(isa, shape, queries[t], &pages);
                            assert_eq!(got, alone, "{isa} {n_heads} {window} {first} {t} of {n}");
                        });
                        let split = run_split(isa, shape, &queries[..n], &pages);
                        for (t, got) in split.into_iter().enumerate() {
                            let alone = run(isa, shape, queries[t], &pages);
                            assert_eq!(got, alone, "{isa} {n_heads} {window} {first} {t} of {n}");
                        }
                    }
                }
            }
        }
    }
}

#[test]
#[should_panic(expected = "split 2 is seen by no query")]
fn a_split_that_nobody_sees_is_refused() {
    let pages = pages(KvFormat::F32, 16, 1_100, &mut Seeded::new(6));
    let shape = Shape { format: KvFormat::F32, head_dim: 16, scale: 1.0 };
    let query = Query { heads: &[0.0; 16], sinks: None, start: 0, end: 1_100 };
    let mut scratch = vec![0.0; shape.scratch_len(1)];
    let slot = |page: usize| pages.slots[page].as_slice();
    attend_split(Isa::scalar(), shape, &[query], 2, slot, &mut scratch);
}
