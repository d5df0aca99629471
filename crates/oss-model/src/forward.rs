//! The forward pass: from tokens to hidden rows, and from hidden rows to logits.
//!
//! `R` is the number of rows of the batch. Every statement that works on much data is a phase of
//! the team; the calling thread does the rest.

use crate::batch::{Batch, Row};
use crate::block::norm::NextNorm;
use crate::block::{attention, feed_forward, project};
use crate::error::{Error, Result};
use crate::model::Model;
use crate::state::{Event, State};
use oss_cache::KvCache;
use oss_threads::Team;
use std::mem;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What a forward pass is computed with, besides the model: who works, in what, on which cache.
pub(crate) struct ForwardPass<'a> {
    pub(crate) model: &'a Model,
    pub(crate) team: &'a Team,
    pub(crate) state: &'a mut State,
    pub(crate) cache: &'a mut KvCache,
    /// The rows that go through the pass.
    pub(crate) batch: Batch<'a>,
    /// Those of them that leave it.
    wanted: Batch<'a>,
}

/// Runs layers `layers` of the model over a batch; keys and values go to the cache, and what the
/// last layer makes of the wanted rows stays in the state for [`head`]. Rows enter as tokens where
/// the range begins with layer 0, and as the residual stream that the last call left in the state
/// otherwise.
///
/// # Errors
/// When a row does not fit its sequence, or the cache has no page left, or memory is refused, or an
/// expert cannot be read from its file, or a row is not finite ([`Error::NotFinite`] names the
/// first): then the sequences are as long as before.
///
/// # Panics
/// When the range is not within the model's layers.
pub fn forward(
    model: &Model,
    team: &Team,
    state: &mut State,
    cache: &mut KvCache,
    batch: Batch<'_>,
    layers: Range<usize>,
) -> Result<()> {
    let (config, hidden) = (&model.config, model.config.hidden_dim);
    assert!(layers.end <= config.layers.len(), "layers {layers:?} of {}", config.layers.len());
    batch.check(cache, (config.vocabulary, state.max_rows), &mut state.sequences)?;
    if layers.start == 0 {
        reserve(cache, batch)?;
        for (row, x) in batch.rows.iter().zip(state.x.chunks_exact_mut(hidden)) {
            model.weights.embed(model.isa, row.token as usize, x)?; //                 x [R, hidden]
        }
    }
    let half = config.head_dim / 2;
    let angles = state.cos.chunks_exact_mut(half).zip(state.sin.chunks_exact_mut(half));
    for (row, (cos, sin)) in batch.rows.iter().zip(angles) {
        model.rope.angles(row.position, cos, sin); //                       cos, sin [R, head_dim/2]
    }

    let mut wanted = mem::take(&mut state.wanted_rows);
    wanted.clear();
    wanted.extend(batch.rows.iter().filter(|row| row.wanted));
    let mut pass =
        ForwardPass { model, team, state, cache, batch, wanted: Batch { rows: &wanted } };
    pass.norm(layers.start); //                                                  normed [R, hidden]
    for layer in layers.clone() {
        let is_last = layer + 1 == config.layers.len();
        pass.show_residual(layer);
        attention::qkv(&mut pass, layer); //              qkv [R, qkv_dim], keys and values in pages
        if is_last {
            pass.check_all()?;
            pass.keep_wanted(); //                                                   R = wanted rows
            if wanted.is_empty() {
                break;
            }
        }
        attention::run(&mut pass, layer)?; //                            x += attention(qkv), normed
        feed_forward::run(&mut pass, layer)?; //                   x += feed_forward(normed), normed
    }

    if layers.end == config.layers.len() {
        pass.show_residual(config.layers.len());
        pass.check(&pass.state.x, hidden)?;
        for rows in batch.rows.chunk_by(|a, b| a.sequence == b.sequence) {
            let (known, drafts) = rows.split_at(rows.partition_point(|row| !row.draft));
            cache.commit_tokens(rows[0].sequence, known.iter().map(|row| row.token));
            cache.commit_drafts(rows[0].sequence, drafts.iter().map(|row| row.token));
        }
    } else {
        wanted.clear();
    }
    state.wanted_rows = wanted;
    Ok(())
}

/// Computes logits of hidden rows `rows` of the last forward pass: `[rows, vocabulary]`.
///
/// # Panics
/// When a row was not wanted in that pass.
pub fn head<'a>(
    model: &Model,
    team: &Team,
    state: &'a mut State,
    rows: Range<usize>,
) -> &'a mut [f32] {
    assert!(rows.end <= state.wanted(), "rows {rows:?} of {} wanted", state.wanted());
    let State { tiling, normed, logits, scratch, identity, .. } = state;
    let n = rows.len() * model.config.vocabulary;
    if logits.len() < n {
        logits.resize(n, 0.0);
    }
    let logits = &mut logits[..n];
    let (input, factors) = normed.view();
    let (tiling, activation, rows) = (*tiling, model.qkv_activation(), &identity[rows]);
    let call = project::Call { model, team, tiling, activation, input, factors, rows };
    call.project(&model.weights.head, None, project::To::Write(logits), scratch);
    logits
}

