//! How far prompts may go in a step while answers are streaming.

use std::time::Duration;

use crate::step::cost::StepCost;
use crate::tuning::Observed;

/// The weight of the newest observation.
const NEWEST: f64 = 0.3;
/// A chunk of prompts beside answers has at least so many rows, and where nothing is known about
/// the time of one, so many.
const AT_LEAST: usize = 16;
const AT_FIRST: usize = 64;
/// A chunk is to go through its layers in so many steps: others who come meanwhile wait for its
/// end. In larger chunks more rows share the reading of weights.
const STEPS: f64 = 8.0;
/// A step has time for so many layers of a chunk at least: for three, with a little to spare, so
/// that what is left of its time after the last one that fits is little.
const LAYERS: f64 = 3.25;
/// Beside a prompt, answers may always take so many times what they take alone.
const SLOWER: f64 = 2.0;

/// Knows how long steps took.
pub(crate) struct Pace {
    max_step: f64,
    max_prompt_step: f64,
    /// Layers of the model.
    layers: f64,
    /// Seconds of a prompt token.
    prompt_row: Option<f64>,
    /// Steps without prompt tokens.
    answers: StepCost,
}

impl Pace {
    pub(crate) fn new(max_step: Duration, max_prompt_step: Duration, layers: usize) -> Self {
        Self {
            max_step: max_step.as_secs_f64(),
            max_prompt_step: max_prompt_step.as_secs_f64(),
            layers: layers as f64,
            prompt_row: None,
            answers: StepCost::default(),
        }
    }

    /// What steps without prompt tokens cost.
    pub(crate) fn answers(&self) -> &StepCost {
        &self.answers
    }

    /// Rows of the next chunk of prompts: at most `most`, beside answers as many as go through
    /// all layers within a few steps.
    pub(crate) fn prompt_rows(&self, answers: usize, most: usize) -> usize {
        if answers == 0 {
            return most;
        }
        let rows = self.prompt_row.map_or(AT_FIRST, |row| {
            let steps = (self.layers / LAYERS).clamp(1.0, STEPS);
            let spare = self.limit(answers) - self.seconds(answers);
            (steps * spare / row.max(1e-9)) as usize
        });
        rows.max(AT_LEAST).min(most)
    }

    /// Whether a step with so many answers, of which `seconds` have passed, has time for another
    /// of the prompts' layers, the next of `rest`, if that takes as long as the last one, `layer`
    /// seconds, and the answers go on alone thereafter.
    pub(crate) fn has_time(&self, answers: usize, seconds: f64, layer: f64, rest: usize) -> bool {
        let alone = self.seconds(answers) * (rest - 1) as f64 / self.layers;
        seconds + layer + alone <= self.limit(answers)
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

    /// A step took so long, in which so many prompt rows went through `layers`.
    pub(crate) fn observe(
        &mut self,
        seconds: f64,
        answers: usize,
        (prompt_rows, layers): (usize, usize),
    ) {
        if prompt_rows == 0 {
            self.answers.observe(answers, seconds);
            return;
        }
        let others = self.seconds(answers).min(seconds);
        let rows = prompt_rows as f64 * layers as f64 / self.layers;
        let seen = (seconds - others) / rows;
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

    const LAYERS: usize = 24;
    const NONE: (usize, usize) = (0, 0);

    fn pace(millis: u64) -> Pace {
        let most = Duration::from_millis(millis);
        Pace::new(most, most, LAYERS)
    }

    /// Steps of one answer, which takes `alone` seconds, and of a chunk of 4,096 prompt rows at
    /// most, each of which takes `row`; the seconds of the longest one and the layers of each.
    fn run(pace: &mut Pace, alone: f64, row: f64) -> (f64, Vec<usize>) {
        let rows = pace.prompt_rows(1, 4096);
        let [alone, both] = [alone, alone + row * rows as f64].map(|all| all / LAYERS as f64);
        let (mut done, mut longest, mut layers) = (0, 0.0_f64, Vec::new());
        while done < LAYERS {
            let (first, mut seconds) = (done, alone * done as f64);
            loop {
                (done, seconds) = (done + 1, seconds + both);
                if done == LAYERS || !pace.has_time(1, seconds, both, LAYERS - done) {
                    break;
                }
            }
            seconds += alone * (LAYERS - done) as f64;
            pace.observe(seconds, 1, (rows, done - first));
            longest = longest.max(seconds);
            layers.push(done - first);
        }
        (longest, layers)
    }

    #[test]
    fn chunks_go_through_their_layers_in_a_few_steps_that_just_keep_to_their_time() {
        let mut pace = pace(100);
        assert_eq!(pace.prompt_rows(0, 128), 128, "nobody waits");
        assert_eq!(pace.prompt_rows(1, 4096), AT_FIRST);
        pace.observe(0.020, 1, NONE);
        for row in [0.002, 0.0002, 0.01] {
            (0..10).for_each(|_| drop(run(&mut pace, 0.020, row)));
            let (longest, layers) = run(&mut pace, 0.020, row);
            assert!((0.080..=0.101).contains(&longest), "{longest} s, a row {row}");
            assert!((6..=9).contains(&layers.len()), "{layers:?}, a row {row}");
        }
        // A machine that has become slower costs steps of its own alone.
        let (longest, _) = run(&mut pace, 0.040, 0.02);
        assert!(longest <= 0.13, "{longest}");
    }

    #[test]
    fn slow_answers_share_their_time_with_prompts() {
        let mut pace = pace(100);
        (0..10).for_each(|_| pace.observe(0.300, 1, NONE));
        (0..10).for_each(|_| drop(run(&mut pace, 0.300, 0.005)));
        let (longest, _) = run(&mut pace, 0.300, 0.005);
        assert!((0.500..=0.600).contains(&longest), "{longest}");
    }

    #[test]
    fn as_many_answers_fit_as_keep_a_step_to_its_time() {
        let mut pace = pace(100);
        assert_eq!(pace.answer_rows(), usize::MAX);
        (0..60).for_each(|i| pace.observe(0.040 + 0.010 * (i % 3) as f64, 1 + i % 3, NONE));
        assert!((5..=7).contains(&pace.answer_rows()), "{}", pace.answer_rows());
        (0..60).for_each(|_| pace.observe(1.0, 1, NONE));
        assert!(pace.answer_rows() < 2);
    }

    #[test]
    fn prompts_always_go_on() {
        let mut pace = pace(1);
        let (_, layers) = run(&mut pace, 9.0, 9.0);
        assert_eq!(layers.len(), LAYERS, "one layer a step");
        let rows = pace.prompt_rows(1, 128);
        assert!((AT_LEAST..=128).contains(&rows), "{rows}");
        assert_eq!(pace.prompt_rows(1, 3), 3);
    }
}
