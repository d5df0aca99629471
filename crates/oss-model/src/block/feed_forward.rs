//! The feed-forward half of a layer: one network, or a router and a few of many.

use super::foresee;
use super::project::{self, Call, To};
use crate::config::{FeedForward, LayerConfig};
use crate::error::Result;
use crate::forward::Page;
use crate::input::{self, InputTile};
use crate::model::Model;
use crate::state::{Event, State, WorkerScratch};
use crate::weights::{ExpertWeights, FeedForwardWeights, Network, Round, Rounds, UNIT_ROWS};
use oss_kernels::elementwise::scaled_add;
use oss_kernels::{
    Activation, GateUpSums, InputRowsMut, Product, expect_row, expect_soon, prepare_gated, route,
};
use oss_threads::{Chunks, PerWorker, RowCuts, Tiles};
use std::ops::Range;

/// `x += feed_forward(normed)`.
///
/// # Errors
/// When an expert cannot be read from its file.
pub(crate) fn run(page: &mut Page<'_>, layer: usize) -> Result<()> {
    let model = page.model;
    match &model.weights.layers[layer].feed_forward {
        FeedForwardWeights::Dense(network) => dense(page, layer, network),
        FeedForwardWeights::Experts(experts) => {
            let mut rounds = choose(page, layer, experts);
            foresee::run(page, layer + 1);
            while let Some(round) = rounds.next(&page.state.routing.active)? {
                gate_up(page, layer, experts, &round); //                inner [slots, inner_dim]
                down(page, experts, &round); //                          outer [slots, hidden]
            }
            combine(page, layer, experts); //                            x += Σ share · outer
        }
    }
    Ok(())
}

/// Columns of `inner` that a unit of paired rows gives.
const INNER_UNIT: usize = UNIT_ROWS / 2;

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
    bias: Option<&'a [f32]>,
}

impl GateUp<'_> {
    fn run(self, scratch: &mut WorkerScratch, tile: &mut InputTile<'_>) {
        let (isa, activation) = (self.model.isa, self.model.activation);
        if let Some(bias) = self.bias {
            expect_soon(isa, bias);
        }
        let width = 16 * self.groups.len();
        let mut to = input::TileRows(tile);
        for row in 0..self.rows.len() {
            expect_row(isa, &to.row(row));
        }
        let sums = scratch.multiply(isa, self.product, self.rows, self.groups);
        let Self { n, bias, .. } = self;
        let numbers = GateUpSums { gate: self.config.gate, sums, width, n, bias };
        prepare_gated(isa, activation, numbers, &mut to);
    }
}

fn dense(page: &mut Page<'_>, layer: usize, network: &Network) {
    let (model, team) = (page.model, page.team);
    let config = &model.config.layers[layer];
    let n_rows = page.batch.rows.len();
    let State { normed, inner, x, scratch, identity, .. } = &mut *page.state;
    let rows = &identity[..n_rows];
    inner.set_cols(n_rows, config.feed_forward.inner_dim());
    let cuts = project::cuts(n_rows);
    let out = (input::tiles(inner, cuts, INNER_UNIT), PerWorker::new(scratch));
    let (normed, blocks) = (normed.view(), config.feed_forward.inner_dim().div_ceil(INNER_UNIT));
    team.phase(cuts.ranges() * blocks, out, |unit, (mut tile, scratch)| {
        let (stored, groups, n) = network.gate_up.unit(unit.index % blocks, UNIT_ROWS);
        let rows = &rows[cuts.range(unit.index / blocks)];
        let matrix = model.weights.matrix(stored);
        let product = Product { matrix, input: normed, activation: model.activation };
        let unit = GateUp { model, config, product, rows, groups, n, bias: None };
        unit.run(scratch, &mut tile);
    });
    let call = Call { model, team, activation: model.activation, input: inner.view(), rows };
    call.project(&network.down, None, To::Add(x), scratch);
}

fn sizes(page: &Page<'_>, layer: usize) -> (usize, usize, usize) {
    match page.model.config.layers[layer].feed_forward {
        FeedForward::Experts { inner_dim, n_experts, top } => (inner_dim, n_experts, top),
        FeedForward::Dense { .. } => panic!("layer {layer} has no experts"),
    }
}

/// Chooses the experts of every row, from the exact normalised stream, and sees to it that they
/// come into memory.
fn choose<'a>(page: &mut Page<'a>, layer: usize, weights: &ExpertWeights) -> Rounds<'a> {
    let (model, team) = (page.model, page.team);
    let (_, n_experts, top) = sizes(page, layer);
    let n_rows = page.batch.rows.len();
    let State { exact, routing, scratch, identity, probe, .. } = &mut *page.state;
    let call = Call {
        model,
        team,
        activation: Activation::F32,
        input: exact.view(),
        rows: &identity[..n_rows],
    };
    let n = n_rows * top;
    let chosen = (&mut routing.experts[..n], &mut routing.shares[..n]);
    ask_router(&call, weights, &mut routing.logits, chosen, scratch);
    routing.list_active(n_rows, top, n_experts);
    let rounds = model.weights.rounds(layer, &mut routing.active, &routing.experts[..n], n_rows);
    routing.sort(n_rows, top);
    if let Some(probe) = probe {
        let (experts, shares) = (&routing.experts[..n], &routing.shares[..n]);
        probe(Event::Routing { layer, experts, shares });
    }
    rounds
}