/// Pages for all rows. Where a sequence is refused them, those before it keep what they have got:
/// reserved again, it is there.
fn reserve(cache: &mut KvCache, batch: Batch<'_>) -> Result<()> {
    for (sequence, n) in batch.sequences() {
        cache.reserve(sequence, n)?;
    }
    Ok(())
}

/// From so many rows on, they are looked at by the team,
const MANY_ROWS: usize = 64;
/// so many by a unit.
const UNIT: usize = 8;

/// The first of some rows, `width` numbers each, that is not finite.
fn first_not_finite(team: &Team, numbers: &[f32], width: usize) -> Option<usize> {
    // As integers, so that the compiler makes vectors of it.
    let most = |row: &[f32]| row.iter().map(|x| x.abs().to_bits()).fold(0, u32::max);
    let is_wrong = |row: &[f32]| most(row) >= f32::INFINITY.to_bits();
    let first = |rows: &[f32]| rows.chunks_exact(width).position(is_wrong);
    let n_rows = numbers.len() / width;
    if n_rows < MANY_ROWS {
        return first(numbers);
    }
    let found = AtomicUsize::new(usize::MAX);
    team.phase(n_rows.div_ceil(UNIT), (), |unit, ()| {
        let begin = unit.index * UNIT;
        if let Some(row) = first(&numbers[begin * width..n_rows.min(begin + UNIT) * width]) {
            found.fetch_min(begin + row, Ordering::Relaxed);
        }
    });
    Some(found.into_inner()).filter(|row| *row < n_rows)
}

impl ForwardPass<'_> {
    /// Normalises the residual stream for the first layer that it meets.
    fn norm(&mut self, layer: usize) {
        let State { x, normed, .. } = &mut *self.state;
        let x = &x[..self.batch.rows.len() * self.model.config.hidden_dim];
        NextNorm::attention(self.model, layer).run(self.team, x, normed);
    }

    /// Checks what the pages of the batch are made of: the last layer's keys and values, and the
    /// residual stream before, in which all that is not finite in an earlier layer has stayed so.
    /// Later sequences find pages by their tokens and would never get rid of it.
    fn check_all(&self) -> Result<()> {
        let config = &self.model.config;
        self.check(&self.state.x, config.hidden_dim)?;
        self.check(&self.state.qkv, config.qkv_dim())
    }

    /// Refuses the batch if `numbers`, `width` of them a row, are not all finite.
    fn check(&self, numbers: &[f32], width: usize) -> Result<()> {
        let rows = self.batch.rows;
        match first_not_finite(self.team, &numbers[..rows.len() * width], width) {
            Some(row) => {
                let Row { sequence, position, token, .. } = rows[row];
                Err(Error::NotFinite { sequence, position, token })
            }
            None => Ok(()),
        }
    }

    /// Goes on with the wanted rows alone: the others have left their keys and values.
    fn keep_wanted(&mut self) {
        let config = &self.model.config;
        let State { x, qkv, cos, sin, .. } = &mut *self.state;
        let half = config.head_dim / 2;
        let all = [(x, config.hidden_dim), (qkv, config.qkv_dim()), (cos, half), (sin, half)];
        for (numbers, len) in all {
            let wanted = self.batch.rows.iter().enumerate().filter(|(_, row)| row.wanted);
            for (to, (from, _)) in wanted.enumerate() {
                numbers.copy_within(from * len..(from + 1) * len, to * len);
            }
        }
        self.batch = self.wanted;
    }

    fn show_residual(&mut self, layer: usize) {
        let n = self.batch.rows.len() * self.model.config.hidden_dim;
        let State { probe, x, .. } = &mut *self.state;
        if let Some(probe) = probe {
            probe(Event::Residual { layer, rows: &x[..n] });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::first_not_finite;
    use oss_threads::Team;

    #[test]
    fn the_first_row_that_is_not_finite_is_found_among_few_and_many() {
        let (team, width) = (Team::new(3).unwrap(), 5);
        for rows in [0, 1, 63, 64, 65, 200] {
            let mut numbers = vec![f32::MAX; rows * width];
            assert_eq!(first_not_finite(&team, &numbers, width), None, "{rows} rows");
            for row in (0..rows).rev().step_by(7) {
                let number = if row % 2 == 0 { f32::NAN } else { f32::NEG_INFINITY };
                numbers[row * width + row % width] = number;
                assert_eq!(first_not_finite(&team, &numbers, width), Some(row), "{rows} rows");
            }
        }
    }
}
