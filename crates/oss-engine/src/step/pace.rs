//! How many prompt tokens a step may have while answers are streaming.

use std::time::Duration;

use crate::step::cost::StepCost;
use crate::tuning::Observed;

/// The weight of the newest observation.
const NEWEST: f64 = 0.3;
/// Prompts begin beside answers, and go on however slow the machine, with so many tokens a step; a
/// step tells whether the next may have more.
const AT_LEAST: usize = 8;
/// Beside a prompt, answers may always take so many times what they take alone.
const SLOWER: f64 = 2.0;

/// Knows how long steps took.
pub(crate) struct Pace {
    max_step: f64,
    max_prompt_step: f64,
    /// Seconds of a prompt token.
    prompt_row: Option<f64>,
    /// Prompt tokens beside answers that keep a step to its time, by the steps so far.
    chunk: f64,
    /// Steps without prompt tokens.
    answers: StepCost,
}

impl Pace {
    pub(crate) fn new(max_step: Duration, max_prompt_step: Duration) -> Self {
        Self {
            max_step: max_step.as_secs_f64(),
            max_prompt_step: max_prompt_step.as_secs_f64(),
            prompt_row: None,
            chunk: AT_LEAST as f64,
            answers: StepCost::default(),
        }
    }

    /// What steps without prompt tokens cost.
    pub(crate) fn answers(&self) -> &StepCost {
        &self.answers
    }

    /// Prompt tokens of the next step: at most `most`, fewer where `answers` rows of others would
    /// wait too long.
    pub(crate) fn prompt_rows(&self, answers: usize, most: usize) -> usize {
        if answers == 0 {
            return most;
        }
        (self.chunk as usize).max(AT_LEAST).min(most)
    }

    /// Seconds that a step with prompts may take beside so many answers.
    fn limit(&self, answers: usize) -> f64 {
        self.max_prompt_step.max(SLOWER * self.seconds(answers))
    }

    /// Answers that keep a step to its time.
    pub(crate) fn answer_rows(&self) -> usize {
        if !self.answers.is_known() {
            return usize::MAX;
        }
        let row = self.answers.row();
        ((self.max_step - self.answers.seconds(0)) / row.max(1e-9)) as usize
    }

    /// What the steps so far have shown.
    pub(crate) fn observed(&self) -> Observed {
        Observed {
            answer_step_s: self.seconds(1),
            answer_row_s: if self.answers.is_known() { self.answers.row() } else { 0.0 },
            prompt_row_s: self.prompt_row.unwrap_or(0.0),
            ..Observed::default()
        }
    }

    /// A step took so long.
    pub(crate) fn observe(&mut self, seconds: f64, answers: usize, prompt_rows: usize) {
        if prompt_rows == 0 {
            self.answers.observe(answers, seconds);
            return;
        }
        if answers > 0 {
            // What a step costs without prompt tokens makes this approach the limit from one side,
            // in ever smaller steps. A short rest of a prompt says nothing of longer ones, but
            // where it alone took too long.
            let limit = self.limit(answers);
            let fits = prompt_rows as f64 * (limit / seconds.max(1e-9)).clamp(0.5, 2.0);
            let tells = prompt_rows as f64 > 0.5 * self.chunk || seconds > limit;
            if tells || fits > self.chunk {
                self.chunk = fits.max(AT_LEAST as f64);
            }
        }
        let others = self.seconds(answers).min(seconds);
        let seen = (seconds - others) / prompt_rows as f64;
        self.prompt_row =
            Some(self.prompt_row.map_or(seen, |known| known + NEWEST * (seen - known)));
    }

    /// Seconds of a step of answers alone; 0 where none has been seen.
    fn seconds(&self, answers: usize) -> f64 {
        let known = answers > 0 && self.answers.is_known();
        if known { self.answers.seconds(answers) } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pace(millis: u64) -> Pace {
        let most = Duration::from_millis(millis);
        Pace::new(most, most)
    }

    /// Steps of one answer and as many prompt tokens as the pace allows; the last one's seconds.
    fn run(pace: &mut Pace, steps: usize, most: usize, cost: impl Fn(usize) -> f64) -> f64 {
        let mut seconds = 0.0;
        for _ in 0..steps {
            let rows = pace.prompt_rows(1, most);
            seconds = cost(rows);
            pace.observe(seconds, 1, rows);
        }
        seconds
    }

    #[test]
    fn chunks_grow_and_shrink_until_a_step_just_keeps_to_its_time() {
        let mut pace = pace(100);
        let cost = |rows: usize| 0.020 + 0.002 * rows as f64;
        assert_eq!(pace.prompt_rows(0, 128), 128, "nobody waits");
        assert_eq!(pace.prompt_rows(1, 128), AT_LEAST);
        pace.observe(0.020, 1, 0);
        let last = run(&mut pace, 40, 128, cost);
        assert!((0.090..=0.101).contains(&last), "{last}");
        let slow = run(&mut pace, 40, 128, |rows| 2.0 * cost(rows));
        assert!((0.090..=0.105).contains(&slow), "{slow}");
        pace.observe(0.022, 1, 1);
        assert!(pace.prompt_rows(1, 128) > 10, "the rest of a prompt says nothing");
    }

    #[test]
    fn chunks_that_were_as_large_as_they_may_be_shrink_when_steps_get_slower() {
        let mut pace = pace(100);
        let quick = run(&mut pace, 20, 256, |rows| 0.010 + 0.0001 * rows as f64);
        assert!(quick < 0.050, "{quick}: twice as many would fit, were they allowed");
        let slow = run(&mut pace, 40, 256, |rows| 0.020 + 0.002 * rows as f64);
        assert!((0.090..=0.105).contains(&slow), "{slow}");
    }

    #[test]
    fn slow_answers_share_their_time_with_prompts() {
        let mut pace = pace(100);
        (0..10).for_each(|_| pace.observe(0.300, 1, 0));
        let last = run(&mut pace, 40, 128, |rows| 0.300 + 0.005 * rows as f64);
        assert!((0.550..=0.610).contains(&last), "{last}");
    }

    #[test]
    fn as_many_answers_fit_as_keep_a_step_to_its_time() {
        let mut pace = pace(100);
        assert_eq!(pace.answer_rows(), usize::MAX);
        (0..60).for_each(|i| pace.observe(0.040 + 0.010 * (i % 3) as f64, 1 + i % 3, 0));
        assert!((5..=7).contains(&pace.answer_rows()), "{}", pace.answer_rows());
        (0..60).for_each(|_| pace.observe(1.0, 1, 0));
        assert!(pace.answer_rows() < 2);
    }

    #[test]
    fn prompts_always_go_on() {
        let mut pace = pace(1);
        run(&mut pace, 9, 128, |_| 9.0);
        assert_eq!(pace.prompt_rows(1, 128), AT_LEAST);
        assert_eq!(pace.prompt_rows(1, 3), 3);
    }
}
