//! The attention half of a layer.

use super::norm::NextNorm;
use super::project::{Call, To};
use crate::batch::Row;
use crate::config::Config;
use crate::error::Result;
use crate::forward::ForwardPass;
use crate::input;
use crate::model::Model;
use crate::state::{KvWrite, State, WorkerScratch};
use oss_cache::KvCache;
use oss_kernels::attention::{
    PAGE, QUERIES, Query, SPLIT, Shape, SparseAttention, TILE, TileSlots, attend, attend_split,
    merge_splits, select_blocks, splits,
};
use oss_kernels::elementwise::rotate;
use oss_kernels::{prefetch_f32, prepare};
use oss_memory::try_grow_zeroed;
use oss_quant::kv::Rows;
use oss_threads::{Chunks, PerWorker, RowCuts, Spans, Team};
use std::ops::Range;

/// Queries, keys and values of all rows; the keys, turned by their positions, and the values go to
/// their pages.
pub(crate) fn qkv(pass: &mut ForwardPass<'_>, layer: usize) {
    let (model, team) = (pass.model, pass.team);
    let weights = &model.weights.layers[layer];
    let State { tiling, normed, qkv, scratch, identity, .. } = &mut *pass.state;
    let (input, factors) = normed.view();
    let call = Call {
        model,
        team,
        tiling: *tiling,
        activation: model.qkv_activation(),
        input,
        factors,
        rows: &identity[..pass.batch.rows.len()],
    };
    call.project(&weights.qkv, weights.qkv_bias.as_deref(), To::Write(qkv), scratch);
    write(pass, layer);
}

/// `x += output(attention(qkv)) + bias`, normalised for the layer's second half.
pub(crate) fn run(pass: &mut ForwardPass<'_>, layer: usize) -> Result<()> {
    let (model, team) = (pass.model, pass.team);
    let weights = &model.weights.layers[layer];
    let n_rows = pass.batch.rows.len();
    attend_all(pass, layer)?; //                                               attended [R, q_dim]
    let State { tiling, attended, x, normed, scratch, identity, .. } = &mut *pass.state;
    let call = Call {
        model,
        team,
        tiling: *tiling,
        activation: model.activation,
        input: attended.view(),
        factors: &[],
        rows: &identity[..n_rows],
    };
    let to = To::Add(x, normed, NextNorm::feed_forward(model, layer));
    call.project(&weights.output, weights.output_bias.as_deref(), to, scratch);
    Ok(())
}

/// Turns the rows' keys by their positions and writes them and the values into their pages, and
/// where rows choose among pages the means of those that are now complete. One unit writes one head
/// of one page.
fn write(pass: &mut ForwardPass<'_>, layer: usize) {
    let config = &pass.model.config;
    let State { qkv, cos, sin, writes, write_ranges, write_order, scratch, .. } = &mut *pass.state;
    write_order.clear();
    let rows = pass.batch.rows;
    let mut first = 0;
    while first < rows.len() {
        let (sequence, number) = (rows[first].sequence, rows[first].position / PAGE);
        let same = |row: &Row| row.sequence == sequence && row.position / PAGE == number;
        let n = rows[first..].iter().take_while(|row| same(row)).count();
        for head in 0..config.n_kv_heads {
            let range = pass.cache.slot_range(layer, sequence, number, head);
            write_order.push((range, KvWrite { rows: first..first + n, head }));
        }
        first += n;
    }
    write_order.sort_unstable_by_key(|(range, _)| range.start);
    write_ranges.clear();
    writes.clear();
    for (range, write) in write_order.drain(..) {
        write_ranges.push(range);
        writes.push(write);
    }
    let (dim, q_dim, kv_dim) = (config.head_dim, config.q_dim(), config.kv_dim());
    let (isa, format, row_len) = (pass.model.isa, pass.model.kv_format, config.qkv_dim());
    let (kv_bytes, sparse) = (pass.model.kv_bytes(), sparse(pass.model, layer));
    let slots = (Spans::new(pass.cache.arena_mut(layer), write_ranges), PerWorker::new(scratch));
    pass.team.phase(writes.len(), slots, |unit, (slot, scratch)| {
        let KvWrite { rows: written, head } = &writes[unit.index];
        let (slot, mean) = slot.split_at_mut(kv_bytes);
        let (n, first) = (written.len(), rows[written.start].position % PAGE);
        let qkv = &qkv[written.start * row_len + head * dim..];
        let (keys, values) = (&qkv[q_dim..], &qkv[q_dim + kv_dim..]);
        let turned = &mut scratch.turned[..n * dim];
        for (i, (turned, key)) in turned.chunks_exact_mut(dim).zip(keys.chunks(row_len)).enumerate()
        {
            let angles = (written.start + i) * dim / 2;
            turned.copy_from_slice(&key[..dim]);
            rotate(isa, turned, &cos[angles..][..dim / 2], &sin[angles..][..dim / 2]);
        }
        format.write_keys(isa, slot, first, Rows { numbers: turned, stride: dim, dim, n });
        format.write_values(isa, slot, first, Rows { numbers: values, stride: row_len, dim, n });
        if sparse.is_some() && first + n == PAGE {
            format.write_mean(isa, slot, dim, mean);
        }
    });
}

