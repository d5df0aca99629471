//! A chunk of prompts that goes through a few layers a step, beside answers that are streaming.
//!
//! A step takes its answers through all layers, the chunk only through as many as there is time
//! for; the next step goes on from there. So streams wait as long as they may, and no longer, while
//! weights, of which a few rows read nearly as many experts as hundreds do, are read once for a
//! large chunk. In between, the chunk's residual stream lies in the last rows of the scratch, and
//! its sequences are as long as before.

use oss_model::State;

use crate::step::plan::Part;

/// Such a chunk; without parts: there is none.
#[derive(Default)]
pub(crate) struct Partway {
    pub(crate) parts: Vec<Part>,
    /// How many layers it has been through.
    pub(crate) layers: usize,
    /// What the last of them took, in seconds.
    pub(crate) last: f64,
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
}

/// Puts the residual stream of the last `rows` of a batch, which come after `first` others, where
/// other rows leave it alone.
pub(crate) fn park(state: &mut State, first: usize, rows: usize) {
    state.move_residual(first..first + rows, state.max_rows() - rows);
}

/// Takes it back for a batch with `first` others before them.
pub(crate) fn unpark(state: &mut State, first: usize, rows: usize) {
    let end = state.max_rows();
    state.move_residual(end - rows..end, first);
}
