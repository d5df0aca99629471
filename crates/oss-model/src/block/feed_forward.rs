//! The feed-forward half of a layer: one network, or a router and a few of many.

use super::norm::NextNorm;
use super::predict::predict_experts;
use super::project::{Call, To};
use crate::config::LayerConfig;
use crate::error::Result;
use crate::forward::ForwardPass;
use crate::input::{self, InputTile};
use crate::model::Model;
use crate::state::{Event, State, WorkerScratch};
use crate::weights::{
    ExpertWeights, FINE_ROWS, FeedForwardWeights, Network, Round, Rounds, UNIT_ROWS,
};
use oss_kernels::elementwise::scaled_add;
use oss_kernels::{GateUpSums, Product, prefetch_f32, prefetch_rows, prepare_gated};
use oss_quant::GROUP_ROWS;
use oss_threads::{Chunks, PerWorker, RowCuts, Tiles};
use std::ops::Range;

/// `x += feed_forward(normed)`, normalised for the next layer.
///
/// # Errors
/// When an expert cannot be read from its file.
pub(crate) fn run(pass: &mut ForwardPass<'_>, layer: usize) -> Result<()> {
    let model = pass.model;
    match &model.weights.layers[layer].feed_forward {
        FeedForwardWeights::Dense(network) => dense(pass, layer, network),
        FeedForwardWeights::Experts(experts) => {
            let mut rounds = route(pass, layer, experts);
            predict_experts(pass, layer);
            while let Some(round) = rounds.next(&pass.state.routing.active)? {
                gate_up(pass, layer, experts, &round); //         inner [slots, intermediate_dim]
                down(pass, layer, experts, &round); //            expert_outputs [slots, hidden]
            }
            sum_experts(pass, layer, experts.top_k); //          x += Σ weight · expert_outputs
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
            prefetch_f32(isa, bias);
        }
        let width = GROUP_ROWS * self.groups.len();
        let mut to = input::TileRows(tile);
        prefetch_rows(isa, &mut to, self.rows.len());
        let sums = scratch.multiply(isa, self.product, self.rows, self.groups);
        let Self { n, factors, bias, .. } = self;
        let numbers = GateUpSums { gate: self.config.gate, sums, width, n, factors, bias };
        prepare_gated(isa, activation, numbers, &mut to);
    }
}

fn dense(pass: &mut ForwardPass<'_>, layer: usize, network: &Network) {
    let (model, team) = (pass.model, pass.team);
    let (config, weights) = (&model.config.layers[layer], &model.weights.layers[layer]);
    let n_rows = pass.batch.rows.len();
    let State { tiling, normed, inner, x, scratch, identity, .. } = &mut *pass.state;
    let (tiling, threads) = (*tiling, team.threads());
    let rows = &identity[..n_rows];
    inner.set_cols(n_rows, config.feed_forward.intermediate_dim());
    let cuts = tiling.cuts(n_rows);
    let unit_rows = network.gate_up.coarse_unit_rows(tiling, (n_rows, 1), threads);
    let columns = unit_rows / 2; // of `inner`: rows are pairs of a gate and an up
    let out = (input::tiles(inner, cuts, columns), PerWorker::new(scratch));
    let blocks = config.feed_forward.intermediate_dim().div_ceil(columns);
    let (input, factors) = normed.view();
    team.phase(cuts.ranges() * blocks, out, |unit, (mut tile, scratch)| {
        let block = unit.index % blocks;
        let (location, groups, n) = network.gate_up.unit(block, unit_rows);
        let range = cuts.range(unit.index / blocks);
        let (rows, factors) = (&rows[range.clone()], &factors[range]);
        let matrix = model.weights.matrix(location);
        let product = Product { matrix, input, activation: model.activation };
        let bias = weights.gate_up_bias.as_ref().map(|bias| &bias[unit_rows * block..][..n]);
        let unit = GateUp { model, config, product, rows, groups, n, factors, bias };
        unit.run(scratch, &mut tile);
    });
    let (activation, input) = (model.activation, inner.view());
    let call = Call { model, team, tiling, activation, input, factors: &[], rows };
    let to = To::Add(x, normed, NextNorm::attention(model, layer + 1));
    call.project(&network.down, weights.down_bias.as_deref(), to, scratch);
}

/// Chooses the experts of every row, by what its router says of the stream, and sees to it that
/// they come into memory.
fn route<'a>(pass: &mut ForwardPass<'a>, layer: usize, weights: &'a ExpertWeights) -> Rounds<'a> {
    let (model, team) = (pass.model, pass.team);
    let (n_experts, top_k) = (weights.experts.len(), weights.top_k);
    let n_rows = pass.batch.rows.len();
    let State { normed, routing, probe, .. } = &mut *pass.state;
    let (normed, n) = (&*normed, n_rows * top_k);
    let logits = Chunks::new(&mut routing.logits[..n_rows * n_experts], n_experts);
    let experts = Chunks::new(&mut routing.experts[..n], top_k);
    let out = (logits, experts, Chunks::new(&mut routing.routing_weights[..n], top_k));
    team.phase(n_rows, out, |unit, (logits, experts, routing_weights)| {
        match &weights.router_bias {
            Some(bias) => logits.copy_from_slice(bias),
            None => logits.fill(0.0),
        }
        let (parts, factor) = normed.logits(unit.index, n_experts);
        parts.for_each(|part| scaled_add(model.isa, factor, part, logits));
        oss_kernels::route(model.isa, logits, experts, routing_weights);
    });
    routing.list_active(n_rows, top_k, n_experts);
    let choices = (&routing.experts[..n], n_rows);
    let rounds = model.weights.rounds((layer, weights), &mut routing.active, choices);
    routing.sort(&normed.view().1[..n_rows], top_k);
    if let Some(probe) = probe {
        let (experts, routing_weights) = (&routing.experts[..n], &routing.routing_weights[..n]);
        probe(Event::Routing { layer, experts, routing_weights });
    }
    rounds
}

