//! Makes tokens that came before less likely: by scale, by a fixed amount, by how often they came.

use super::{Adjust, Filter, Step, finite};
use crate::Options;
use crate::options::check;

pub(super) const FILTER: Filter = Filter {
    name: "penalties",
    check: |options, _| {
        let got = options.repetition_penalty;
        let fine = got > 0.0 && got.is_finite();
        check("repetition_penalty", &got, fine, "a number above 0")?;
        let got = options.presence_penalty;
        check("presence_penalty", &got, got.is_finite(), "a finite number")?;
        let got = options.frequency_penalty;
        check("frequency_penalty", &got, got.is_finite(), "a finite number")
    },
    active: |options| {
        counts_prompt(options)
            || options.presence_penalty != 0.0
            || options.frequency_penalty != 0.0
    },
    step: Step::Logits(penalise),
};

/// Whether tokens of the prompt matter: they were not generated, which the other two ask for.
pub(super) fn counts_prompt(options: &Options) -> bool {
    options.repetition_penalty != 1.0
}

/// Repetition: `x / r` for positive, `x r` for other logits of tokens in prompt or answer; then
/// presence and frequency, of tokens that were generated.
fn penalise(adjust: &mut Adjust<'_>) {
    let Options { repetition_penalty, presence_penalty, frequency_penalty, .. } = *adjust.options;
    for (id, count) in adjust.history.counts() {
        adjust.logits.change(id, |mut logit| {
            if repetition_penalty != 1.0 {
                let positive = logit > 0.0;
                let by = repetition_penalty;
                logit = finite(if positive { logit / by } else { logit * by });
            }
            if count.generated > 0 {
                logit = finite(logit - presence_penalty);
                logit = finite(logit - frequency_penalty * count.generated as f32);
            }
            logit
        });
    }
}
