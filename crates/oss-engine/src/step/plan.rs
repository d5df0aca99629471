//! Which rows a step has.

use std::cmp::Reverse;

use oss_model::Row;
use oss_quant::kv::PAGE_TOKENS;

use crate::budget::ALWAYS_ROWS;
use crate::step::{Scheduler, Task};

/// Prompts get at least so many rows at a time.
const SHARE: usize = PAGE_TOKENS;

/// The rows of a step: first the sequences that continue an answer, one row each and those of
/// guesses at what follows, then chunks of prompts.
#[derive(Default)]
pub(crate) struct Plan {
    pub(crate) parts: Vec<Part>,
    pub(crate) rows: Vec<Row>,
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

    /// Prompt rows in it.
    pub(crate) fn prompt_rows(&self) -> usize {
        self.parts.iter().filter(|part| part.is_prompt).map(|part| part.rows).sum()
    }
}

impl Scheduler {
    /// Chooses the rows of the next step and reserves pages for them.
    pub(crate) fn make_plan(&mut self) {
        let wanted = self.choose();
        self.plan.parts.clear();
        self.plan.rows.clear();
        for mut part in wanted {
            if self.reserve(&mut part) {
                self.plan.parts.push(part);
            }
        }
        // A later part may have taken the pages of an earlier one.
        let running = &self.running;
        self.plan.parts.retain(|part| Task::find(running, part.task).is_some());
        for part in &self.plan.parts {
            let task = Task::find(running, part.task).expect("kept above");
            let sequence = task.sequence.expect("running tasks have one");
            let from = self.cache.len(sequence);
            for position in from..from + part.rows {
                let (token, wanted) = (task.token(position), task.wants(position));
                let draft = position >= task.tokens.len();
                self.plan.rows.push(Row { sequence, position, token, wanted, draft });
            }
        }
    }

    /// Who gets how many rows.
    fn choose(&mut self) -> Vec<Part> {
        let cache = &self.cache;
        let mut ready: Vec<&Task> = self.running.iter().collect();
        ready.retain(|task| task.producer.has_room());
        ready.sort_by_key(|task| (Reverse(task.priority), task.id));
        let (mut answers, mut prompts): (Vec<&Task>, Vec<&Task>) =
            ready.into_iter().partition(|task| task.is_decoding(cache));
        // One row stays for prompts, so that a full house of answers does not shut them out; where
        // there is no other, both have it in turn.
        let for_prompts = usize::from(!prompts.is_empty());
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
        let part = |task: &Task| Part { task: task.id, rows: 1, drafts: 0, is_prompt: false };
        let mut parts: Vec<Part> = answers.into_iter().map(part).collect();

        let room =
            (self.batching.max_batched_tokens - parts.len()).min(self.batching.prefill_chunk);
        let mut room = self.pace.prompt_rows(parts.len(), room);
        // Where there is no room for all, each of the most urgent ones is first in turn.
        let urgent = prompts.partition_point(|task| task.priority == prompts[0].priority);
        self.plan.prompt_turn += usize::from(room > 0);
        prompts[..urgent].rotate_left(self.plan.prompt_turn % urgent.max(1));
        for (index, task) in prompts.iter().enumerate() {
            // They share with those that are as urgent; others get what these leave.
            let rest = &prompts[index..];
            let alike = rest.partition_point(|other| other.priority == task.priority);
            let share = (room / alike).max(SHARE);
            let rows = share.min(room).min(task.left(cache));
            if rows > 0 {
                parts.push(Part { task: task.id, rows, drafts: 0, is_prompt: true });
                room -= rows;
            }
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
            let Some(task) = Task::find(&self.running, part.task) else { return false };
            let sequence = task.sequence.expect("running tasks have one");
            let Err(error) = self.cache.reserve(sequence, part.rows) else { return true };
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
