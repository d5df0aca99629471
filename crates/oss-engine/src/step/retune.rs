//! What tuning changes on the step thread: the team, the scratch, and the limits of a step.

use oss_model::{State, team_options};
use oss_threads::Team;

use crate::error::Result;
use crate::step::Scheduler;
use crate::tuning::{self, Batching, Observed, SharedTuning, Subject, Tuning};

/// What measuring needs, and where its result is told.
pub(crate) struct Tuner {
    pub(crate) subject: Subject,
    pub(crate) tuning: SharedTuning,
}

impl Scheduler {
    /// Measures the machine and takes over what follows, between two steps.
    pub(crate) fn retune(&mut self) -> Result<Tuning> {
        let mut tuning = tuning::on_request(&self.tuner.subject, &self.options)?;
        if self.options.max_memory.is_some() && !tuning.max_rows.given {
            // The budget was laid out for scratch of this size.
            tuning.max_rows = self.tuner.tuning.lock().max_rows.clone();
        }
        if tuning.threads.value != self.team.threads() {
            let options = team_options(tuning.threads.value, &self.cache_options.memory);
            self.team = Team::with_options(&options)?;
        }
        self.batching = tuning.batching();
        self.state = State::new(&self.model, self.batching.max_rows, self.team.threads());
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
