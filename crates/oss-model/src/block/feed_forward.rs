//! The feed-forward half of a layer: one network, or a router and a few of many.

use super::foresee;
use super::norm::Next;
use super::project::{Call, To};
use crate::config::{FeedForward, LayerConfig};
use crate::error::Result;
use crate::forward::Page;
use crate::input::{self, InputTile};
use crate::model::Model;
use crate::state::{Event, State, WorkerScratch};
use crate::weights::{ExpertWeights, FeedForwardWeights, Network, Round, Rounds, UNIT_ROWS};
use oss_kernels::elementwise::scaled_add;
use oss_kernels::{GateUpSums, Product, expect_rows, expect_soon, prepare_gated, route};
use oss_quant::GROUP_ROWS;
use oss_threads::{Chunks, PerWorker, RowCuts, Tiles};
use std::ops::Range;

/// `x += feed_forward(normed)`, normalised for the next layer.
///
/// # Errors
/// When an expert cannot be read from its file.
pub(crate) fn run(page: &mut Page<'_>, layer: usize) -> Result<()> {
    let model = page.model;
    match &model.weights.layers[layer].feed_forward {
        FeedForwardWeights::Dense(network) => dense(page, layer, network),
        FeedForwardWeights::Experts(experts) => {
            let mut rounds = choose(page, layer, experts);
            foresee::run(page, layer);
            while let Some(round) = rounds.next(&page.state.routing.active)? {
                gate_up(page, layer, experts, &round); //                inner [slots, inner_dim]
                down(page, layer, experts, &round); //                   outer [slots, hidden]
            }
            combine(page, layer); //                                     x += Σ share · outer
        }
    }
    Ok(())
}

/// One unit of a gate and up matrix: products, gate, and `inner` ready for the second matrix.
struct GateUp<'a> {
    model: &'a Model,
    config: &'a LayerConfig,
    product: Product<'a>,
    /// The rows of the input.
    rows: &'a [u32],
    groups: Range<usize>,
    /// How many of the groups' rows there are, the others are padding.
    n: usize,
    /// What their products are multiplied by, in the order of `rows`.
    factors: &'a [f32],
    bias: Option<&'a [f32]>,
}

impl GateUp<'_> {
    fn run(self, scratch: &mut WorkerScratch, tile: &mut InputTile<'_>) {
        let (isa, activation) = (self.model.isa, self.model.activation);
        if let Some(bias) = self.bias {
            expect_soon(isa, bias);
        }
        let width = GROUP_ROWS * self.groups.len();
        let mut to = input::TileRows(tile);
        expect_rows(isa, &mut to, self.rows.len());
        let sums = scratch.multiply(isa, self.product, self.rows, self.groups);
        let Self { n, factors, bias, .. } = self;
        let numbers = GateUpSums { gate: self.config.gate, sums, width, n, factors, bias };
        prepare_gated(isa, activation, numbers, &mut to);
    }
}

fn dense(page: &mut Page<'_>, layer: usize, network: &Network) {
    let (model, team) = (page.model, page.team);
    let (config, weights) = (&model.config.layers[layer], &model.weights.layers[layer]);
    let n_rows = page.batch.rows.len();
    let State { tiling, normed, inner, x, scratch, identity, .. } = &mut *page.state;
    let (tiling, threads) = (*tiling, team.threads());
    let rows = &identity[..n_rows];
    inner.set_cols(n_rows, config.feed_forward.inner_dim());
    let cuts = tiling.cuts(n_rows);
    let unit_rows = network.gate_up.coarse_unit_rows(tiling, (n_rows, 1), threads);
    let columns = unit_rows / 2; // of `inner`: rows are pairs of a gate and an up
    let out = (input::tiles(inner, cuts, columns), PerWorker::new(scratch));
    let blocks = config.feed_forward.inner_dim().div_ceil(columns);
    let (input, factors) = normed.view();
    team.phase(cuts.ranges() * blocks, out, |unit, (mut tile, scratch)| {
        let block = unit.index % blocks;
        let (stored, groups, n) = network.gate_up.unit(block, unit_rows);
        let range = cuts.range(unit.index / blocks);
        let (rows, factors) = (&rows[range.clone()], &factors[range]);
        let matrix = model.weights.matrix(stored);
        let product = Product { matrix, input, activation: model.activation };
        let bias = weights.gate_up_bias.as_ref().map(|bias| &bias[unit_rows * block..][..n]);
        let unit = GateUp { model, config, product, rows, groups, n, factors, bias };
        unit.run(scratch, &mut tile);
    });
    let (activation, input) = (model.activation, inner.view());
    let call = Call { model, team, tiling, activation, input, factors: &[], rows };
    let to = To::Add(x, normed, Next::attention(model, layer + 1));
    call.project(&network.down, weights.down_bias.as_deref(), to, scratch);
}

