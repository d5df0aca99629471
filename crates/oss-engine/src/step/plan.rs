//! Which rows a step has.

use std::cmp::Reverse;

use oss_cache::{KvCache, SequenceId};
use oss_model::Row;
use oss_quant::kv::PAGE_TOKENS;

use crate::budget::ALWAYS_ROWS;
use crate::step::partway::{Partway, Ran};
use crate::step::{HEAD_ROWS, Scheduler, Task};
use crate::tuning::Batching;

/// Prompts get at least so many rows at a time.
const SHARE: usize = PAGE_TOKENS;

/// The rows of a step: first the sequences that continue an answer, one row each and those of
/// guesses at what follows, then chunks of prompts.
#[derive(Default)]
pub(crate) struct Plan {
    pub(crate) parts: Vec<Part>,
    pub(crate) rows: Vec<Row>,
    /// The chunk of prompts that an earlier step has begun, and this one goes on with.
    pub(crate) partway: Partway,
    /// Where the next step's choice begins when there are more answers than rows.
    turn: usize,
    /// Which of the prompts has the first choice of the next step's rows.
    prompt_turn: usize,
    /// Where a step has one row: whether an answer had the last one.
    was_answer: bool,
}

/// The rows of one sequence.
#[derive(Clone, Copy)]
pub(crate) struct Part {
    /// The task's number.
    pub(crate) task: u64,
    /// The task's sequence.
    pub(crate) sequence: SequenceId,
    /// How many rows.
    pub(crate) rows: usize,
    /// How many of them, the last ones, are guesses to be verified.
    pub(crate) drafts: usize,
    /// Whether they belong to a prompt, or to tokens that are computed again.
    pub(crate) is_prompt: bool,
}

impl Plan {
    pub(crate) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Prompt rows in it, its last ones.
    pub(crate) fn prompt_rows(&self) -> usize {
        self.parts.iter().filter(|part| part.is_prompt).map(|part| part.rows).sum()
    }

    /// Takes prompts out, which went through some more layers; the next step goes on with them.
    pub(crate) fn leave_prompts(&mut self, from: usize, ran: Ran) {
        self.rows.truncate(self.rows.len() - self.prompt_rows());
        let prompts = self.parts.extract_if(.., |part| part.is_prompt).collect();
        let layers = from + ran.layers;
        self.partway = Partway { parts: prompts, layers, layer_seconds: ran.layer_seconds };
    }

    /// Adds a chunk of prompts, the most urgent ones first, of `room` rows at most.
    fn add_prompts(
        &mut self,
        parts: &mut Vec<Part>,
        mut prompts: Vec<&Task>,
        mut room: usize,
        cache: &KvCache,
    ) {
        let is_beside_answers = !parts.is_empty();
        // Where there is no room for all, each of the most urgent ones is first in turn.
        let urgent = prompts.partition_point(|task| task.priority == prompts[0].priority);
        self.prompt_turn += usize::from(room > 0);
        prompts[..urgent].rotate_left(self.prompt_turn % urgent.max(1));
        for (index, task) in prompts.iter().enumerate() {
            // They share with those that are as urgent; others get what these leave.
            let rest = &prompts[index..];
            let alike = rest.partition_point(|other| other.priority == task.priority);
            let share = (room / alike).max(SHARE);
            let most = match is_beside_answers && task.needs_whole_prompt() {
                // Each of its rows goes through the head at the end, in the same step.
                true => HEAD_ROWS,
                false => usize::MAX,
            };
            let rows = share.min(room).min(task.left(cache)).min(most);
            if rows > 0 {
                parts.push(Part { is_prompt: true, ..Part::of(task, rows) });
                room -= rows;
            }
        }
    }
}

impl Part {
    /// So many rows of an answer.
    fn of(task: &Task, rows: usize) -> Self {
        let sequence = task.sequence.expect("running tasks have one");
        Self { task: task.id, sequence, rows, drafts: 0, is_prompt: false }
    }
}

