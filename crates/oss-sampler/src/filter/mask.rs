//! Excludes what a constraint does not allow.

use super::{Adjust, Filter, Step};
use crate::scan;

pub(super) const FILTER: Filter = Filter {
    name: "mask",
    check: |_, _| Ok(()),
    // The mask comes with each draw.
    active: |_| true,
    step: Step::Logits(exclude),
};

fn exclude(adjust: &mut Adjust<'_>) {
    if let Some(mask) = adjust.allowed {
        scan::exclude(adjust.isa, adjust.logits.values, mask);
    }
}