fn sizes(page: &Page<'_>, layer: usize) -> (usize, usize, usize) {
    match page.model.config.layers[layer].feed_forward {
        FeedForward::Experts { inner_dim, n_experts, top } => (inner_dim, n_experts, top),
        FeedForward::Dense { .. } => panic!("layer {layer} has no experts"),
    }
}

/// Chooses the experts of every row, by what its router says of the stream, and sees to it that
/// they come into memory.
fn choose<'a>(page: &mut Page<'a>, layer: usize, weights: &ExpertWeights) -> Rounds<'a> {
    let (model, team) = (page.model, page.team);
    let (_, n_experts, top) = sizes(page, layer);
    let n_rows = page.batch.rows.len();
    let State { normed, routing, probe, .. } = &mut *page.state;
    let (normed, n) = (&*normed, n_rows * top);
    let logits = Chunks::new(&mut routing.logits[..n_rows * n_experts], n_experts);
    let experts = Chunks::new(&mut routing.experts[..n], top);
    let out = (logits, experts, Chunks::new(&mut routing.shares[..n], top));
    team.phase(n_rows, out, |unit, (logits, experts, shares)| {
        match &weights.router_bias {
            Some(bias) => logits.copy_from_slice(bias),
            None => logits.fill(0.0),
        }
        let (parts, factor) = normed.logits(unit.index, n_experts);
        parts.for_each(|part| scaled_add(model.isa, factor, part, logits));
        route(model.isa, logits, experts, shares);
    });
    routing.list_active(n_rows, top, n_experts);
    let rounds = model.weights.rounds(layer, &mut routing.active, &routing.experts[..n], n_rows);
    routing.sort(&normed.view().1[..n_rows], top);
    if let Some(probe) = probe {
        let (experts, shares) = (&routing.experts[..n], &routing.shares[..n]);
        probe(Event::Routing { layer, experts, shares });
    }
    rounds
}

/// The first matrices of all experts of a round, one list of units over all of them.
fn gate_up(page: &mut Page<'_>, layer: usize, weights: &ExpertWeights, round: &Round<'_>) {
    let model = page.model;
    let config = &model.config.layers[layer];
    let (inner_dim, ..) = sizes(page, layer);
    let State { tiling, normed, routing, inner, scratch, .. } = &mut *page.state;
    inner.set_cols(routing.row_of_slot.len(), inner_dim);
    let splits = &routing.splits[round.range.start..=round.range.end];
    let (n_rows, experts) = (page.batch.rows.len(), round.range.len());
    let first = &weights.experts[0].gate_up;
    let unit_rows = first.coarse_unit_rows(*tiling, (n_rows, experts), page.team.threads());
    let columns = unit_rows / 2; // of `inner`: rows are pairs of a gate and an up
    let tiles = input::tiles(inner, RowCuts::At(splits), columns);
    let blocks = inner_dim.div_ceil(columns);
    let (input, _) = normed.view();
    let biases = model.weights.layers[layer].gate_up_bias.as_deref();
    let units = experts * blocks;
    page.team.phase(units, (tiles, PerWorker::new(scratch)), |unit, (mut tile, scratch)| {
        let (index, block) = (round.range.start + unit.index / blocks, unit.index % blocks);
        let expert = routing.active[index] as usize;
        let slots = routing.splits[index]..routing.splits[index + 1];
        let (rows, factors) = (&routing.row_of_slot[slots.clone()], &routing.factor_of_slot[slots]);
        let guard = round.expert(index, &routing.active);
        let (stored, groups, n) = guard.network().gate_up.unit(block, unit_rows);
        let matrix = guard.matrix(stored);
        let product = Product { matrix, input, activation: model.activation };
        let bias = biases.map(|all| &all[(2 * expert * inner_dim) + unit_rows * block..][..n]);
        let unit = GateUp { model, config, product, rows, groups, n, factors, bias };
        unit.run(scratch, &mut tile);
    });
}

