//! How many prompt tokens a step may have while answers are streaming.

use std::time::Duration;

use crate::step::cost::StepCost;
use crate::tuning::Observed;

/// The weight of the newest observation.
const NEWEST: f64 = 0.3;
/// Prompts go on with so many tokens a step, however slow the machine.
const AT_LEAST: usize = 8;

/// Knows how long steps took.
pub(crate) struct Pace {
    max_step: f64,
    /// Seconds of a prompt token.
    prompt_row: Option<f64>,
    /// Steps without prompt tokens.
    answers: StepCost,
}

impl Pace {
    pub(crate) fn new(max_step: Duration) -> Self {
        let (max_step, answers) = (max_step.as_secs_f64(), StepCost::default());
        Self { max_step, prompt_row: None, answers }
    }

    /// What steps without prompt tokens cost.
    pub(crate) fn answers(&self) -> &StepCost {
        &self.answers
    }

    /// Prompt tokens of the next step: at most `most`, fewer where `answers` rows of others would
    /// wait too long.
    pub(crate) fn prompt_rows(&self, answers: usize, most: usize) -> usize {
        let Some(row) = self.prompt_row.filter(|_| answers > 0) else { return most };
        let left = self.max_step - self.seconds(answers);
        ((left / row.max(1e-9)) as usize).max(AT_LEAST).min(most)
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

    #[test]
    fn chunks_shrink_until_a_step_keeps_to_its_time() {
        let mut pace = Pace::new(Duration::from_millis(100));
        assert_eq!(pace.prompt_rows(1, 128), 128);
        pace.observe(0.020, 1, 0);
        pace.observe(0.020 + 128.0 * 0.002, 1, 128);
        assert_eq!(pace.prompt_rows(1, 128), 40);
        assert_eq!(pace.prompt_rows(0, 128), 128);
        assert!(pace.prompt_rows(8, 128) < 40, "more answers leave less time");
    }

    #[test]
    fn as_many_answers_fit_as_keep_a_step_to_its_time() {
        let mut pace = Pace::new(Duration::from_millis(100));
        assert_eq!(pace.answer_rows(), usize::MAX);
        (0..60).for_each(|i| pace.observe(0.040 + 0.010 * (i % 3) as f64, 1 + i % 3, 0));
        assert!((5..=7).contains(&pace.answer_rows()), "{}", pace.answer_rows());
        (0..60).for_each(|_| pace.observe(1.0, 1, 0));
        assert!(pace.answer_rows() < 2);
    }

    #[test]
    fn prompts_always_go_on() {
        let mut pace = Pace::new(Duration::from_millis(1));
        pace.observe(1.0, 1, 0);
        pace.observe(9.0, 1, 4);
        assert_eq!(pace.prompt_rows(1, 128), AT_LEAST);
        assert_eq!(pace.prompt_rows(1, 3), 3);
    }
}
