//! One step: the forward pass, the head, the draws.

use std::any::Any;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use oss_cache::KvCache;
use oss_model::{Batch, Row, State, forward, head};
use oss_sampler::{Mask, Scratch};
use oss_simd::Isa;

use crate::error::{Error, Result};
use crate::event::{FinishReason, Token};
use crate::metrics::Recorder;
use crate::step::inject::{due_fault, refuse, strike};
use crate::step::partway::Ran;
use crate::step::repeats::Repeats;
use crate::step::sessions::Sessions;
use crate::step::{Ending, Scheduler, Task, scratch};

/// Hidden rows that go through the head at once: their logits are kept together.
pub(crate) const HEAD_ROWS: usize = 32;

/// A hidden row that a task waits for.
#[derive(Clone, Copy)]
struct Wanted {
    task: u64,
    position: usize,
    token: u32,
}

impl Scheduler {
    /// Runs the plan; `passed` tells the time since the making of it began, when its answers have
    /// been through the first number of layers in this step, and its prompts through the second.
    pub(crate) fn step(&mut self, passed: impl Fn(usize, usize) -> Duration) {
        let (rows, prompt_rows) = (self.plan.rows.len(), self.plan.prompt_rows());
        let sequences = self.plan.parts.len();
        let span = tracing::debug_span!("step", rows, prompt_rows);
        let _entered = span.enter();
        let (drawn_before, drawing_before) = {
            let metrics = self.recorder.lock();
            (metrics.completion_tokens, metrics.draw_seconds)
        };
        let mut kernels = Duration::ZERO;
        let mut computed = self.forward(&passed, &mut kernels);
        // Nothing has changed: where that may help, the step is tried once more.
        let mut is_first_try = true;
        if let Err(error) = &computed {
            let is_refusal = error.is_refusal();
            if is_refusal {
                self.shed_all();
                self.lift_limit();
            }
            if is_refusal || error.is_unread() {
                tracing::warn!(%error, "a step is tried once more");
                is_first_try = false;
                computed = self.forward(&passed, &mut kernels);
            }
        }
        let outcome = computed.and_then(|ran| {
            self.finish_prompts();
            self.draw_all(&mut kernels)?;
            Ok(ran)
        });
        let ran = outcome.as_ref().ok().copied();
        if let Err(error) = outcome {
            self.fail_step(error);
        }
        let took = passed(self.model.config.layers.len(), ran.map_or(0, |ran| ran.layers));
        if let Some(ran) = ran.filter(|_| is_first_try) {
            self.pace.observe(took.as_secs_f64(), rows - prompt_rows, prompt_rows, ran);
        }
        self.show_pace();
        let mut metrics = self.recorder.lock();
        metrics.step_time.record(took.as_secs_f64());
        let drawing = metrics.draw_seconds - drawing_before;
        metrics.overhead.record(((took - kernels).as_secs_f64() - drawing).max(0.0));
        metrics.step_rows.record(rows as f64);
        metrics.step_sequences.record(sequences as f64);
        metrics.running = self.running.len();
        let Some(Ran { ended, .. }) = ran else {
            // Nothing of it counts as computed: some rows come again.
            return;
        };
        if ended {
            metrics.computed_prompt_tokens += prompt_rows as u64;
        }
        if prompt_rows > 0 {
            metrics.prefill_seconds += took.as_secs_f64();
        } else {
            metrics.decode_seconds += took.as_secs_f64();
            metrics.decode_tokens += metrics.completion_tokens - drawn_before;
        }
    }

