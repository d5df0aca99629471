//! Attention over pages against double precision, and against itself.

use oss_kernels::attention::{
    PAGE, ParseSparseAttentionError, Query, Shape, SparseAttention, TILE, TileSlots, attend,
    attend_split, merge_splits, select_blocks, splits,
};
use oss_quant::kv::{KvFormat, mean_bytes};
use oss_simd::Isa;
use oss_testing::{Seeded, assert_close, twins};

struct Pages {
    slots: Vec<Vec<u8>>,
    keys: Vec<Vec<f32>>,
    values: Vec<Vec<f32>>,
}

/// `n` positions; what lies behind them in the last page is as bad as it can be.
fn pages(format: KvFormat, dim: usize, n: usize, seeded: &mut Seeded) -> Pages {
    let bytes = format.slot_bytes(dim);
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
    attend(isa, shape, &[query], (slot, TileSlots::default()), &mut scratch, |_, heads| {
        out.copy_from_slice(heads);
    });
    out
}

/// The same split by split, merged afterwards; what each query gets.
fn run_split(isa: Isa, shape: Shape, queries: &[Query<'_>], pages: &Pages) -> Vec<Vec<f32>> {
    let n_heads = queries.len() * queries[0].heads.len() / shape.head_dim;
    let mut scratch = vec![f32::NAN; shape.scratch_len(n_heads)];
    let slot = |page: usize| pages.slots[page].as_slice();
    let seen = splits(queries[0].start, queries[queries.len() - 1].end);
    let found = |split| match queries.iter().any(|query| query.sees(split)) {
        true => attend_split(isa, shape, queries, split, slot, &mut scratch).to_vec(),
        false => Vec::new(),
    };
    let partials: Vec<Vec<f32>> = seen.clone().map(found).collect();
    let partial = |split: usize| partials[split - seen.start].as_slice();
    let mut out = vec![Vec::new(); queries.len()];
    scratch.fill(f32::NAN);
    merge_splits(isa, shape, queries, partial, &mut scratch, |t, heads| out[t] = heads.to_vec());
    out
}

/// Over bf16 pages, queries are rounded to bf16, too.
fn twin(shape: Shape, query: Query<'_>, pages: &Pages) -> Vec<f64> {
    let mut out = Vec::new();
    let rounded = |x: &f32| match shape.format {
        KvFormat::Bf16 => half::bf16::from_f32(*x).to_f32(),
        _ => *x,
    };
    for (h, head) in query.heads.chunks_exact(shape.head_dim).enumerate() {
        let head = twins::widen(&head.iter().map(rounded).collect::<Vec<f32>>());
        let is_seen =
            |p: &usize| query.blocks.is_none_or(|blocks| blocks.contains(&((p / TILE) as u32)));
        let seen: Vec<usize> = (query.start..query.end).filter(is_seen).collect();
        let mut scores: Vec<f64> = seen
            .iter()
            .map(|p| twins::dot(&head, &twins::widen(&pages.keys[*p])) * f64::from(shape.scale))
            .collect();
        scores.extend(query.sinks.map(|sinks| f64::from(sinks[h])));
        let weights = twins::softmax(&scores);
        for d in 0..shape.head_dim {
            let of = |(p, weight): (&usize, &f64)| f64::from(pages.values[*p][d]) * weight;
            out.push(seen.iter().zip(&weights).map(of).sum());
        }
    }
    out
}

/// How far from double precision: weights are rounded to bf16 where values are.
const fn error(format: KvFormat) -> f64 {
    match format {
        KvFormat::Bf16 => 6e-3,
        _ => 5e-6,
    }
}

/// The means of all whole pages; those of others are asked for by nobody.
fn means(format: KvFormat, dim: usize, pages: &Pages) -> Vec<Vec<u8>> {
    let whole = pages.slots.iter().take(pages.keys.len() / PAGE);
    let mean = |slot: &Vec<u8>| {
        let mut mean = vec![0xff; mean_bytes(dim)];
        format.write_mean(Isa::scalar(), slot, dim, &mut mean);
        mean
    };
    whole.map(mean).collect()
}

/// The blocks that each query chooses.
fn chosen(
    isa: Isa,
    (dim, sparse): (usize, SparseAttention),
    queries: &[Query<'_>],
    means: &[Vec<u8>],
) -> Vec<Option<Vec<u32>>> {
    let room = queries.iter().filter_map(|query| sparse.n_blocks(query.end)).max().unwrap_or(0) + 3;
    let mut blocks = vec![u32::MAX; queries.len() * room];
    let mut scratch = vec![f32::NAN; sparse.scratch_len(dim, queries.len())];
    let mean = |page: usize| means[page].as_slice();
    select_blocks(isa, (dim, sparse), queries, mean, &mut scratch, &mut blocks);
    let all = queries.iter().zip(blocks.chunks(room));
    all.map(|(query, blocks)| {
        let n = sparse.n_blocks(query.end);
        n.map(|n| blocks[..n].to_vec())
    })
    .collect()
}

/// The same in double precision, from the keys themselves; none where all blocks are seen.
fn chosen_twin(
    (dim, sparse): (usize, SparseAttention),
    query: Query<'_>,
    pages: &Pages,
) -> Option<Vec<u32>> {
    let score = |page: usize| {
        let keys = &pages.keys[page * PAGE..(page + 1) * PAGE];
        let mean: Vec<f64> = (0..dim)
            .map(|d| keys.iter().map(|key| f64::from(key[d])).sum::<f64>() / PAGE as f64)
            .collect();
        let heads = query.heads.chunks_exact(dim);
        heads.map(|head| twins::dot(&twins::widen(head), &mean)).fold(f64::NEG_INFINITY, f64::max)
    };
    let is_always = |block: &usize| {
        block * TILE < sparse.first || (block + 1) * TILE > query.end - sparse.window.min(query.end)
    };
    let (mut seen, others): (Vec<usize>, Vec<usize>) =
        (0..query.end.div_ceil(TILE)).partition(is_always);
    if others.len() <= sparse.blocks {
        return None;
    }
    let pages_of = |block: usize| block * TILE / PAGE..(block + 1) * TILE / PAGE;
    let mut others: Vec<(f64, usize)> = others
        .into_iter()
        .map(|block| (pages_of(block).map(score).fold(f64::NEG_INFINITY, f64::max), block))
        .collect();
    others.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    seen.extend(others[..sparse.blocks].iter().map(|(_, block)| *block));
    seen.sort_unstable();
    Some(seen.into_iter().map(|block| block as u32).collect())
}

const SPARSE: [SparseAttention; 5] = [
    SparseAttention { first: 64, window: 256, blocks: 4 },
    SparseAttention { first: 1, window: 1, blocks: 1 },
    SparseAttention { first: 0, window: 100, blocks: 3 },
    SparseAttention { first: 130, window: 64, blocks: 0 },
    SparseAttention { first: 0, window: 65, blocks: 17 },
];

#[test]
fn what_is_chosen_and_seen_of_it_equal_double_precision_over_formats_and_shapes() {
    let mut seeded = Seeded::new(7);
    for format in KvFormat::ALL {
        for (n_heads, dim) in [(1, 64), (3, 33), (8, 64), (9, 16), (15, 128)] {
            let pages = pages(format, dim, 2_200, &mut seeded);
            let means = means(format, dim, &pages);
            let shape = Shape { format, head_dim: dim, scale: 0.125 };
            for sparse in SPARSE {
                for end in [1, 64, 400, 1_088, 1_600, 2_047, 2_048, 2_049, 2_200] {
                    let (heads, sinks) =
                        (seeded.normals(n_heads * dim, 1.0), seeded.normals(n_heads, 3.0));
                    let sinks = Some(sinks.as_slice());
                    let query = Query { heads: &heads, sinks, start: 0, end, blocks: None };
                    let want = chosen_twin((dim, sparse), query, &pages);
                    for isa in Isa::available() {
                        let got = chosen(isa, (dim, sparse), &[query], &means);
                        let want = std::slice::from_ref(&want);
                        assert_eq!(got, want, "{isa} {format} {n_heads}×{dim} {end}");
                    }
                    let query = Query { blocks: want.as_deref(), ..query };
                    let first = run(Isa::scalar(), shape, query, &pages);
                    assert_close(&first, &twin(shape, query, &pages), error(format), 2e-5);
                    for isa in Isa::available() {
                        let name = format!("{isa} {format} {n_heads}×{dim} {sparse} {end}");
                        assert_eq!(run(isa, shape, query, &pages), first, "{name}");
                        let got = run_split(isa, shape, &[query], &pages);
                        assert_eq!(got, std::slice::from_ref(&first), "{name} split");
                    }
                }
            }
        }
    }
}

/// Neighbours see different blocks of the same tiles, and the first of them all.
#[test]
fn what_neighbours_choose_changes_no_bit() {
    let mut seeded = Seeded::new(8);
    let (format, dim) = (KvFormat::Bf16, 64);
    let pages = pages(format, dim, 2_200, &mut seeded);
    let means = means(format, dim, &pages);
    let shape = Shape { format, head_dim: dim, scale: 0.125 };
    let mut unlike = 0;
    for n_heads in [1, 3, 8] {
        for sparse in SPARSE {
            for first in [507, 1_020, 2_192] {
                let heads = seeded.normals(8 * n_heads * dim, 1.0);
                let query = |(t, heads)| Query {
                    heads,
                    sinks: None,
                    start: 0,
                    end: first + t + 1,
                    blocks: None,
                };
                let queries: Vec<_> =
                    heads.chunks_exact(n_heads * dim).enumerate().map(query).collect();
                for isa in Isa::available() {
                    let blocks = chosen(isa, (dim, sparse), &queries, &means);
                    unlike += usize::from(blocks[0] != blocks[1] && blocks[0].is_some());
                    for (query, blocks) in queries.iter().zip(&blocks) {
                        let alone = chosen(isa, (dim, sparse), &[*query], &means);
                        assert_eq!(alone[0], *blocks, "{isa} {n_heads} {sparse} {}", query.end);
                    }
                    let queries: Vec<_> = queries
                        .iter()
                        .zip(&blocks)
                        .map(|(query, blocks)| Query { blocks: blocks.as_deref(), ..*query })
                        .collect();
                    for n in [2, 5, 8] {
                        let name = format!("{isa} {n_heads} {sparse} {first} of {n}");
                        let mut scratch = vec![f32::NAN; shape.scratch_len(n * n_heads)];
                        let slot = |page: usize| pages.slots[page].as_slice();
                        let slots = (slot, TileSlots::default());
                        let split = run_split(isa, shape, &queries[..n], &pages);
                        attend(isa, shape, &queries[..n], slots, &mut scratch, |t, got| {
                            assert_eq!(got, run(isa, shape, queries[t], &pages), "{name}: {t}");
                            assert_eq!(got, split[t], "{name}: {t} split");
                        });
                    }
                }
            }
        }
    }
    let sets = Isa::available().len();
    assert!(unlike > 20 * sets, "neighbours chose differently {unlike} times on {sets} sets");
}

#[test]
fn blocks_that_nobody_chose_are_not_read_and_all_blocks_give_the_bits_of_none() {
    let mut seeded = Seeded::new(9);
    let (dim, end) = (64, 2_100);
    for format in KvFormat::ALL {
        let mut pages = pages(format, dim, end, &mut seeded);
        let shape = Shape { format, head_dim: dim, scale: 0.125 };
        let heads = seeded.normals(8 * dim, 1.0);
        let query = Query { heads: &heads, sinks: None, start: 0, end, blocks: None };
        let all: Vec<u32> = (0..end.div_ceil(TILE) as u32).collect();
        let dense = run(Isa::scalar(), shape, query, &pages);
        for isa in Isa::available() {
            let query = Query { blocks: Some(&all), ..query };
            assert_eq!(run(isa, shape, query, &pages), dense, "{isa} {format}");
        }
        // A split of which nothing is seen lies between.
        let some = [0, 3, 4, 31, 32];
        let query = Query { blocks: Some(&some), ..query };
        assert!(query.sees(0) && query.sees(1) && query.sees(2) && !query.sees(3));
        let far = Query { blocks: Some(&[1, 32]), ..query };
        assert!(far.sees(0) && !far.sees(1) && far.sees(2));
        for query in [query, far] {
            let want = run(Isa::scalar(), shape, query, &pages);
            let (blocks, whole) = (query.blocks.unwrap(), pages.slots.clone());
            for (page, slot) in pages.slots.iter_mut().enumerate() {
                if !blocks.contains(&((page * PAGE / TILE) as u32)) {
                    slot.clear();
                }
            }
            for isa in Isa::available() {
                assert_eq!(run(isa, shape, query, &pages), want, "{isa} {format}");
                let split = run_split(isa, shape, &[query], &pages);
                assert_eq!(split, std::slice::from_ref(&want), "{isa} {format} split");
            }
            pages.slots = whole;
        }
    }
}

#[test]
fn of_equal_blocks_the_lower_ones_are_chosen() {
    let (dim, sparse) = (16, SparseAttention { first: 64, window: 64, blocks: 3 });
    let means = vec![vec![0; mean_bytes(dim)]; 40];
    let query = Query { heads: &[1.0; 16], sinks: None, start: 0, end: 640, blocks: None };
    for isa in Isa::available() {
        let got = chosen(isa, (dim, sparse), &[query], &means);
        assert_eq!(got, [Some(vec![0, 1, 2, 3, 9])], "{isa}");
    }
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
                    let query = Query { heads: &heads, sinks, start, end, blocks: None };
                    let want = twin(shape, query, &pages);
                    let first = run(Isa::scalar(), shape, query, &pages);
                    assert_close(&first, &want, error(format), 2e-5);
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
    let query = Query { heads: &heads, sinks: Some(&[1e5]), start: 0, end: 100, blocks: None };
    let want = twin(shape, query, &pages);
    assert_close(&run(Isa::scalar(), shape, query, &pages), &want, 1e-4, 1e-4);
}

#[test]
fn what_is_no_number_stays_none_whichever_split_it_is_in() {
    let (dim, format, n) = (16, KvFormat::F32, 2_100);
    let shape = Shape { format, head_dim: dim, scale: 1.0 };
    let heads = vec![1.0; dim];
    for bad in [1_023, 1_024, 1_500, 2_099] {
        let mut pages = pages(format, dim, n, &mut Seeded::new(6));
        format.write_key(Isa::scalar(), &mut pages.slots[bad / PAGE], bad % PAGE, &[f32::NAN; 16]);
        let query = Query { heads: &heads, sinks: None, start: 1_023, end: n, blocks: None };
        for isa in Isa::available() {
            let whole = run(isa, shape, query, &pages);
            let split = run_split(isa, shape, &[query], &pages);
            assert!(whole.iter().chain(&split[0]).all(|x| x.is_nan()), "{isa} {bad}: {whole:?}");
        }
    }
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
                    let start = end.saturating_sub(window);
                    Query { heads, sinks: Some(&sinks), start, end, blocks: None }
                };
                let queries: Vec<_> =
                    heads.chunks_exact(n_heads * dim).enumerate().map(query).collect();
                for isa in Isa::available() {
                    for n in 1..=8 {
                        let mut scratch = vec![f32::NAN; shape.scratch_len(n * n_heads)];
                        let slot = |page: usize| pages.slots[page].as_slice();
                        let slots = (slot, TileSlots::default());
                        attend(isa, shape, &queries[..n], slots, &mut scratch, |t, got| {
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
fn the_smallest_sums_do_not_feel_their_neighbours_either() {
    let (dim, format) = (16, KvFormat::Bf16);
    let least = 1.0 / (1u64 << 50) as f32;
    let mut slots = vec![vec![0; format.slot_bytes(dim)]; 5];
    for position in 0..5 * PAGE {
        // Weights of 1, of about 2^-50 twice, and of 0.
        let (key, value) = match position {
            0 => (0.0, 0.0),
            1 => (-34.5, 1.5 * least),
            2 => (-34.5, -least),
            _ => (-100.0, 0.0),
        };
        let slot = &mut slots[position / PAGE];
        format.write_key(Isa::scalar(), slot, position % PAGE, &vec![key; dim]);
        format.write_value(Isa::scalar(), slot, position % PAGE, &vec![value; dim]);
    }
    let pages = Pages { slots, keys: Vec::new(), values: Vec::new() };
    let shape = Shape { format, head_dim: dim, scale: 1.0 };
    let mut heads = vec![0.0; dim];
    heads[0] = 1.0;
    let query = |end| Query { heads: &heads, sinks: None, start: 0, end, blocks: None };
    for (isa, ends) in
        Isa::available().into_iter().flat_map(|isa| [(isa, [64, 65]), (isa, [63, 70])])
    {
        let queries = ends.map(query);
        let mut scratch = vec![f32::NAN; shape.scratch_len(2)];
        let slots = (|page: usize| pages.slots[page].as_slice(), TileSlots::default());
        attend(isa, shape, &queries, slots, &mut scratch, |t, got| {
            let alone = run(isa, shape, queries[t], &pages);
            assert!(alone[0] != 0.0 && alone[0].abs() < 1e-30, "{isa} {alone:?}");
            assert_eq!(got, alone, "{isa} {ends:?} {t}");
        });
    }
}

#[test]
#[should_panic(expected = "split 2 is seen by no query")]
fn a_split_that_nobody_sees_is_refused() {
    let pages = pages(KvFormat::F32, 16, 1_100, &mut Seeded::new(6));
    let shape = Shape { format: KvFormat::F32, head_dim: 16, scale: 1.0 };
    let query = Query { heads: &[0.0; 16], sinks: None, start: 0, end: 1_100, blocks: None };
    let mut scratch = vec![0.0; shape.scratch_len(1)];
    let slot = |page: usize| pages.slots[page].as_slice();
    attend_split(Isa::scalar(), shape, &[query], 2, slot, &mut scratch);
}

#[test]
fn what_tokens_see_is_read_as_it_is_written_and_nothing_else_is() {
    use ParseSparseAttentionError::{Number, Parts, Window};
    let sparse = SparseAttention { first: 0, window: 1024, blocks: 32 };
    assert_eq!(sparse.to_string(), "0,1024,32");
    assert_eq!("0,1024,32".parse(), Ok(sparse));
    let number = |text: &str| text.parse::<usize>().unwrap_err();
    let wrong = [
        ("64,1024", Parts { got: 2 }),
        ("64,1024,32,1,", Parts { got: 5 }),
        ("", Number { part: 0, source: number("") }),
        ("64,-1,32", Number { part: 1, source: number("-1") }),
        ("64,1024,x", Number { part: 2, source: number("x") }),
        ("64,0,32", Window),
    ];
    for (text, error) in wrong {
        assert_eq!(text.parse::<SparseAttention>(), Err(error), "{text}");
    }
    let error = "64,0,32".parse::<SparseAttention>().unwrap_err().to_string();
    let expected = "first positions, last positions (at least 1) and blocks, such as";
    assert_eq!(error, format!("got 0 last positions, expected {expected} 64,1024,32"));
}
