//! Flattens or sharpens the distribution.

use super::{Filter, Step};
use crate::options::check;

pub(super) const FILTER: Filter = Filter {
    name: "temperature",
    check: |options, _| {
        let got = options.temperature;
        check("temperature", &got, got >= 0.0 && got.is_finite(), "a number from 0 up")
    },
    active: |options| options.temperature != 1.0,
    // It keeps the order of logits, so it is only noted, and applied to the tokens that are left.
    step: Step::Candidates(|options, candidates| candidates.set_temperature(options.temperature)),
};