    /// Computes the plan's rows: those of answers in all layers, those of prompts beside them in as
    /// many as there is time for. Where these have not come to the end, they leave the plan.
    fn forward(
        &mut self,
        passed: impl Fn(usize, usize) -> Duration,
        kernels: &mut Duration,
    ) -> Result<Ran> {
        let Self { model, team, state, batching, cache, plan, running, pulse, pace, .. } = self;
        let layers = model.config.layers.len();
        let wanted = plan.rows.iter().filter(|row| row.wanted).count();
        let begin = Instant::now();
        // Where it does not come to its end, the chunk begins anew.
        let chunk = std::mem::take(&mut plan.partway);
        let outcome = catch(|| {
            model.weights.check_damage()?;
            let state = match state {
                Some(state) => state,
                None => state.insert(scratch(*batching, model, team.threads(), pulse)?),
            };
            // Asked for while nothing has changed, so that the step can be tried once more.
            state.reserve_logits(model, wanted.min(HEAD_ROWS))?;
            for part in &plan.parts {
                let task = Task::find_mut(running, part.task);
                refuse(task.expect("nobody leaves during a step"))?;
            }
            let mut fault = due_fault(plan, running);
            let middle = layers / 2;
            let run = |state: &mut State, rows: &[Row], mut range: Range<usize>| {
                let batch = Batch { rows };
                if let Some((kind, row)) = fault
                    && range.contains(&middle)
                    && row < rows.len()
                {
                    fault = None;
                    forward(model, team, state, cache, batch, range.start..middle)?;
                    strike(kind, team, state, row);
                    range.start = middle;
                }
                Ok(forward(model, team, state, cache, batch, range)?)
            };
            let answers = plan.rows.len() - plan.prompt_rows();
            let passed = |answers, prompts| passed(answers, prompts).as_secs_f64();
            let has_time = |seconds, layer, left| pace.has_time(answers, seconds, layer, left);
            chunk.go_on(state, (&plan.rows, answers, layers), run, passed, has_time)
        });
        if let Ok(ran) = outcome
            && !ran.ended
        {
            plan.leave_prompts(chunk.layers, ran);
        }
        *kernels += begin.elapsed();
        outcome
    }

    /// Books what has been computed of prompts; sessions keep where the answers of those begin that
    /// are complete now.
    fn finish_prompts(&mut self) {
        let Self { cache, plan, running, sessions, .. } = self;
        for part in plan.parts.iter().filter(|part| part.is_prompt) {
            let Some(task) = Task::find_mut(running, part.task) else { continue };
            mark_messages(task, part.rows, cache);
            if task.drawn() == 0 && task.left(cache) == 0 {
                finish_prompt(task, cache, sessions);
            }
        }
    }

    /// Computes the logits of the wanted rows and draws from them.
    fn draw_all(&mut self, kernels: &mut Duration) -> Result<()> {
        let wanted = self.wanted();
        let Self { model, team, state, running, recorder, repeats, cache, pulse, .. } = self;
        let scratch = &mut self.draw_scratch;
        let state = state.as_mut().expect("the forward pass has left rows in it");
        let vocabulary = model.config.vocabulary;
        let mut over: Vec<(u64, Ending)> = Vec::new();
        for (chunk, rows) in wanted.chunks(HEAD_ROWS).enumerate() {
            pulse.fetch_add(1, Ordering::Relaxed);
            let first = chunk * HEAD_ROWS;
            let begin = Instant::now();
            let range = first..first + rows.len();
            let logits = catch(|| Ok(head(model, team, state, range)))?;
            *kernels += begin.elapsed();
            for (row, logits) in rows.iter().zip(logits.chunks_exact_mut(vocabulary)) {
                let task = Task::find_mut(running, row.task);
                let task = task.expect("nobody leaves during a step");
                // A wrong guess, or one after it or after the end, does not count.
                let counts = task.tokens.get(row.position) == Some(&row.token);
                if !counts || over.iter().any(|(over, _)| *over == row.task) {
                    continue;
                }
                let repeat = kept_logits(task, row.position, logits, repeats);
                let drawn = catch(|| {
                    finish_row(task, row.position, logits, (model.isa, recorder, scratch))
                });
                if let Some(logits) = repeat.filter(|_| drawn.is_ok()) {
                    let prompt = &task.tokens[..task.prompt_len];
                    repeats.keep(cache.prompt_key(prompt), prompt, logits);
                }
                if let Some(ending) = drawn.transpose() {
                    over.push((row.task, ending));
                }
            }
        }
        self.settle_drafts();
        for (task, ending) in over {
            self.end_running(task, ending);
        }
        Ok(())
    }

    /// The wanted rows of the plan, in its order.
    fn wanted(&self) -> Vec<Wanted> {
        let owners = self.plan.parts.iter().flat_map(|part| (0..part.rows).map(|_| part.task));
        let rows = owners.zip(&self.plan.rows).filter(|(_, row)| row.wanted);
        rows.map(|(task, row)| Wanted { task, position: row.position, token: row.token }).collect()
    }
}

