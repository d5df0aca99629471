//! Makes tokens that were generated before less likely, by a fixed amount.

use super::{Adjust, Filter, Step, change};
use crate::options::check;

pub(super) const FILTER: Filter = Filter {
    name: "presence_penalty",
    check: |options, _| {
        let got = options.presence_penalty;
        check("presence_penalty", &got, got.is_finite(), "a finite number")
    },
    active: |options| options.presence_penalty != 0.0,
    step: Step::Logits(penalise),
};

fn penalise(adjust: &mut Adjust<'_>) {
    let penalty = adjust.options.presence_penalty;
    for (id, count) in adjust.history.counts() {
        if count.generated > 0 {
            change(&mut adjust.logits[id as usize], |logit| logit - penalty);
        }
    }
}