/// The first matrices of all experts of a round, one list of units over all of them.
fn gate_up(pass: &mut ForwardPass<'_>, layer: usize, weights: &ExpertWeights, round: &Round<'_>) {
    let model = pass.model;
    let config = &model.config.layers[layer];
    let intermediate_dim = weights.intermediate_dim;
    let State { tiling, normed, routing, inner, scratch, .. } = &mut *pass.state;
    inner.set_cols(routing.row_of_slot.len(), intermediate_dim);
    let splits = &routing.splits[round.range.start..=round.range.end];
    let (n_rows, experts) = (pass.batch.rows.len(), round.range.len());
    let first = &weights.experts[0].gate_up;
    let unit_rows = first.coarse_unit_rows(*tiling, (n_rows, experts), pass.team.threads());
    let columns = unit_rows / 2; // of `inner`: rows are pairs of a gate and an up
    let tiles = input::tiles(inner, RowCuts::At(splits), columns);
    let blocks = intermediate_dim.div_ceil(columns);
    let (input, _) = normed.view();
    let biases = model.weights.layers[layer].gate_up_bias.as_deref();
    let units = experts * blocks;
    pass.team.phase(units, (tiles, PerWorker::new(scratch)), |unit, (mut tile, scratch)| {
        let (index, block) = (round.range.start + unit.index / blocks, unit.index % blocks);
        let expert = routing.active[index] as usize;
        let slots = routing.splits[index]..routing.splits[index + 1];
        let (rows, factors) = (&routing.row_of_slot[slots.clone()], &routing.factor_of_slot[slots]);
        let view = round.expert(index, &routing.active);
        let (location, groups, n) = view.network().gate_up.unit(block, unit_rows);
        let matrix = view.matrix(location);
        let product = Product { matrix, input, activation: model.activation };
        let bias =
            biases.map(|all| &all[(2 * expert * intermediate_dim) + unit_rows * block..][..n]);
        let unit = GateUp { model, config, product, rows, groups, n, factors, bias };
        unit.run(scratch, &mut tile);
    });
}

/// Their second matrices.
fn down(pass: &mut ForwardPass<'_>, layer: usize, weights: &ExpertWeights, round: &Round<'_>) {
    let (model, team) = (pass.model, pass.team);
    let hidden = model.config.hidden_dim;
    let State { tiling, routing, inner, expert_outputs, scratch, identity, .. } = &mut *pass.state;
    let splits = &routing.splits[round.range.start..=round.range.end];
    let (n_rows, experts) = (pass.batch.rows.len(), round.range.len());
    let first = &weights.experts[0].down;
    let unit_rows = first.unit_rows(*tiling, (n_rows, experts), (team.threads(), FINE_ROWS));
    let expert_outputs = &mut expert_outputs[..routing.row_of_slot.len() * hidden];
    let tiles = Tiles::new(expert_outputs, hidden, RowCuts::At(splits), unit_rows);
    let blocks = tiles.column_blocks();
    let input = inner.view();
    let biases = model.weights.layers[layer].down_bias.as_deref();
    let units = experts * blocks;
    team.phase(units, (tiles, PerWorker::new(scratch)), |unit, (mut tile, scratch)| {
        let (index, block) = (round.range.start + unit.index / blocks, unit.index % blocks);
        let rows = &identity[routing.splits[index]..routing.splits[index + 1]];
        let view = round.expert(index, &routing.active);
        let (location, groups, n) = view.network().down.unit(block, unit_rows);
        let bias = biases.map(|all| {
            let expert = routing.active[index] as usize;
            &all[expert * hidden..][tile.columns()]
        });
        let width = GROUP_ROWS * groups.len();
        let matrix = view.matrix(location);
        let product = Product { matrix, input, activation: model.activation };
        if let Some(bias) = bias {
            prefetch_f32(model.isa, bias);
        }
        for row in 0..rows.len() {
            prefetch_f32(model.isa, tile.row_mut(row));
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
const SUMMED: usize = 4 * UNIT_ROWS;

/// Adds what the experts gave to the residual stream, the best expert first.
fn sum_experts(pass: &mut ForwardPass<'_>, layer: usize, top_k: usize) {
    let (model, hidden, n_rows) = (pass.model, pass.model.config.hidden_dim, pass.batch.rows.len());
    let State { routing, expert_outputs, x, normed, .. } = &mut *pass.state;
    let (routing, expert_outputs) = (&*routing, &*expert_outputs);
    let next = NextNorm::attention(model, layer + 1);
    let cuts = RowCuts::Every { rows: n_rows, block: 1 };
    let tiles = Tiles::new(&mut x[..n_rows * hidden], hidden, cuts, SUMMED);
    let units = n_rows * tiles.column_blocks();
    let out = (tiles, next.tiles(normed, cuts, SUMMED));
    pass.team.phase(units, out, |_, (mut tile, mut normed)| {
        let (row, columns) = (tile.row_range().start, tile.columns());
        next.prefetch(1, columns.clone(), &mut normed);
        let sum = tile.row_mut(0);
        for choice in row * top_k..(row + 1) * top_k {
            let weight = routing.routing_weights[choice];
            let slot = routing.slot_of_choice[choice] as usize;
            scaled_add(model.isa, weight, &expert_outputs[slot * hidden..][columns.clone()], sum);
        }
        next.emit((sum, columns.len()), columns, &mut normed);
    });
    next.finish(normed, n_rows);
}
