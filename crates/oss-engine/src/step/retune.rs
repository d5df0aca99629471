//! What tuning changes on the step thread: the team, the scratch, and the limits of a step.

use oss_model::{State, team_options};
use oss_threads::Team;

use crate::budget::{self, Spare};
use crate::error::Result;
use crate::step::partway::Partway;
use crate::step::{Scheduler, scratch};
use crate::tuning::{self, Batching, Choice, Observed, SharedTuning, Subject, Tuning};

/// What measuring needs, and where its result is told.
pub(crate) struct Tuner {
    pub(crate) subject: Subject,
    pub(crate) tuning: SharedTuning,
}

impl Scheduler {
    /// Measures the machine and takes over what follows, between two steps.
    pub(crate) fn retune(&mut self) -> Result<Tuning> {
        let was_limited = self.is_limited();
        let outcome = self.measure_anew();
        if !was_limited {
            self.lift_limit();
        }
        outcome
    }

    fn measure_anew(&mut self) -> Result<Tuning> {
        let of = self.make_room_to_measure()?;
        self.report();
        let Self { model, team, tuner, options, cache_options, recorder, .. } = self;
        let team = |threads| match threads == team.threads() {
            true => Ok(team.clone()),
            false => {
                let options = team_options(threads, options.pin, &cache_options.memory);
                Ok(Team::with_options(&options)?)
            }
        };
        let spare = Spare { of, recorder };
        let (mut tuning, mut team) =
            tuning::on_request(&tuner.subject, options, (model, &spare), team)?;
        if let Some(budget) = options.max_memory {
            self.keep_to(budget, &mut tuning, &mut team)?;
        }
        tuning.tell_cpus(&team, &self.options);
        let batching = tuning.batching();
        // Prompts that are partway begin anew.
        self.plan.partway = Partway::default();
        self.state = Some(scratch(batching, &self.model, team.threads(), &self.pulse)?);
        (self.team, self.batching) = (team, batching);
        *self.tuner.tuning.lock() = tuning;
        self.show_pace();
        Ok(self.tuner.tuning.lock().clone())
    }

    /// Gives up pages that are kept for reuse as far as measuring wants their room. The budget, and
    /// what is taken of it then; none where there is no limit.
    fn make_room_to_measure(&mut self) -> Result<Option<(usize, usize)>> {
        let Some(budget) = self.options.max_memory else { return Ok(None) };
        let wanted = tuning::wanted_bytes(&self.tuner.subject, &self.options, &self.model)?;
        let scratch = budget::scratch_bytes(&self.model, self.batching, self.team.threads())?;
        let now = self.state.as_ref().map_or(0, State::bytes);
        let taken = self.taken_beside_cache(scratch.max(now));
        let room = budget.saturating_sub(taken);
        if self.gives_pages() && self.cache.bytes_resident() + wanted > room {
            self.limit_cache(room.saturating_sub(wanted));
        }
        Ok(Some((budget, taken + self.cache.bytes_resident())))
    }

    /// What everything takes of the budget at most but for resident keys and values, with so much
    /// scratch.
    fn taken_beside_cache(&self, scratch: usize) -> usize {
        let others = budget::others(&self.model, &self.options, scratch, self.vocabulary_bytes);
        self.model.weights.resident_bytes() + others
    }

    /// Leaves out what the budget, which was laid out for scratch of some size, has no room for.
    fn keep_to(&self, budget: usize, tuning: &mut Tuning, team: &mut Team) -> Result<()> {
        let before = self.tuner.tuning.lock();
        let none = |reason: &str| format!("the budget has no room for another: {reason}");
        if tuning.tiling.value.matrix_rows > before.tiling.value.matrix_rows {
            let reason = none(&tuning.tiling.reason);
            tuning.tiling = Choice { reason, ..before.tiling.clone() };
        }
        if !tuning.max_batched_tokens.given {
            tuning.max_batched_tokens = before.max_batched_tokens.clone();
        }
        let scratch = |tuning: &Tuning, threads| {
            budget::scratch_bytes(&self.model, tuning.batching(), threads)
        };
        let was = scratch(&before, self.team.threads())?;
        let is = scratch(tuning, team.threads())?;
        let cache = self.cache_options.capacity_bytes;
        if is > was && self.taken_beside_cache(is) + cache > budget {
            let reason = none(&tuning.threads.reason);
            tuning.threads = Choice { reason, ..before.threads.clone() };
            *team = self.team.clone();
        }
        Ok(())
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
