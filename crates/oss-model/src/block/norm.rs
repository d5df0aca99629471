//! RMS normalisation, fused into the phases that update the residual stream.
//!
//! A unit that has computed some columns of the stream also stores what the next matrices take of
//! them: the columns times their gains, in the activation format of the products; their sums of
//! squares; and their partial sums of the router's logits. 1 / RMS is a single factor of a whole
//! row, applied to the products. Between two phases only the partial sums of the blocks of columns
//! are added up, in their order, so that results do not depend on who computed which.

use super::router::{BLOCK, Router};
use crate::config::Config;
use crate::error::Result;
use crate::input::{self, InputTile, InputTiles};
use crate::model::Model;
use crate::weights::{FINE_ROWS, FeedForwardWeights};
use oss_kernels::{
    Activation, GainedRows, Input, InputBuffer, prefetch_f32, prefetch_rows, prepare_with_gain,
    rms_factor,
};
use oss_memory::try_zeroed;
use oss_quant::GROUP_ROWS;
use oss_threads::{RowCuts, Team, Tile, Tiles};
use std::ops::Range;

/// The residual stream as the next matrices take it.
pub(crate) struct Normed {
    /// `[rows, hidden_dim]`: the stream times the gains, and its sums of squares.
    input: InputBuffer,
    /// `[rows]`: by what products with it are to be multiplied.
    factors: Vec<f32>,
    /// `[rows, blocks, padded experts]`: what the blocks add to the router's logits, before the
    /// factors; empty where no layer has a router.
    logits: Vec<f32>,
}

/// A [`Normed`] split into rectangles: input, logits.
pub(crate) type NormedTiles<'a> = (InputTiles<'a>, Option<Tiles<'a, f32>>);
/// The rectangle of one unit.
pub(crate) type NormedTile<'p> = (InputTile<'p>, Option<Tile<'p, f32>>);

impl Normed {
    /// Memory for so many rows, the input's.
    pub(crate) fn new(config: &Config, rows: usize, input: InputBuffer) -> Result<Self> {
        let experts = config.max_experts().next_multiple_of(GROUP_ROWS);
        Ok(Self {
            input: input.with_squares(rows),
            factors: try_zeroed(rows)?,
            logits: try_zeroed(rows * config.hidden_dim.div_ceil(BLOCK) * experts)?,
        })
    }

    /// What products take, and by what they are to be multiplied.
    pub(crate) fn view(&self) -> (Input<'_>, &[f32]) {
        (self.input.view(), &self.factors)
    }

    /// What the blocks of a row add to the logits of `n` experts, and by what it is to be
    /// multiplied.
    pub(crate) fn logits(&self, row: usize, n: usize) -> (impl Iterator<Item = &[f32]>, f32) {
        let (blocks, padded) = (self.input.stride.div_ceil(BLOCK), n.next_multiple_of(GROUP_ROWS));
        let parts = self.logits[row * blocks * padded..][..blocks * padded].chunks_exact(padded);
        (parts.map(move |part| &part[..n]), self.factors[row])
    }

    pub(crate) fn bytes(&self) -> usize {
        self.input.bytes() + 4 * (self.factors.len() + self.logits.len())
    }
}

/// What comes after a change of the stream.
#[derive(Clone, Copy)]
pub(crate) struct NextNorm<'a> {
    model: &'a Model,
    gain: &'a [f32],
    /// How what comes next meets weights.
    activation: Activation,
    router: Option<Router<'a>>,
}

impl<'a> NextNorm<'a> {
    /// A layer's attention, or the head after the last layer.
    pub(crate) fn attention(model: &'a Model, layer: usize) -> Self {
        let layer = model.weights.layers.get(layer);
        let gain = layer.map_or(&model.weights.norm, |layer| &layer.attention_norm);
        Self { model, gain, activation: model.qkv_activation(), router: None }
    }

    /// A layer's second half.
    pub(crate) fn feed_forward(model: &'a Model, layer: usize) -> Self {
        let layer = &model.weights.layers[layer];
        let gain = &layer.feed_forward_norm;
        let router = match &layer.feed_forward {
            FeedForwardWeights::Dense(_) => None,
            FeedForwardWeights::Experts(experts) => {
                Some(Router { model, gain, weights: &experts.router })
            }
        };
        Self { model, gain, activation: model.activation, router }
    }

    /// Columns that units leave at once, or a multiple of them: where there is a router, those
    /// whose products with it are added up before others are added.
    pub(crate) const fn block(&self) -> usize {
        if self.router.is_some() { BLOCK } else { FINE_ROWS }
    }

    /// Splits what is left of the stream among the units of a phase: rows as they are told, columns
    /// every so many, which are whole blocks.
    pub(crate) fn tiles<'b>(
        &self,
        normed: &'b mut Normed,
        rows: RowCuts<'b>,
        columns: usize,
    ) -> NormedTiles<'b> {
        let block = self.block();
        assert!(columns.is_multiple_of(block), "{columns} columns, expected blocks of {block}");
        let logits = self.router.map(|router| {
            let padded = router.padded();
            let row_len = self.gain.len().div_ceil(BLOCK) * padded;
            let logits = &mut normed.logits[..rows.end() * row_len];
            Tiles::new(logits, row_len, rows, columns / BLOCK * padded)
        });
        (input::tiles(&mut normed.input, rows, columns), logits)
    }

    /// Prefetches the gains and the router's columns that [`Self::emit`] will read, and the
    /// codes that it will write.
    pub(crate) fn prefetch(&self, rows: usize, columns: Range<usize>, tile: &mut NormedTile<'_>) {
        let isa = self.model.isa;
        prefetch_f32(isa, &self.gain[columns.clone()]);
        if let Some(router) = self.router {
            router.prefetch(columns);
        }
        prefetch_rows(isa, &mut input::TileRows(&mut tile.0), rows);
    }

    /// Stores what the next matrices take of some columns of the stream: `x` is `[rows, width]` and
    /// has them first in each row.
    pub(crate) fn emit(
        &self,
        (x, width): (&[f32], usize),
        columns: Range<usize>,
        (input, logits): &mut NormedTile<'_>,
    ) {
        let gain = &self.gain[columns.clone()];
        let numbers = GainedRows { x, width, gain };
        prepare_with_gain(self.model.isa, self.activation, numbers, &mut input::TileRows(input));
        if let (Some(router), Some(logits)) = (self.router, logits) {
            router.partial_logits((x, width), columns, logits);
        }
    }

    /// Takes what comes next of whole rows of the stream, `[rows, hidden_dim]`, in a phase for that
    /// alone.
    pub(crate) fn run(&self, team: &Team, x: &[f32], normed: &mut Normed) {
        let hidden = self.gain.len();
        let cuts = RowCuts::Every { rows: x.len() / hidden, block: 1 };
        let tiles = self.tiles(normed, cuts, hidden.next_multiple_of(BLOCK));
        team.phase(cuts.end(), tiles, |unit, mut normed| {
            self.emit((&x[unit.index * hidden..][..hidden], hidden), 0..hidden, &mut normed);
        });
        self.finish(normed, cuts.end());
    }

    /// Adds up what was left of the first rows: now their products can be multiplied.
    pub(crate) fn finish(&self, normed: &mut Normed, rows: usize) {
        let (config, blocks) = (&self.model.config, normed.input.stride / 32);
        let squares = normed.input.squares.chunks_exact(blocks);
        for (factor, squares) in normed.factors[..rows].iter_mut().zip(squares) {
            *factor = rms_factor(squares, config.hidden_dim, config.norm_epsilon);
        }
    }
}