/// What rows of long contexts see in a layer, where that is not everything: sliding windows stay.
fn sparse(model: &Model, layer: usize) -> Option<SparseAttention> {
    model.sparse_attention.filter(|_| model.config.layers[layer].window.is_none())
}

/// Units that a worker has at least, so that all end at about the same time.
const UNITS: usize = 4;

/// Numbers that workers who share splits keep of them, for each worker: where it would be more, no
/// splits are shared.
const SHARED_NUMBERS: usize = 1 << 19;

/// The most numbers that are kept of splits that so many workers share, in batches of up to `rows`.
pub(crate) fn most_shared(config: &Config, shape: Shape, (rows, threads): (usize, usize)) -> usize {
    if threads < 2 {
        return 0;
    }
    let units = rows.saturating_mul(config.n_kv_heads.div_ceil(config.kv_heads_per_unit()));
    let splits = units.saturating_mul(config.context_len.div_ceil(SPLIT));
    let split_len = config.kv_heads_per_unit() * shape.partial_len(QUERIES * config.group());
    splits.saturating_mul(split_len).min(threads * SHARED_NUMBERS)
}

/// Whether the splits of positions are units of their own: where a unit for each run and block,
/// which reads as many positions as the run sees, would be too large a part of all that is read.
fn shares_splits(lengths: impl Iterator<Item = usize>, (blocks, threads): (usize, usize)) -> bool {
    let (longest, all) = lengths.fold((0, 0), |(longest, all), n| (longest.max(n), all + n));
    threads > 1 && longest > SPLIT && all * blocks < UNITS * threads * longest
}

/// The attention of a layer over a batch. A unit is some neighbouring rows (a *run*) and a
/// key/value head, or a few where one does not fill whole blocks of the output.
struct Attention<'a> {
    model: &'a Model,
    layer: usize,
    cache: &'a KvCache,
    rows: &'a [Row],
    /// Where runs begin, and the end of the last.
    run_starts: &'a [usize],
    qkv: &'a [f32],
    cos: &'a [f32],
    sin: &'a [f32],
    sparse: Option<SparseAttention>,
    chosen: Option<Chosen<'a>>,
}

/// The blocks that rows chose which do not see everything.
#[derive(Clone, Copy)]
struct Chosen<'a> {
    /// `[runs, n_kv_heads, QUERIES, most]`.
    blocks: &'a [u32],
    /// The most blocks of any row.
    most: usize,
}

impl<'a> Attention<'a> {
    /// How many units a run has.
    fn blocks(&self) -> usize {
        let config = &self.model.config;
        config.n_kv_heads.div_ceil(config.kv_heads_per_unit())
    }

    fn kv_heads(&self, block: usize) -> Range<usize> {
        let config = &self.model.config;
        let heads = config.kv_heads_per_unit();
        block * heads..((block + 1) * heads).min(config.n_kv_heads)
    }

    fn run(&self, run: usize) -> Range<usize> {
        self.run_starts[run]..self.run_starts[run + 1]
    }

    fn shape(&self) -> Shape {
        let dim = self.model.config.head_dim;
        Shape { format: self.model.kv_format, head_dim: dim, scale: 1.0 / (dim as f32).sqrt() }
    }

    /// The positions that a row sees.
    fn seen(&self, row: usize) -> Range<usize> {
        let end = self.rows[row].position + 1;
        let window = self.model.config.layers[self.layer].window;
        window.map_or(0, |window| end.saturating_sub(window))..end
    }

    /// How many blocks of these a row sees, where it chooses among them.
    fn n_blocks(&self, row: usize) -> Option<usize> {
        self.sparse?.n_blocks(self.seen(row).end)
    }

    /// The splits of positions that any row of a run sees.
    fn splits(&self, run: usize) -> Range<usize> {
        let rows = self.run(run);
        splits(self.seen(rows.start).start, self.seen(rows.end - 1).end)
    }