/// Their second matrices.
fn down(page: &mut Page<'_>, layer: usize, weights: &ExpertWeights, round: &Round<'_>) {
    let (model, team) = (page.model, page.team);
    let hidden = model.config.hidden_dim;
    let State { tiling, routing, inner, outer, scratch, identity, .. } = &mut *page.state;
    let splits = &routing.splits[round.range.start..=round.range.end];
    let (n_rows, experts) = (page.batch.rows.len(), round.range.len());
    let first = &weights.experts[0].down;
    let unit_rows = first.unit_rows(*tiling, (n_rows, experts), team.threads());
    let outer = &mut outer[..routing.row_of_slot.len() * hidden];
    let tiles = Tiles::new(outer, hidden, RowCuts::At(splits), unit_rows);
    let blocks = tiles.column_blocks();
    let input = inner.view();
    let biases = model.weights.layers[layer].down_bias.as_deref();
    let units = experts * blocks;
    team.phase(units, (tiles, PerWorker::new(scratch)), |unit, (mut tile, scratch)| {
        let (index, block) = (round.range.start + unit.index / blocks, unit.index % blocks);
        let rows = &identity[routing.splits[index]..routing.splits[index + 1]];
        let guard = round.expert(index, &routing.active);
        let (stored, groups, n) = guard.network().down.unit(block, unit_rows);
        let bias = biases.map(|all| {
            let expert = routing.active[index] as usize;
            &all[expert * hidden..][tile.columns()]
        });
        let width = GROUP_ROWS * groups.len();
        let matrix = guard.matrix(stored);
        let product = Product { matrix, input, activation: model.activation };
        if let Some(bias) = bias {
            expect_soon(model.isa, bias);
        }
        for row in 0..rows.len() {
            expect_soon(model.isa, tile.row_mut(row));
        }
        let sums = scratch.multiply(model.isa, product, rows, groups);
        for (row, sums) in sums.chunks_exact(width).enumerate() {
            let to = tile.row_mut(row);
            to.copy_from_slice(&sums[..n]);
            if let Some(bias) = bias {
                to.iter_mut().zip(bias).for_each(|(to, bias)| *to += bias);
            }
        }
    });
}

/// Columns of the stream to which a unit adds what the experts gave.
const COMBINED: usize = 4 * UNIT_ROWS;

/// Adds what the experts gave to the residual stream, the best expert first.
fn combine(page: &mut Page<'_>, layer: usize) {
    let (model, hidden, n_rows) = (page.model, page.model.config.hidden_dim, page.batch.rows.len());
    let (_, _, top) = sizes(page, layer);
    let State { routing, outer, x, normed, .. } = &mut *page.state;
    let (routing, outer) = (&*routing, &*outer);
    let next = Next::attention(model, layer + 1);
    let cuts = RowCuts::Every { rows: n_rows, block: 1 };
    let tiles = Tiles::new(&mut x[..n_rows * hidden], hidden, cuts, COMBINED);
    let units = n_rows * tiles.column_blocks();
    let out = (tiles, next.tiles(normed, cuts, COMBINED));
    page.team.phase(units, out, |_, (mut tile, mut normed)| {
        let (row, columns) = (tile.row_range().start, tile.columns());
        next.expect(1, columns.clone(), &mut normed);
        let sum = tile.row_mut(0);
        for choice in row * top..(row + 1) * top {
            let share = routing.shares[choice];
            let slot = routing.slot_of_choice[choice] as usize;
            scaled_add(model.isa, share, &outer[slot * hidden..][columns.clone()], sum);
        }
        next.take((sum, columns.len()), columns, &mut normed);
    });
    next.finish(normed, n_rows);
}