/// The experts that the call's rows are sent to and their shares (`[rows, top]`, the best first),
/// by what the router says of each (`logits`, room for `[rows, n_experts]`).
pub(crate) fn ask_router(
    call: &Call<'_>,
    weights: &ExpertWeights,
    logits: &mut [f32],
    (experts, shares): (&mut [u32], &mut [f32]),
    scratch: &mut [WorkerScratch],
) {
    call.project(&weights.router, weights.router_bias.as_deref(), To::Write(logits), scratch);
    let top = experts.len() / call.rows.len();
    let chosen = experts.chunks_exact_mut(top).zip(shares.chunks_exact_mut(top));
    for (logits, (experts, shares)) in logits.chunks_exact(weights.router.rows).zip(chosen) {
        route(call.model.isa, logits, experts, shares);
    }
}

/// The first matrices of all experts of a round, one list of units over all of them.
fn gate_up(page: &mut Page<'_>, layer: usize, weights: &ExpertWeights, round: &Round<'_>) {
    let model = page.model;
    let config = &model.config.layers[layer];
    let (inner_dim, ..) = sizes(page, layer);
    let State { normed, routing, inner, scratch, .. } = &mut *page.state;
    inner.set_cols(routing.row_of_slot.len(), inner_dim);
    let splits = &routing.splits[round.range.start..=round.range.end];
    let tiles = input::tiles(inner, RowCuts::At(splits), INNER_UNIT);
    let blocks = inner_dim.div_ceil(INNER_UNIT);
    let input = normed.view();
    let units = round.range.len() * blocks;
    page.team.phase(units, (tiles, PerWorker::new(scratch)), |unit, (mut tile, scratch)| {
        let (index, block) = (round.range.start + unit.index / blocks, unit.index % blocks);
        let expert = routing.active[index] as usize;
        let rows = &routing.row_of_slot[routing.splits[index]..routing.splits[index + 1]];
        let guard = round.expert(index, &routing.active);
        let (stored, groups, n) = guard.network().gate_up.unit(block, UNIT_ROWS);
        let matrix = guard.matrix(stored);
        let product = Product { matrix, input, activation: model.activation };
        let bias = weights.gate_up_bias.as_ref();
        let bias = bias.map(|bias| &bias[(2 * expert * inner_dim) + 64 * block..][..n]);
        GateUp { model, config, product, rows, groups, n, bias }.run(scratch, &mut tile);
    });
}

/// Their second matrices.
fn down(page: &mut Page<'_>, weights: &ExpertWeights, round: &Round<'_>) {
    let (model, team) = (page.model, page.team);
    let hidden = model.config.hidden_dim;
    let State { routing, inner, outer, scratch, identity, .. } = &mut *page.state;
    let splits = &routing.splits[round.range.start..=round.range.end];
    let unit_rows = weights.experts[0].down.unit_rows(page.batch.rows.len());
    let outer = &mut outer[..routing.row_of_slot.len() * hidden];
    let tiles = Tiles::new(outer, hidden, RowCuts::At(splits), unit_rows);
    let blocks = tiles.column_blocks();
    let input = inner.view();
    let units = round.range.len() * blocks;
    team.phase(units, (tiles, PerWorker::new(scratch)), |unit, (mut tile, scratch)| {
        let (index, block) = (round.range.start + unit.index / blocks, unit.index % blocks);
        let rows = &identity[routing.splits[index]..routing.splits[index + 1]];
        let guard = round.expert(index, &routing.active);
        let (stored, groups, n) = guard.network().down.unit(block, unit_rows);
        let width = 16 * groups.len();
        let matrix = guard.matrix(stored);
        let product = Product { matrix, input, activation: model.activation };
        for row in 0..rows.len() {
            expect_soon(model.isa, tile.row_mut(row));
        }
        let sums = scratch.multiply(model.isa, product, rows, groups);
        for (row, sums) in sums.chunks_exact(width).enumerate() {
            tile.row_mut(row).copy_from_slice(&sums[..n]);
        }
    });
}

/// Adds what the experts gave to the residual stream, the best expert first.
fn combine(page: &mut Page<'_>, layer: usize, weights: &ExpertWeights) {
    let (model, hidden) = (page.model, page.model.config.hidden_dim);
    let (_, _, top) = sizes(page, layer);
    let State { routing, outer, x, .. } = &mut *page.state;
    let (routing, outer) = (&*routing, &*outer);
    page.team.phase(page.batch.rows.len(), Chunks::new(x, hidden), |unit, x| {
        for choice in unit.index * top..(unit.index + 1) * top {
            let (expert, share) = (routing.experts[choice] as usize, routing.shares[choice]);
            let slot = routing.slot_of_choice[choice] as usize;
            scaled_add(model.isa, share, &outer[slot * hidden..][..hidden], x);
            if let Some(bias) = &weights.down_bias {
                scaled_add(model.isa, share, &bias[expert * hidden..][..hidden], x);
            }
        }
    });
}
