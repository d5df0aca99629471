//! Makes tokens that were generated before less likely, by a fixed amount.

use super::{Adjust, Filter, Step};
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
    for (id, count) in adjust.history.counts() {
        if count.generated > 0 {
            adjust.logits[id as usize] -= adjust.options.presence_penalty;
        }
    }
}
