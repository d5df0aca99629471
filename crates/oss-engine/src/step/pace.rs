//! How far prompts may go in a step while answers are streaming.

use std::time::Duration;

use crate::step::cost::StepCost;
use crate::step::partway::Ran;
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
/// The same where layers read experts from their file: for one, in as many steps as that takes, as
/// reading them again and again takes longest.
const LAYERS_FROM_FILE: f64 = 1.25;
/// Answers tell what they take alone where this part of the layers, or more, was theirs alone.
const TELLING: f64 = 0.25;
/// A chunk counts on this part of the steps' time at least.
const LEAST_SPARE: f64 = 0.25;
/// Beside a prompt, answers may always take so many times what they take alone.
const SLOWER: f64 = 2.0;

/// Knows how long steps took.
pub(crate) struct Pace {
    max_step: f64,
    max_prompt_step: f64,
    /// Layers of the model.
    layers: f64,
    /// Steps in which a chunk is to go through them.
    steps: f64,
    /// Seconds of a prompt token.
    prompt_row: Option<f64>,
    /// What answers take alone, as it was on average,
    answers: StepCost,
    /// and how many times that the last steps took.
    recent: f64,
}

impl Pace {
    /// For a model of so many layers, which `reads_experts` from their file or not.
    pub(crate) fn new(
        max_step: Duration,
        max_prompt_step: Duration,
        (layers, reads_experts): (usize, bool),
    ) -> Self {
        let steps = match reads_experts {
            true => layers as f64 / LAYERS_FROM_FILE,
            false => (layers as f64 / LAYERS).min(STEPS),
        };
        Self {
            max_step: max_step.as_secs_f64(),
            max_prompt_step: max_prompt_step.as_secs_f64(),
            layers: layers as f64,
            steps: steps.max(1.0),
            prompt_row: None,
            answers: StepCost::default(),
            recent: 1.0,
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
            let limit = self.limit(answers);
            let spare = (limit - self.seconds(answers)).max(LEAST_SPARE * limit);
            (self.steps * spare / row.max(1e-9)) as usize
        });
        rows.max(AT_LEAST).min(most)
    }

    /// Whether a step with so many answers, of which `seconds` have passed, has time for another
    /// of the prompts' layers, the next of `rest`, if that takes `layer` seconds and the answers go
    /// on alone thereafter.
    pub(crate) fn has_time(&self, answers: usize, seconds: f64, layer: f64, rest: usize) -> bool {
        let alone = self.seconds(answers) * (rest - 1) as f64 / self.layers;
        seconds + layer + alone <= self.limit(answers)
    }

    /// Seconds that a step with prompts may take beside so many answers: it follows a machine that
    /// has become faster at once, and one that has become slower over some forty steps.
    fn limit(&self, answers: usize) -> f64 {
        let usual = self.seconds(answers) * self.recent.recip().min(1.0);
        self.max_prompt_step.max(SLOWER * usual)
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

    /// A step took so long, with so many rows of answers and of prompts.
    pub(crate) fn observe(&mut self, seconds: f64, answers: usize, prompt_rows: usize, ran: Ran) {
        if prompt_rows == 0 {
            self.observe_alone(answers, seconds);
            return;
        }
        let alone = self.layers - ran.layers as f64;
        // After the last layer, prompts have their part in the rest of the step.
        if answers > 0 && !ran.ended && alone >= TELLING * self.layers {
            let others = seconds - ran.seconds - ran.alone;
            self.observe_alone(answers, others + ran.alone * self.layers / alone);
        }
        let share = ran.layers as f64 / self.layers;
        let of_prompts = match answers {
            0 => seconds,
            _ => (ran.seconds - share * self.seconds(answers)).max(0.0),
        };
        // Of the last layer, hardly anything is computed for all rows.
        let whole = ran.layers - usize::from(ran.ended);
        if whole == 0 {
            return;
        }
        let seen = of_prompts * (self.layers - 1.0) / (whole * prompt_rows) as f64;
        // A row of a few costs more than one of many.
        let weight = NEWEST * (prompt_rows as f64 / AT_FIRST as f64).min(1.0);
        self.prompt_row =
            Some(self.prompt_row.map_or(seen, |known| known + weight * (seen - known)));
    }

    /// So many rows of answers alone take, or would take, so long.
    fn observe_alone(&mut self, rows: usize, seconds: f64) {
        self.answers.observe(rows, seconds);
        // A step that stalled says little of the next.
        let times = (seconds / self.answers.seconds(rows).max(1e-9)).clamp(0.5, 2.0);
        self.recent += NEWEST * (times - self.recent);
    }

    /// Seconds of a step of answers alone; 0 where none has been seen.
    fn seconds(&self, answers: usize) -> f64 {
        let known = answers > 0 && self.answers.is_known();
        if known { self.recent * self.answers.seconds(answers) } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYERS: usize = 24;

    fn pace(millis: u64) -> Pace {
        let most = Duration::from_millis(millis);
        Pace::new(most, most, (LAYERS, false))
    }

    /// Steps of one answer, which takes `alone` seconds, and of a chunk of 4,096 prompt rows at
    /// most, each of which takes `row`; the seconds of the longest one and the layers of each.
    fn run(pace: &mut Pace, alone: f64, row: f64) -> (f64, Vec<usize>) {
        let rows = pace.prompt_rows(1, 4096);
        let [alone, both] = [alone, alone + row * rows as f64].map(|all| all / LAYERS as f64);
        let (mut done, mut longest, mut steps) = (0, 0.0_f64, Vec::new());
        while done < LAYERS {
            let (first, mut seconds) = (done, alone * done as f64);
            loop {
                (done, seconds) = (done + 1, seconds + both);
                if done == LAYERS || !pace.has_time(1, seconds, both, LAYERS - done) {
                    break;
                }
            }
            let layers = done - first;
            let ran = Ran {
                layers,
                seconds: both * layers as f64,
                ended: done == LAYERS,
                layer_seconds: both,
                alone: alone * (LAYERS - layers) as f64,
            };
            seconds = ran.seconds + ran.alone;
            pace.observe(seconds, 1, rows, ran);
            longest = longest.max(seconds);
            steps.push(layers);
        }
        (longest, steps)
    }

    #[test]
    fn chunks_go_through_their_layers_in_a_few_steps_that_just_keep_to_their_time() {
        let mut pace = pace(100);
        assert_eq!(pace.prompt_rows(0, 128), 128, "nobody waits");
        assert_eq!(pace.prompt_rows(1, 4096), AT_FIRST);
        pace.observe(0.020, 1, 0, Ran::default());
        for row in [0.002, 0.0002, 0.01] {
            (0..10).for_each(|_| drop(run(&mut pace, 0.020, row)));
            let (longest, layers) = run(&mut pace, 0.020, row);
            assert!((0.080..=0.101).contains(&longest), "{longest} s, a row {row}");
            assert!((6..=9).contains(&layers.len()), "{layers:?}, a row {row}");
        }
        // A machine that has become slower is noticed within the step.
        let (longest, _) = run(&mut pace, 0.040, 0.02);
        assert!(longest <= 0.13, "{longest}");
    }

    #[test]
    fn slow_answers_share_their_time_with_prompts() {
        let mut pace = pace(100);
        (0..10).for_each(|_| pace.observe(0.300, 1, 0, Ran::default()));
        (0..10).for_each(|_| drop(run(&mut pace, 0.300, 0.005)));
        let (longest, _) = run(&mut pace, 0.300, 0.005);
        assert!((0.500..=0.600).contains(&longest), "{longest}");
    }

    #[test]
    fn as_many_answers_fit_as_keep_a_step_to_its_time() {
        let mut pace = pace(100);
        assert_eq!(pace.answer_rows(), usize::MAX);
        (0..60).for_each(|i| {
            pace.observe(0.040 + 0.010 * (i % 3) as f64, 1 + i % 3, 0, Ran::default());
        });
        assert!((5..=7).contains(&pace.answer_rows()), "{}", pace.answer_rows());
        (0..60).for_each(|_| pace.observe(1.0, 1, 0, Ran::default()));
        assert!(pace.answer_rows() < 2);
    }

    #[test]
    fn what_answers_take_alone_is_known_though_prompts_never_cease() {
        let mut pace = pace(100);
        (0..20).for_each(|_| drop(run(&mut pace, 0.300, 0.005)));
        assert!((0.29..=0.31).contains(&pace.seconds(1)), "{}", pace.seconds(1));
        // What is new counts at once.
        (0..2).for_each(|_| drop(run(&mut pace, 0.150, 0.005)));
        assert!((0.145..=0.170).contains(&pace.seconds(1)), "{}", pace.seconds(1));
    }

    #[test]
    fn where_experts_are_read_from_their_file_chunks_are_larger() {
        let most = Duration::from_millis(100);
        let rows = [false, true].map(|reads_experts| {
            let mut pace = Pace::new(most, most, (LAYERS, reads_experts));
            pace.observe(0.050, 1, 0, Ran::default());
            pace.observe(1.0, 0, 100, Ran { layers: LAYERS, ended: true, ..Ran::default() });
            pace.prompt_rows(1, 4096)
        });
        assert_eq!(rows, [36, 96], "7.4 and 19.2 steps of 50 ms, at 10 ms a row");
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
