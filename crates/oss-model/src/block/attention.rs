//! The attention half of a layer.

use super::project::{Call, To};
use crate::forward::Page;
use crate::state::{KvWrite, State};
use oss_kernels::attention::{PAGE, QUERIES, Query, Shape, attend};
use oss_kernels::elementwise::rotate;
use oss_threads::{Chunks, PerWorker, Spans, Tiles};

/// Queries, keys and values of all rows, turned by their positions; the latter in their pages.
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
    turn(page);
    write(page, layer);
}

/// `x += output(attention(qkv)) + bias`.
pub(crate) fn run(page: &mut Page<'_>, layer: usize) {
    let (model, team) = (page.model, page.team);
    let weights = &model.weights.layers[layer];
    let n_rows = page.batch.rows.len();
    attend_all(page, layer); //                                                attended [R, q_dim]
    let State { attended, attended_input, x, scratch, identity, .. } = &mut *page.state;
    let q_dim = model.config.q_dim();
    Page::prepare(model, team, (&attended[..n_rows * q_dim], q_dim), (attended_input, 0));
    let call = Call {
        model,
        team,
        activation: model.activation,
        input: attended_input.view(),
        rows: &identity[..n_rows],
    };
    call.project(&weights.output, weights.output_bias.as_deref(), To::Add(x), scratch);
}

/// Turns queries and keys by their positions.
fn turn(page: &mut Page<'_>) {
    let (model, config) = (page.model, &page.model.config);
    let (dim, half) = (config.head_dim, config.head_dim / 2);
    let State { qkv, cos, sin, .. } = &mut *page.state;
    let rows = Chunks::new(qkv, config.qkv_dim());
    page.team.phase(page.batch.rows.len(), rows, |unit, qkv| {
        let (cos, sin) = (&cos[unit.index * half..][..half], &sin[unit.index * half..][..half]);
        let turned = (config.n_heads + config.n_kv_heads) * dim;
        for head in qkv[..turned].chunks_exact_mut(dim) {
            rotate(model.isa, head, cos, sin);
        }
    });
}

/// Writes the rows' keys and values into their pages. One unit writes one head of one page.
fn write(page: &mut Page<'_>, layer: usize) {
    let config = &page.model.config;
    let State { qkv, writes, write_ranges, write_order, .. } = &mut *page.state;
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
    let spans = Spans::new(page.cache.arena_mut(layer), write_ranges);
    page.team.phase(writes.len(), spans, |unit, slot| {
        let KvWrite { rows: written, head } = &writes[unit.index];
        for row in written.clone() {
            let qkv = &qkv[row * row_len..][..row_len];
            let at = rows[row].position % PAGE;
            format.write_key(isa, slot, at, &qkv[q_dim + head * dim..][..dim]);
            format.write_value(isa, slot, at, &qkv[q_dim + kv_dim + head * dim..][..dim]);
        }
    });
}

/// Attention of all rows; one unit is some neighbouring rows and a key/value head.
fn attend_all(page: &mut Page<'_>, layer: usize) {
    let (model, config) = (page.model, &page.model.config);
    let State { qkv, attended, scratch, row_splits, .. } = &mut *page.state;
    let (n_kv_heads, dim) = (config.n_kv_heads, config.head_dim);
    let group = config.n_heads / n_kv_heads;
    let window = config.layers[layer].window;
    let sinks = model.weights.layers[layer].sinks.as_deref();
    let shape = Shape { format: model.kv_format, head_dim: dim, scale: 1.0 / (dim as f32).sqrt() };
    let (rows, cache) = (page.batch.rows, &*page.cache);
    page.batch.split(QUERIES, row_splits);
    let attended = &mut attended[..rows.len() * config.q_dim()];
    let tiles = Tiles::new(attended, config.q_dim(), row_splits, group * dim);
    let units = (row_splits.len() - 1) * n_kv_heads;
    page.team.phase(units, (tiles, PerWorker::new(scratch)), |unit, (mut tile, scratch)| {
        let (block, kv_head) = (unit.index / n_kv_heads, unit.index % n_kv_heads);
        let first = row_splits[block];
        let n = row_splits[block + 1] - first;
        let first_head = kv_head * group;
        let queries: [Query<'_>; QUERIES] = std::array::from_fn(|t| {
            let row = first + t.min(n - 1);
            let end = rows[row].position + 1;
            Query {
                heads: &qkv[row * config.qkv_dim() + first_head * dim..][..group * dim],
                sinks: sinks.map(|sinks| &sinks[first_head..first_head + group]),
                start: window.map_or(0, |window| end.saturating_sub(window)),
                end,
            }
        });
        let slot = |number| cache.slot(layer, rows[first].sequence, number, kv_head);
        attend(model.isa, shape, &queries[..n], slot, &mut scratch.numbers, |t, heads| {
            tile.row_mut(t).copy_from_slice(heads);
        });
    });
}
