//! What tuning changes on the step thread: the team, the scratch, and the limits of a step.

use oss_model::team_options;
use oss_threads::Team;

use crate::error::Result;
use crate::step::Scheduler;
use crate::tuning::{self, Batching, Choice, Observed, SharedTuning, Subject, Tuning};

/// What measuring needs, and where its result is told.
pub(crate) struct Tuner {
    pub(crate) subject: Subject,
    pub(crate) tuning: SharedTuning,
}

impl Scheduler {
    /// Measures the machine and takes over what follows, between two steps.
    pub(crate) fn retune(&mut self) -> Result<Tuning> {
        let Self { model, team, tuner, options, cache_options, .. } = self;
        let team = |threads| match threads == team.threads() {
            true => Ok(team.clone()),
            false => Ok(Team::with_options(&team_options(threads, &cache_options.memory))?),
        };
        let (mut tuning, team) = tuning::on_request(&tuner.subject, options, model, team)?;
        if options.max_memory.is_some() {
            // The budget was laid out for scratch of this size.
            let before = tuner.tuning.lock();
            if tuning.tiling.value.matrix_rows > before.tiling.value.matrix_rows {
                let reason =
                    format!("the budget has no room for another: {}", tuning.tiling.reason);
                tuning.tiling = Choice { reason, ..before.tiling.clone() };
            }
            if !tuning.max_rows.given {
                tuning.max_rows = before.max_rows.clone();
            }
        }
        self.team = team;
        self.batching = tuning.batching();
        self.state = self.batching.state(&self.model, self.team.threads());
        *self.tuner.tuning.lock() = tuning;
        self.show_pace();
        Ok(self.tuner.tuning.lock().clone())
    }

    /// Sequences that may run: the limit, or fewer while steps take too long.
    pub(crate) fn sequence_limit(&self) -> usize {
        let Batching { max_sequences, adapts, .. } = self.batching;
        match adapts {
            true => self.pace.answer_rows().clamp(Batching::AT_LEAST, max_sequences),
            false => max_sequences,
        }
    }

    /// Tells what the steps have shown.
    pub(crate) fn show_pace(&self) {
        let observed = Observed {
            prompt_rows: self.pace.prompt_rows(1, self.batching.prefill_chunk),
            sequences: self.sequence_limit(),
            ..self.pace.observed()
        };
        self.tuner.tuning.lock().observed = observed;
    }
}