impl Scheduler {
    /// Chooses the rows of the next step and reserves pages for them.
    pub(crate) fn make_plan(&mut self) {
        self.leave_out_lost_parts();
        let wanted = self.choose();
        self.plan.parts.clear();
        self.plan.rows.clear();
        for mut part in wanted {
            if self.reserve(&mut part) {
                self.plan.parts.push(part);
            }
        }
        // A later part may have taken the pages of an earlier one.
        self.leave_out_lost_parts();
        for part in &self.plan.parts {
            let task = Task::find(&self.running, part.task).expect("kept above");
            let sequence = part.sequence;
            let from = self.cache.len(sequence);
            for position in from..from + part.rows {
                let (token, wanted) = (task.token(position), task.wants(position));
                let draft = position >= task.tokens.len();
                self.plan.rows.push(Row { sequence, position, token, wanted, draft });
            }
        }
    }

    /// Leaves out the parts of those who have gone, or given up the pages of their sequence.
    fn leave_out_lost_parts(&mut self) {
        let Self { plan, running, state, .. } = self;
        let is_there = |part: &Part| {
            Task::find(running, part.task).is_some_and(|task| task.sequence == Some(part.sequence))
        };
        plan.parts.retain(is_there);
        plan.partway.retain(state.as_mut(), is_there);
    }

    /// Who gets how many rows.
    fn choose(&mut self) -> Vec<Part> {
        let cache = &self.cache;
        let mut ready: Vec<&Task> = self.running.iter().collect();
        ready.retain(|task| task.producer.has_room());
        ready.sort_by_key(|task| (Reverse(task.priority), task.id));
        let (mut answers, prompts): (Vec<&Task>, Vec<&Task>) =
            ready.into_iter().partition(|task| task.is_decoding(cache));
        // One row stays for prompts, so that a full house of answers does not shut them out; where
        // there is no other, both have it in turn. What was begun has all of its rows.
        let for_prompts = self.plan.partway.rows().max(usize::from(!prompts.is_empty()));
        let most = match self.batching.max_batched_tokens - for_prompts {
            0 => {
                self.plan.was_answer = !self.plan.was_answer && !answers.is_empty();
                usize::from(self.plan.was_answer)
            }
            most => most,
        };
        if answers.len() > most {
            self.plan.turn = (self.plan.turn + most) % answers.len();
            answers.rotate_left(self.plan.turn);
            answers.truncate(most);
        }
        let mut parts: Vec<Part> = answers.into_iter().map(|task| Part::of(task, 1)).collect();
        if self.plan.partway.is_empty() {
            let Batching { max_batched_tokens, max_sequences, prefill_chunk, .. } = self.batching;
            // Beside answers a chunk leaves room for others that begin before its end.
            let others = max_sequences.min(max_batched_tokens / 2);
            let taken = if parts.is_empty() { 0 } else { parts.len().max(others) };
            let room = (max_batched_tokens - taken).min(prefill_chunk);
            let room = self.pace.prompt_rows(parts.len(), room);
            self.plan.add_prompts(&mut parts, prompts, room, cache);
        } else {
            parts.extend_from_slice(&self.plan.partway.parts);
        }
        let taken: usize = parts.iter().map(|part| part.rows).sum();
        self.speculate(&mut parts, self.batching.max_batched_tokens.saturating_sub(taken));
        parts
    }

    /// Gets pages for a part; where there are none, it does without guesses, then takes what
    /// sessions keep, what slow consumers hold up, and last the youngest's. `false`: the part's own
    /// task had to go.
    fn reserve(&mut self, part: &mut Part) -> bool {
        loop {
            if Task::find(&self.running, part.task).is_none() {
                return false;
            }
            let Err(error) = self.cache.reserve(part.sequence, part.rows) else { return true };
            if part.drafts > 0 {
                part.rows -= std::mem::take(&mut part.drafts);
                continue;
            }
            // Others are only asked for what was reckoned with when they were let in.
            let least = if self.running.len() == 1 { SHARE } else { ALWAYS_ROWS };
            if part.rows > least {
                part.rows = (part.rows / 2).max(least);
                continue;
            }
            if self.sessions.give_up_oldest(&mut self.cache) || self.preempt_paused() {
                continue;
            }
            if self.running.len() == 1 && self.lift_limit() {
                continue;
            }
            if self.running.len() == 1 {
                self.end_running(part.task, Err(error.into()));
                return false;
            }
            let order = |index: &usize| {
                let task = &self.running[*index];
                (Reverse(task.priority), task.id)
            };
            let youngest = (0..self.running.len()).max_by_key(order).expect("there are two");
            self.preempt(youngest);
        }
    }
}
