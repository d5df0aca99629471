//! Makes tokens less likely by how often they were generated.

use super::{Adjust, Filter, Step, change};
use crate::options::check;

pub(super) const FILTER: Filter = Filter {
    name: "frequency_penalty",
    check: |options, _| {
        let got = options.frequency_penalty;
        check("frequency_penalty", &got, got.is_finite(), "a finite number")
    },
    active: |options| options.frequency_penalty != 0.0,
    step: Step::Logits(penalise),
};

fn penalise(adjust: &mut Adjust<'_>) {
    for (id, count) in adjust.history.counts() {
        let penalty = adjust.options.frequency_penalty * count.generated as f32;
        change(&mut adjust.logits[id as usize], |logit| logit - penalty);
    }
}
