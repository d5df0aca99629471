//! A look at the next layer: which experts it will probably need, so that they can be read already.
//!
//! The next layer's router is run on the residual stream as it is now, which the experts of this
//! layer and the attention of the next have yet to change. Only what is read early depends on it,
//! never a result.

use super::project::{Call, To};
use crate::config::{Config, FeedForward};
use crate::forward::Page;
use crate::state::State;
use crate::weights::FeedForwardWeights;
use oss_kernels::{Activation, InputBuffer, Weighed, prepare_weighed, rms_factor, route};

/// Rows that are looked at: those of many rows stand for the others.
const ROWS: usize = 8;

/// Scratch for the look ahead.
pub(crate) struct Scratch {
    /// `[ROWS, hidden_dim]`.
    input: InputBuffer,
    /// `[ROWS]`.
    factors: Vec<f32>,
    /// `[ROWS, n_experts]`.
    logits: Vec<f32>,
    /// `[ROWS, top]`.
    experts: Vec<u32>,
    shares: Vec<f32>,
}

impl Scratch {
    fn new(config: &Config) -> Self {
        Self {
            input: InputBuffer::new(ROWS, config.hidden_dim, Activation::F32).with_squares(ROWS),
            factors: vec![0.0; ROWS],
            logits: vec![0.0; ROWS * config.max_experts()],
            experts: vec![0; ROWS * config.max_top()],
            shares: vec![0.0; ROWS * config.max_top()],
        }
    }
}

/// Guesses the experts of `layer` after those of the layer before it were chosen, where experts
/// are in slots and there is such a layer.
pub(crate) fn run(page: &mut Page<'_>, layer: usize) {
    let (model, isa, n_rows) = (page.model, page.model.isa, page.batch.rows.len());
    let config = &model.config;
    let Some(weights) = model.weights.layers.get(layer).filter(|_| model.weights.has_slots())
    else {
        return;
    };
    let (FeedForwardWeights::Experts(experts), FeedForward::Experts { top, .. }) =
        (&weights.feed_forward, config.layers[layer].feed_forward)
    else {
        return;
    };
    let State { x, foresee, scratch, routing, identity, .. } = &mut *page.state;
    let foresee = foresee.get_or_insert_with(|| Box::new(Scratch::new(config)));
    let Scratch { input, factors, logits, experts: guesses, shares } = &mut **foresee;
    let looked_at = n_rows.min(ROWS);
    for row in 0..looked_at {
        let x = &x[(row * n_rows / looked_at) * config.hidden_dim..][..config.hidden_dim];
        let numbers = Weighed { x, width: x.len(), gain: &weights.feed_forward_norm };
        let mut to = input.row(row);
        prepare_weighed(isa, Activation::F32, numbers, &mut to);
        factors[row] = rms_factor(to.squares, config.hidden_dim, config.norm_epsilon);
    }
    let call = Call {
        model,
        team: page.team,
        activation: Activation::F32,
        input: input.view(),
        factors,
        rows: &identity[..looked_at],
    };
    let to = To::Write(logits);
    call.project(&experts.router, experts.router_bias.as_deref(), to, scratch);
    let guesses = &mut guesses[..looked_at * top];
    let chosen = guesses.chunks_exact_mut(top).zip(shares.chunks_exact_mut(top));
    for (logits, (guesses, shares)) in logits.chunks_exact(experts.router.rows).zip(chosen) {
        route(isa, logits, guesses, shares);
    }
    model.weights.foresee(layer, guesses, top, &routing.active);
}
