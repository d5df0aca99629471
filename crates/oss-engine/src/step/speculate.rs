//! Exact speculation: which guesses are verified in a step, and what becomes of them.
//!
//! A guess is one more row after a sequence's last token. The rows' logits come out of one forward
//! pass; tokens are drawn from them one after another as they would be alone, and a row counts
//! while the tokens before it are those that were drawn. So tokens, log-probabilities, penalties
//! and constraints never see a wrong guess, and nothing of them has to be taken back: only the
//! cache forgets the positions behind the last one that counted, which no other sequence could find
//! there before.

use crate::options::Speculation;
use crate::step::cost::StepCost;
use crate::step::plan::Part;
use crate::step::{Scheduler, Task};

/// The most guesses verified at once without being asked for more.
const MOST: usize = 8;

impl Scheduler {
    /// Adds guesses to the answers among `parts`, at most `room` rows in all, and no more than pay.
    pub(crate) fn speculate(&self, parts: &mut [Part], room: usize) {
        let (most, always) = match self.options.speculation {
            Speculation::Off => return,
            Speculation::Always(most) => (most, true),
            Speculation::Auto => (MOST, false),
        };
        let mut answers: Vec<Answer<'_>> = parts
            .iter_mut()
            .filter(|part| !part.is_prompt)
            .filter_map(|part| {
                let task = Task::find(&self.running, part.task)?;
                let mut answer = Answer { task, part, gain: -1.0 };
                answer.look_ahead(most);
                Some(answer)
            })
            .collect();
        let cost = self.pace.answers();
        let alone = answers.len();
        let mut tokens = alone as f64;
        for rows in alone..alone + room {
            let Some(best) = answers.iter_mut().max_by(|a, b| a.gain.total_cmp(&b.gain)) else {
                return;
            };
            if best.gain < 0.0 || !(always || pays(best.gain, (rows, tokens), cost)) {
                return;
            }
            tokens += best.gain;
            best.part.drafts += 1;
            best.part.rows += 1;
            best.look_ahead(most);
        }
    }

    /// After the draws: forgets what was computed for guesses that did not come true.
    pub(crate) fn settle_drafts(&mut self) {
        let Self { cache, plan, running, recorder, .. } = self;
        for part in plan.parts.iter().filter(|part| part.drafts > 0) {
            let Some(task) = Task::find(running, part.task) else { continue };
            let sequence = task.sequence.expect("running tasks have one");
            // The token drawn last is not computed yet, as without guesses.
            let (computed, counts) = (cache.len(sequence), task.tokens.len() - 1);
            let wrong = computed.saturating_sub(counts);
            let kept = cache.truncate(sequence, computed - wrong);
            debug_assert_eq!(kept.ok(), Some(computed - wrong), "a page more than needed is kept");
            cache.accept_drafts(sequence);
            let mut metrics = recorder.lock();
            metrics.drafted_tokens += part.drafts as u64;
            metrics.accepted_drafts += (part.drafts - wrong.min(part.drafts)) as u64;
        }
    }
}

/// Whether one more row, expected to bring `gain` tokens, brings more tokens a second than the step
/// does without it: one of so many rows, expected to bring so many tokens.
fn pays(gain: f64, (rows, tokens): (usize, f64), cost: &StepCost) -> bool {
    gain * cost.seconds(rows) > tokens * cost.row()
}

/// An answer that may get guesses.
struct Answer<'a> {
    task: &'a Task,
    part: &'a mut Part,
    /// How probable it is that one more guess comes true; negative where there is none.
    gain: f64,
}

impl Answer<'_> {
    fn look_ahead(&mut self, most: usize) {
        let Self { task, part, gain } = self;
        // With the draw after the last guess, the answer is full.
        let left = task.ends.max_tokens.saturating_sub(task.drawn() + 1);
        let ahead = part.drafts;
        let drafter = task.drafter.as_ref().filter(|_| ahead < most.min(left));
        let guessing = drafter.filter(|drafter| drafter.guess(&task.tokens, ahead).is_some());
        *gain = guessing.map_or(-1.0, |drafter| drafter.confidence(ahead));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many guesses, each as good as the one before, pay in a step of one answer.
    fn guesses(confidence: f64, cost: &StepCost) -> usize {
        let (mut rows, mut tokens, mut gain) = (1, 1.0, confidence);
        while rows <= MOST && pays(gain, (rows, tokens), cost) {
            rows += 1;
            tokens += gain;
            gain *= confidence;
        }
        rows - 1
    }

    #[test]
    fn guesses_are_verified_where_they_come_true_often_enough_for_their_cost() {
        let cost = StepCost::default();
        assert_eq!([0.0, 0.3, 0.39].map(|confidence| guesses(confidence, &cost)), [0; 3]);
        assert_eq!([0.45, 0.75, 0.85].map(|confidence| guesses(confidence, &cost)), [1, 2, 3]);
        assert!(guesses(0.97, &cost) >= 6);
        let mut dear = StepCost::default();
        (0..60).for_each(|i| dear.observe(1 + i % 3, 0.1 * (1 + i % 3) as f64));
        assert_eq!(guesses(0.9, &dear), 0);
        let mut cheap = StepCost::default();
        (0..60).for_each(|i| cheap.observe(1 + i % 3, 0.1 + 0.01 * (i % 3) as f64));
        assert!(guesses(0.5, &cheap) >= 2);
    }
}