    /// How many positions a run reads, about.
    fn len(&self, run: usize) -> usize {
        let last = self.run(run).end - 1;
        self.n_blocks(last).map_or(self.seen(last).len(), |blocks| blocks * TILE)
    }

    /// Counts the splits of all runs, one run's behind the other's: those of a run begin at its
    /// place in `starts`, whose last number is how many there are.
    fn count_splits(&self, starts: &mut Vec<usize>) {
        starts.clear();
        starts.push(0);
        let mut end = 0;
        for run in 0..self.run_starts.len() - 1 {
            end += self.splits(run).len();
            starts.push(end);
        }
    }

    /// The blocks that the `t`-th row of a run chose.
    fn chosen(&self, (run, kv_head): (usize, usize), t: usize) -> Option<&'a [u32]> {
        let Chosen { blocks, most } = self.chosen?;
        let unit = run * self.model.config.n_kv_heads + kv_head;
        Some(&blocks[(unit * QUERIES + t) * most..][..self.n_blocks(self.run_starts[run] + t)?])
    }

    /// Lets the rows choose that do not see everything; none where there are no such rows.
    fn choose<'s>(
        &self,
        team: &Team,
        scratch: &mut [WorkerScratch],
        blocks: &'s mut Vec<u32>,
    ) -> Result<Option<Chosen<'s>>> {
        let Self { model, layer, cache, rows, .. } = *self;
        let (isa, config) = (model.isa, &model.config);
        let most = (0..rows.len()).filter_map(|row| self.n_blocks(row)).max();
        let (Some(sparse), Some(most)) = (self.sparse, most) else { return Ok(None) };
        let units = (self.run_starts.len() - 1) * config.n_kv_heads;
        let len = units * QUERIES * most;
        try_grow_zeroed(blocks, len)?;
        let out = (Chunks::new(&mut blocks[..len], QUERIES * most), PerWorker::new(scratch));
        team.phase(units, out, |unit, (blocks, scratch)| {
            let (run, kv_head) = (unit.index / config.n_kv_heads, unit.index % config.n_kv_heads);
            let sequence = rows[self.run(run).start].sequence;
            let mean = |number| &cache.slot(layer, sequence, number, kv_head)[model.kv_bytes()..];
            let WorkerScratch { numbers, turned, .. } = scratch;
            self.with_queries((run, kv_head), turned, |queries, _| {
                let needed = sparse.scratch_len(config.head_dim, queries.len());
                numbers.resize(numbers.len().max(needed), 0.0);
                let blocks = &mut blocks[..queries.len() * most];
                select_blocks(isa, (config.head_dim, sparse), queries, mean, numbers, blocks);
            });
        });
        Ok(Some(Chosen { blocks, most }))
    }

    /// Prefetches the queries of the key/value head after one, or the next run's first, and gives
    /// the slots of the first tile that they meet: others may have written both last.
    fn prefetch_after(&self, (run, kv_head): (usize, usize)) -> TileSlots<'a> {
        let (isa, config) = (self.model.isa, &self.model.config);
        let next = run * config.n_kv_heads + kv_head + 1;
        let (run, kv_head) = (next / config.n_kv_heads, next % config.n_kv_heads);
        let mut slots = TileSlots::default();
        if run + 1 == self.run_starts.len() {
            return slots;
        }
        let (rows, len) = (self.run(run), config.group() * config.head_dim);
        for row in rows.clone() {
            prefetch_f32(isa, &self.qkv[row * config.qkv_dim() + kv_head * len..][..len]);
        }
        let (start, end) = (self.seen(rows.start).start, self.seen(rows.end - 1).end);
        let first = start / TILE * slots.len();
        for page in start / PAGE..end.div_ceil(PAGE).min(first + slots.len()) {
            let sequence = self.rows[rows.start].sequence;
            let slot = self.cache.slot(self.layer, sequence, page, kv_head);
            slots[page - first] = &slot[..self.model.kv_bytes()];
        }
        slots
    }

    /// Turns the queries of a run's rows by their positions and hands them out, with the slots of
    /// the pages that they see.
    fn with_queries<'s>(
        &'s self,
        (run, kv_head): (usize, usize),
        turned: &mut [f32],
        body: impl FnOnce(&[Query<'_>], &dyn Fn(usize) -> &'s [u8]),
    ) {
        let (Model { isa, config, .. }, rows) = (self.model, self.run(run));
        let (dim, half, group) = (config.head_dim, config.head_dim / 2, config.group());
        let (first_head, len) = (kv_head * group, group * dim);
        for (row, turned) in rows.clone().zip(turned.chunks_exact_mut(len)) {
            turned.copy_from_slice(&self.qkv[row * config.qkv_dim() + first_head * dim..][..len]);
            let (cos, sin) = (&self.cos[row * half..][..half], &self.sin[row * half..][..half]);
            turned.chunks_exact_mut(dim).for_each(|head| rotate(*isa, head, cos, sin));
        }
        let sinks = self.model.weights.layers[self.layer].sinks.as_deref();
        let queries: [Query<'_>; QUERIES] = std::array::from_fn(|t| {
            let t = t.min(rows.len() - 1);
            let Range { start, end } = self.seen(rows.start + t);
            Query {
                heads: &turned[t * len..][..len],
                sinks: sinks.map(|sinks| &sinks[first_head..first_head + group]),
                start,
                end,
                blocks: self.chosen((run, kv_head), t),
            }
        });
        let sequence = self.rows[rows.start].sequence;
        let kv_bytes = self.model.kv_bytes();
        let slot = |number| &self.cache.slot(self.layer, sequence, number, kv_head)[..kv_bytes];
        body(&queries[..rows.len()], &slot);
    }
}