/// Marks where messages end in the blocks that the last so many rows of a prompt have completed,
/// and in its last one.
fn mark_messages(task: &Task, rows: usize, cache: &mut KvCache) {
    let Some(sequence) = task.sequence else { return };
    let (len, page_tokens) = (cache.len(sequence), cache.shape().page_tokens);
    let complete = |len: usize| len / page_tokens * page_tokens;
    let before = complete(len - rows);
    let now = if task.left(cache) == 0 { len } else { complete(len) };
    for &end in task.message_ends.iter().filter(|end| (before + 1..=now).contains(end)) {
        cache.mark_at(sequence, end);
    }
}

/// Books a prompt that is complete; its session keeps where the answer begins.
pub(crate) fn finish_prompt(task: &mut Task, cache: &mut KvCache, sessions: &mut Sessions) {
    task.prompt_done();
    let Some(sequence) = task.sequence else { return };
    // Others that begin with this prompt go on from here exactly.
    cache.mark(sequence);
    if let Some(session) = task.session
        && let Ok(fork) = cache.fork(sequence)
    {
        sessions.keep(session, fork, task.tokens.clone());
    }
}

/// A copy of the logits after a whole prompt, where they are to be kept and there is memory for it.
fn kept_logits(
    task: &Task,
    position: usize,
    logits: &[f32],
    repeats: &Repeats,
) -> Option<Vec<f32>> {
    let wanted =
        task.drawn() == 0 && position + 1 == task.prompt_len && repeats.keeps(&task.tokens, logits);
    if wanted { oss_memory::try_to_vec(logits).ok() } else { None }
}

/// Uses the logits of a row: for the prompt's log-probabilities, for the next token, or both.
pub(crate) fn finish_row(
    task: &mut Task,
    position: usize,
    logits: &mut [f32],
    (isa, recorder, scratch): (Isa, &Recorder, &mut Scratch),
) -> Result<Option<FinishReason>> {
    let begin = Instant::now();
    let outcome = use_row(task, position, logits, (isa, scratch));
    recorder.lock().draw_seconds += begin.elapsed().as_secs_f64();
    Ok(match outcome? {
        Used::Scored => None,
        Used::Full => Some(FinishReason::Length),
        Used::Drawn(token) => task.take(token, recorder),
    })
}

/// What became of a row's logits.
enum Used {
    /// They were for the prompt's log-probabilities alone.
    Scored,
    /// No token was wanted any more.
    Full,
    /// A token was drawn.
    Drawn(Token),
}

fn use_row(
    task: &mut Task,
    position: usize,
    logits: &mut [f32],
    (isa, scratch): (Isa, &mut Scratch),
) -> Result<Used> {
    let drawn = task.drawn();
    if task.scores(position) {
        task.score(isa, logits, position, scratch)?;
    }
    if position + 1 < task.tokens.len() {
        return Ok(Used::Scored);
    }
    if drawn >= task.ends.max_tokens {
        return Ok(Used::Full);
    }
    if let (Some(at_least), Some(constraint)) = (&mut task.at_least, &mut task.constraint) {
        at_least.look(drawn, |id| constraint.is_text(id));
    }
    let mask = match &mut task.constraint {
        Some(constraint) => constraint.mask()?,
        None => None,
    };
    if let Some(got) = mask.map(Mask::vocabulary).filter(|got| *got != logits.len()) {
        let reason = format!("its mask: got {got} tokens, expected {}", logits.len());
        return Err(Error::Constraint { reason });
    }
    let mask = match &mut task.at_least {
        Some(at_least) => at_least.mask(drawn, mask),
        None => mask,
    };
    let draw = task.sampler.draw(isa, logits, task.tokens.len() as u64, mask, scratch)?;
    Ok(Used::Drawn(Token::of(draw)))
}

/// Runs a part of a step; a panic becomes an error.
pub(crate) fn catch<T>(part: impl FnOnce() -> Result<T>) -> Result<T> {
    // What a panic leaves half done is made anew or belongs to a request that fails.
    catch_unwind(AssertUnwindSafe(part)).unwrap_or_else(|panic| {
        let message = panic_message(&*panic);
        Err(Error::Panicked { message })
    })
}

/// Runs code of the program's own, where no request is to fail by it: its panic is told and ends
/// nothing.
pub(crate) fn contain(what: &'static str, code: impl FnOnce()) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(code)) {
        let message = panic_message(&*panic);
        tracing::error!(what, %message, "code of the program's own panicked");
    }
}

/// What a panic said.
pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default()
}
