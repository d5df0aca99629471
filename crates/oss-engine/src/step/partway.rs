//! A chunk of prompts that goes through a few layers a step, beside answers that are streaming.
//!
//! A step takes its answers through all layers, the chunk only through as many as there is time
//! for; the next step goes on from there. So streams wait as long as they may, and no longer, while
//! weights, of which a few rows read nearly as many experts as hundreds do, are read once for a
//! large chunk. In between, the chunk's residual stream lies in the last rows of the scratch, and
//! its sequences are as long as before.

use std::ops::Range;

use oss_model::{Row, State};

use crate::error::Result;
use crate::step::plan::Part;

/// Such a chunk; without parts: there is none.
#[derive(Default)]
pub(crate) struct Partway {
    pub(crate) parts: Vec<Part>,
    /// How many layers it has been through.
    pub(crate) layers: usize,
    /// What the last of them took, in seconds.
    pub(crate) layer_seconds: f64,
}

/// What the layers of a step took.
#[derive(Clone, Copy, Default)]
pub(crate) struct Ran {
    /// The layers that its prompts went through, their seconds, and those of the last one.
    pub(crate) layers: usize,
    pub(crate) seconds: f64,
    pub(crate) layer_seconds: f64,
    /// Whether the model's last layer is among them.
    pub(crate) ended: bool,
    /// Seconds of the other layers, through which its answers went alone.
    pub(crate) alone: f64,
}

impl Partway {
    pub(crate) const fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// How many rows it has.
    pub(crate) fn rows(&self) -> usize {
        self.parts.iter().map(|part| part.rows).sum()
    }

    /// Goes on with the parts alone that are still there.
    pub(crate) fn retain(
        &mut self,
        state: Option<&mut State>,
        is_there: impl Fn(&Part) -> bool + Copy,
    ) {
        if self.parts.iter().all(is_there) {
            return;
        }
        if let Some(state) = state {
            let (mut end, mut to) = (state.max_rows(), state.max_rows());
            for part in self.parts.iter().rev() {
                let begin = end - part.rows;
                if is_there(part) {
                    to -= part.rows;
                    state.move_residual(begin..end, to);
                }
                end = begin;
            }
        }
        self.parts.retain(is_there);
        if self.is_empty() {
            *self = Self::default();
        }
    }

    /// Takes rows through a model's layers: the first ones, `answers` of answers, through all of
    /// the `layers`, the others, which are this chunk's, on from where they are, beside answers
    /// through as many as there is time for. `run` takes rows through some layers; `passed` tells
    /// the seconds of the step so far, when answers and prompts have been through so many layers
    /// in it; `has_time` tells after how many of them, with a layer of so many more, there is time
    /// for one of the so many layers left.
    pub(crate) fn go_on(
        &self,
        state: &mut State,
        (rows, answers, layers): (&[Row], usize, usize),
        mut run: impl FnMut(&mut State, &[Row], Range<usize>) -> Result<()>,
        passed: impl Fn(usize, usize) -> f64,
        has_time: impl Fn(f64, f64, usize) -> bool,
    ) -> Result<Ran> {
        let (first, prompts) = (self.layers, rows.len() - answers);
        // Where they lie while answers go through layers alone.
        let parked = state.max_rows() - prompts..state.max_rows();
        let mut ran = Ran { layer_seconds: self.layer_seconds, ..Ran::default() };
        let mut now = passed(0, 0);
        if first > 0 {
            if answers > 0 {
                let before = now;
                run(state, &rows[..answers], 0..first)?;
                now = passed(first, 0);
                ran.alone = now - before;
            }
            state.move_residual(parked.clone(), answers);
        }
        if answers == 0 || prompts == 0 {
            run(state, rows, first..layers)?;
            return Ok(Ran { layers: layers - first, ended: true, ..ran });
        }
        let mut done = first;
        loop {
            let (begin, before) = (now, ran.layer_seconds);
            run(state, rows, done..done + 1)?;
            (ran.layers, done) = (ran.layers + 1, done + 1);
            now = passed(done, ran.layers);
            ran.layer_seconds = now - begin;
            ran.seconds += ran.layer_seconds;
            ran.ended = done == layers;
            // Layers with windows and without take turns.
            if ran.ended || !has_time(now, before.max(ran.layer_seconds), layers - done) {
                break;
            }
        }
        if !ran.ended {
            state.move_residual(answers..rows.len(), parked.start);
            run(state, &rows[..answers], done..layers)?;
            ran.alone += passed(layers, ran.layers) - now;
        }
        Ok(ran)
    }
}