/// Attention of all rows, as input of the output matrix.
fn attend_all(pass: &mut ForwardPass<'_>, layer: usize) -> Result<()> {
    let (model, team, config) = (pass.model, pass.team, &pass.model.config);
    let State {
        qkv, cos, sin, attended, scratch, run_starts, split_starts, blocks, partials, ..
    } = &mut *pass.state;
    pass.batch.split(QUERIES, run_starts);
    let (cache, rows, run_starts) = (&*pass.cache, pass.batch.rows, &run_starts[..]);
    let sparse = sparse(model, layer);
    let all =
        Attention { model, layer, cache, rows, run_starts, qkv, cos, sin, sparse, chosen: None };
    let attention = Attention { chosen: all.choose(team, scratch, blocks)?, ..all };
    let (isa, shape, blocks) = (model.isa, attention.shape(), attention.blocks());
    let runs = run_starts.len() - 1;
    let head_columns = config.group() * config.head_dim;

    let longest_run = run_starts.windows(2).map(|run| run[1] - run[0]).fold(0, usize::max);
    let partial_len = shape.partial_len(longest_run * config.group());
    let unit_len = config.kv_heads_per_unit() * partial_len;
    attention.count_splits(split_starts);
    let (split_starts, shared) = (&split_starts[..], blocks * split_starts[runs]);
    let lengths = (0..runs).map(|run| attention.len(run));
    let shares = shares_splits(lengths, (blocks, team.threads()))
        && shared * unit_len <= team.threads() * SHARED_NUMBERS;
    // Where the partials of a unit and a split of its run are.
    let partial_of = |(run, block): (usize, usize), split: usize| {
        let splits = attention.splits(run);
        blocks * split_starts[run] + block * splits.len() + (split - splits.start)
    };
    if shares {
        let len = shared * unit_len;
        try_grow_zeroed(partials, len)?;
        let out = (Chunks::new(&mut partials[..len], unit_len), PerWorker::new(&mut *scratch));
        team.phase(shared, out, |unit, (partials, scratch)| {
            let run = split_starts.partition_point(|start| blocks * start <= unit.index) - 1;
            let (splits, at) = (attention.splits(run), unit.index - blocks * split_starts[run]);
            let (block, split) = (at / splits.len(), splits.start + at % splits.len());
            let WorkerScratch { numbers, turned, .. } = scratch;
            let partials = partials.chunks_exact_mut(partial_len);
            for (kv_head, partial) in attention.kv_heads(block).zip(partials) {
                attention.with_queries((run, kv_head), turned, |queries, slot| {
                    if !queries.iter().any(|query| query.sees(split)) {
                        return;
                    }
                    let found = attend_split(isa, shape, queries, split, slot, numbers);
                    partial[..found.len()].copy_from_slice(found);
                });
            }
        });
    }

    let columns = (config.kv_heads_per_unit() * head_columns).next_multiple_of(32);
    let tiles = input::tiles(attended, RowCuts::At(run_starts), columns);
    team.phase(runs * blocks, (tiles, PerWorker::new(scratch)), |unit, (mut tile, scratch)| {
        let WorkerScratch { numbers, turned, attended, .. } = scratch;
        let (run, block) = (unit.index / blocks, unit.index % blocks);
        let kv_heads = attention.kv_heads(block);
        let width = kv_heads.len() * head_columns;
        for (place, kv_head) in kv_heads.enumerate() {
            let give = |t: usize, heads: &[f32]| {
                let to = &mut attended[t * width + place * head_columns..][..head_columns];
                to.copy_from_slice(heads);
            };
            attention.with_queries((run, kv_head), turned, |queries, slot| {
                if shares {
                    let partial = |split| {
                        let unit = partial_of((run, block), split);
                        &partials[unit * unit_len + place * partial_len..][..partial_len]
                    };
                    merge_splits(isa, shape, queries, partial, numbers, give);
                } else {
                    let after = attention.prefetch_after((run, kv_head));
                    attend(isa, shape, queries, (slot, after), numbers, give);
                }
            });
        }
        let rows = attention.run(run).len();
        for (t, row) in attended.chunks_exact(width).take(rows).enumerate() {
            prepare(isa, model.activation, row, input::TileRows(&mut tile).row(t));
        }
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{SPLIT, shares_splits};
    use crate::{Batch, LoadOptions, Model, Row, State, forward, head};
    use oss_cache::KvCache;
    use oss_threads::Team;
    use std::sync::Arc;

    #[test]
    fn splits_are_shared_where_one_unit_would_keep_the_others_waiting() {
        let shares = |lengths: &[usize], blocks, threads| {
            shares_splits(lengths.iter().copied(), (blocks, threads))
        };
        // Eight sequences, one of which is long: 16 threads would wait for its eight units.
        let one_long = [65_536, 300, 20, 1, 500, 80, 40, 7];
        assert!(shares(&one_long, 8, 16) && shares(&one_long, 8, 3) && !shares(&one_long, 8, 2));
        // Sixteen, all as long: 128 units are enough.
        assert!(!shares(&[131_072; 16], 8, 16));
        // Nobody waits long, and nobody waits alone.
        assert!(!shares(&[SPLIT, 1], 1, 16) && shares(&[SPLIT + 1, 1], 1, 16));
        assert!(!shares(&[65_536], 1, 1) && !shares(&[], 8, 16));
        // Of equal lengths, as many as there are units too few.
        for runs in 1..40 {
            for (blocks, threads) in [(1, 2), (8, 2), (8, 16), (2, 5)] {
                let few = runs * blocks < 4 * threads;
                assert_eq!(shares(&vec![5_000; runs], blocks, threads), few, "{runs}, {blocks}");
            }
        }
    }

    /// The logits of one long sequence's last row and those of many short ones, and how many
    /// numbers were shared for them.
    fn long_among_short(model: &Model, threads: usize) -> (Vec<u32>, usize) {
        const LONG: usize = 2_300;
        const SHORT: usize = 20;
        let team = Team::new(threads).unwrap();
        let mut state = State::new(model, 256, threads).unwrap();
        let mut cache = KvCache::new(model.cache_shape(), 64 << 20).unwrap();
        let told = state.bytes();
        let long = cache.create();
        let row = |sequence, position: usize| {
            let token = (position * position * 31 % 300) as u32;
            Row { sequence, position, token, wanted: true, draft: false }
        };
        let layers = 0..model.config.layers.len();
        let mut rows = Vec::new();
        for begin in (0..LONG).step_by(250) {
            rows = (begin..LONG.min(begin + 250)).map(|position| row(long, position)).collect();
            let batch = Batch { rows: &rows };
            forward(model, &team, &mut state, &mut cache, batch, layers.clone()).unwrap();
        }
        rows.clear();
        rows.extend((0..SHORT / 2).map(|_| row(cache.create(), 0)));
        rows.push(row(long, LONG));
        rows.extend((0..SHORT / 2).map(|_| row(cache.create(), 0)));
        state.partials.clear();
        let batch = Batch { rows: &rows };
        forward(model, &team, &mut state, &mut cache, batch, layers).unwrap();
        assert_eq!(state.bytes(), told, "what is shared was counted before it was there");
        let shared = state.partials.len();
        let logits = head(model, &team, &mut state, 0..rows.len());
        (logits.iter().map(|logit| logit.to_bits()).collect(), shared)
    }

    #[test]
    fn a_long_sequence_among_many_short_ones_is_shared_and_has_the_same_bits() {
        let container = oss_weights::Container::from_bytes("demo", oss_demo::GGUF, Vec::new());
        let options = LoadOptions::new(oss_simd::Isa::detect().unwrap());
        let model = Model::load(Arc::new(container.unwrap()), options).unwrap();
        let (alone, shared) = long_among_short(&model, 1);
        assert_eq!(shared, 0);
        for threads in [2, 3] {
            let (logits, shared) = long_among_short(&model, threads);
            assert!(shared > 0 && logits == alone, "{threads} threads shared {shared} numbers");
        }
    }
}
