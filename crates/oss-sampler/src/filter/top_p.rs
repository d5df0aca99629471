//! Keeps the smallest set of best tokens that holds a probability.

use super::{Filter, Step};
use crate::options::check_fraction;

pub(super) const FILTER: Filter = Filter {
    name: "top_p",
    check: |options, _| check_fraction("top_p", options.top_p),
    active: |options| options.top_p < 1.0,
    step: Step::Candidates(|options, candidates| candidates.top_p(options.top_p)),
};
