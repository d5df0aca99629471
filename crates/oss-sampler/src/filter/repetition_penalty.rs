//! Makes tokens that occurred before less likely, by scale.

use super::{Adjust, Filter, Step, change};
use crate::options::check;

pub(super) const FILTER: Filter = Filter {
    name: "repetition_penalty",
    check: |options, _| {
        let got = options.repetition_penalty;
        check("repetition_penalty", &got, got > 0.0 && got.is_finite(), "a number above 0")
    },
    active: |options| options.repetition_penalty != 1.0,
    step: Step::Logits(penalise),
};

/// `x / r` for positive, `x r` for other logits of tokens in prompt or answer.
fn penalise(adjust: &mut Adjust<'_>) {
    let penalty = adjust.options.repetition_penalty;
    for (id, _) in adjust.history.counts() {
        let scale = |logit: f32| if logit > 0.0 { logit / penalty } else { logit * penalty };
        change(&mut adjust.logits[id as usize], scale);
    }
}
