//! The attention half of a layer.

use super::project::{Call, To};
use crate::forward::Page;
use crate::input;
use crate::state::{KvWrite, State, WorkerScratch};
use oss_kernels::attention::{PAGE, QUERIES, Query, Shape, attend};
use oss_kernels::elementwise::rotate;
use oss_kernels::{InputRowsMut, prepare};
use oss_threads::{PerWorker, RowCuts, Spans};

/// Queries, keys and values of all rows; the keys, turned by their positions, and the values go to
/// their pages.
pub(crate) fn qkv(page: &mut Page<'_>, layer: usize) {
    let (model, team) = (page.model, page.team);
    let weights = &model.weights.layers[layer];
    let State { normed, qkv, scratch, identity, .. } = &mut *page.state;
    let call = Call {
        model,
        team,
        activation: model.activation,
        input: normed.view(),
        rows: &identity[..page.batch.rows.len()],
    };
    call.project(&weights.qkv, weights.qkv_bias.as_deref(), To::Write(qkv), scratch);
    write(page, layer);
}

/// `x += output(attention(qkv)) + bias`.
pub(crate) fn run(page: &mut Page<'_>, layer: usize) {
    let (model, team) = (page.model, page.team);
    let weights = &model.weights.layers[layer];
    let n_rows = page.batch.rows.len();
    attend_all(page, layer); //                                                attended [R, q_dim]
    let State { attended, x, scratch, identity, .. } = &mut *page.state;
    let call = Call {
        model,
        team,
        activation: model.activation,
        input: attended.view(),
        rows: &identity[..n_rows],
    };
    call.project(&weights.output, weights.output_bias.as_deref(), To::Add(x), scratch);
}

/// Turns the rows' keys by their positions and writes them and the values into their pages. One
/// unit writes one head of one page.
fn write(page: &mut Page<'_>, layer: usize) {
    let config = &page.model.config;
    let State { qkv, cos, sin, writes, write_ranges, write_order, scratch, .. } = &mut *page.state;
    write_order.clear();
    let rows = page.batch.rows;
    let mut first = 0;
    while first < rows.len() {
        let (sequence, number) = (rows[first].sequence, rows[first].position / PAGE);
        let same = |row: &crate::Row| row.sequence == sequence && row.position / PAGE == number;
        let n = rows[first..].iter().take_while(|row| same(row)).count();
        for head in 0..config.n_kv_heads {
            let range = page.cache.slot_range(layer, sequence, number, head);
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
    let (isa, format, row_len) = (page.model.isa, page.model.kv_format, config.qkv_dim());
    let slots = (Spans::new(page.cache.arena_mut(layer), write_ranges), PerWorker::new(scratch));
    page.team.phase(writes.len(), slots, |unit, (slot, scratch)| {
        let KvWrite { rows: written, head } = &writes[unit.index];
        let key = &mut scratch.turned[..dim];
        for row in written.clone() {
            let qkv = &qkv[row * row_len..][..row_len];
            let at = rows[row].position % PAGE;
            key.copy_from_slice(&qkv[q_dim + head * dim..][..dim]);
            rotate(isa, key, &cos[row * dim / 2..][..dim / 2], &sin[row * dim / 2..][..dim / 2]);
            format.write_key(isa, slot, at, key);
            format.write_value(isa, slot, at, &qkv[q_dim + kv_dim + head * dim..][..dim]);
        }
    });
}

/// Attention of all rows, as input of the output matrix; one unit is some neighbouring rows and a
/// key/value head, or a few where one does not fill whole blocks of the output.
fn attend_all(page: &mut Page<'_>, layer: usize) {
    let (model, config) = (page.model, &page.model.config);
    let State { qkv, cos, sin, attended, scratch, row_splits, .. } = &mut *page.state;
    let (n_kv_heads, dim, half) = (config.n_kv_heads, config.head_dim, config.head_dim / 2);
    let group = config.n_heads / n_kv_heads;
    let window = config.layers[layer].window;
    let sinks = model.weights.layers[layer].sinks.as_deref();
    let shape = Shape { format: model.kv_format, head_dim: dim, scale: 1.0 / (dim as f32).sqrt() };
    let (rows, cache) = (page.batch.rows, &*page.cache);
    page.batch.split(QUERIES, row_splits);
    let unit_heads = config.kv_heads_per_unit();
    let columns = unit_heads * group * dim;
    let tiles = input::tiles(attended, RowCuts::At(row_splits), columns.next_multiple_of(32));
    let blocks = n_kv_heads.div_ceil(unit_heads);
    let units = (row_splits.len() - 1) * blocks;
    page.team.phase(units, (tiles, PerWorker::new(scratch)), |unit, (mut tile, scratch)| {
        let WorkerScratch { numbers, turned, attended, .. } = scratch;
        let (split, block) = (unit.index / blocks, unit.index % blocks);
        let (first, end) = (row_splits[split], row_splits[split + 1]);
        let kv_heads = block * unit_heads..((block + 1) * unit_heads).min(n_kv_heads);
        let width = kv_heads.len() * group * dim;
        for (place, kv_head) in kv_heads.enumerate() {
            let first_head = kv_head * group;
            let len = group * dim;
            for (row, turned) in (first..end).zip(turned.chunks_exact_mut(len)) {
                turned.copy_from_slice(&qkv[row * config.qkv_dim() + first_head * dim..][..len]);
                let (cos, sin) = (&cos[row * half..][..half], &sin[row * half..][..half]);
                turned.chunks_exact_mut(dim).for_each(|head| rotate(model.isa, head, cos, sin));
            }
            let queries: [Query<'_>; QUERIES] = std::array::from_fn(|t| {
                let t = t.min(end - first - 1);
                let end = rows[first + t].position + 1;
                Query {
                    heads: &turned[t * len..][..len],
                    sinks: sinks.map(|sinks| &sinks[first_head..first_head + group]),
                    start: window.map_or(0, |window| end.saturating_sub(window)),
                    end,
                }
            });
            let slot = |number| cache.slot(layer, rows[first].sequence, number, kv_head);
            attend(model.isa, shape, &queries[..end - first], slot, numbers, |t, heads| {
                attended[t * width + place * len..][..len].copy_from_slice(heads);
            });
        }
        for (t, row) in attended.chunks_exact(width).take(end - first).enumerate() {
            prepare(model.isa, model.activation, row, input::TileRows(&mut tile).row(t));
        }
    });
}
