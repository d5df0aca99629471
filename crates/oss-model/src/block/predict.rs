//! A look at the next layers: which experts they will probably need, so that they can be read
//! already.
//!
//! Their routers are run on the residual stream as it is now, which the layers in between have yet
//! to change. Only what is read early depends on it, never a result.

use super::project::{Call, To};
use crate::config::Config;
use crate::forward::ForwardPass;
use crate::state::State;
use crate::weights::{FeedForwardWeights, Predictions};
use oss_kernels::{Activation, GainedRows, InputBuffer, prepare_with_gain, rms_factor, route};
use std::ops::Range;

/// Rows that are looked at: those of many rows stand for the others.
const ROWS: usize = 8;

/// Layers that are looked at: reading an expert takes as long as computing a few of them.
const AHEAD: usize = 3;

/// Scratch for the look ahead.
pub(crate) struct Scratch {
    /// `[ROWS, hidden_dim]`.
    input: InputBuffer,
    /// `[ROWS]`.
    factors: Vec<f32>,
    /// `[ROWS, n_experts]`.
    logits: Vec<f32>,
    /// `[AHEAD, ROWS, top_k]`.
    experts: Vec<u32>,
    /// `[AHEAD, ROWS, top_k]`: how much larger their logits are than those of all others.
    margins: Vec<f32>,
    /// `[top_k]`.
    routing_weights: Vec<f32>,
}

impl Scratch {
    fn new(config: &Config) -> Self {
        Self {
            input: InputBuffer::new(ROWS, config.hidden_dim, Activation::F32).with_squares(ROWS),
            factors: vec![0.0; ROWS],
            logits: vec![0.0; ROWS * config.max_experts()],
            experts: vec![0; AHEAD * ROWS * config.max_top_k()],
            margins: vec![0.0; AHEAD * ROWS * config.max_top_k()],
            routing_weights: vec![0.0; config.max_top_k()],
        }
    }

    /// Where the n-th layer's predictions are, and their margins.
    fn place(&self, n: usize) -> Range<usize> {
        let len = self.experts.len() / AHEAD;
        n * len..(n + 1) * len
    }
}

/// Predicts the experts of the layers after `layer`, whose own were just chosen, where some experts
/// are in the file alone and as far as there are such layers.
pub(crate) fn predict_experts(pass: &mut ForwardPass<'_>, layer: usize) {
    let (model, n_rows) = (pass.model, pass.batch.rows.len());
    if !model.weights.lacks_experts() {
        return;
    }
    let new = || Box::new(Scratch::new(&model.config));
    let mut scratch = pass.state.predictions.take().unwrap_or_else(new);
    let (mut top_ks, mut seen) = ([0; AHEAD], 0);
    while seen < AHEAD
        && let Some(top_k) = predict_layer(pass, &mut scratch, layer + 1 + seen, seen)
    {
        top_ks[seen] = top_k;
        seen += 1;
    }
    let predictions = (0..seen).map(|n| {
        let (place, len) = (scratch.place(n), n_rows.min(ROWS) * top_ks[n]);
        let experts = &scratch.experts[place.clone()][..len];
        let margins = &scratch.margins[place][..len];
        Predictions { layer: layer + 1 + n, top_k: top_ks[n], experts, margins }
    });
    model.weights.prefetch_experts((layer, &pass.state.routing.active), predictions);
    pass.state.predictions = Some(scratch);
}

/// Predicts the experts of one layer, to the n-th place for predictions; gives how many there are
/// for each row that is looked at, none where the layer has no router.
fn predict_layer(
    pass: &mut ForwardPass<'_>,
    scratch: &mut Scratch,
    layer: usize,
    n: usize,
) -> Option<usize> {
    let (model, isa, n_rows) = (pass.model, pass.model.isa, pass.batch.rows.len());
    let config = &model.config;
    let weights = model.weights.layers.get(layer)?;
    let FeedForwardWeights::Experts(experts) = &weights.feed_forward else { return None };
    let top_k = experts.top_k;
    let State { tiling, x, scratch: workers, identity, .. } = &mut *pass.state;
    let looked_at = n_rows.min(ROWS);
    for row in 0..looked_at {
        let x = &x[(row * n_rows / looked_at) * config.hidden_dim..][..config.hidden_dim];
        let numbers = GainedRows { x, width: x.len(), gain: &weights.feed_forward_norm };
        let mut to = scratch.input.row(row);
        prepare_with_gain(isa, Activation::F32, numbers, &mut to);
        scratch.factors[row] = rms_factor(to.squares, config.hidden_dim, config.norm_epsilon);
    }
    let call = Call {
        model,
        team: pass.team,
        tiling: *tiling,
        activation: Activation::F32,
        input: scratch.input.view(),
        factors: &scratch.factors,
        rows: &identity[..looked_at],
    };
    let to = To::Write(&mut scratch.logits);
    call.project(&experts.router, experts.router_bias.as_deref(), to, workers);
    let place = scratch.place(n);
    let Scratch { logits, experts: predictions, margins, routing_weights, .. } = scratch;
    let (predictions, margins) = (&mut predictions[place.clone()], &mut margins[place]);
    let chosen =
        predictions.chunks_exact_mut(top_k).zip(margins.chunks_exact_mut(top_k)).take(looked_at);
    for (logits, (predictions, margins)) in logits.chunks_exact(experts.router.rows).zip(chosen) {
        route(isa, logits, predictions, &mut routing_weights[..top_k]);
        write_margins(logits, predictions, margins);
    }
    Some(top_k)
}

/// How much larger the logits of some experts are than the largest of the others.
fn write_margins(logits: &[f32], experts: &[u32], margins: &mut [f32]) {
    let others = (0..).zip(logits).filter(|(expert, _)| !experts.contains(expert));
    let best = others.map(|(_, logit)| *logit).fold(f32::NEG_INFINITY, f32::max);
    for (margin, expert) in margins.iter_mut().zip(experts) {
        *margin = logits[*expert as usize] - best;
    }
}
