//! Keeps tokens that are not too much less probable than the best one.

use super::{Filter, Step};
use crate::options::check_fraction;

pub(super) const FILTER: Filter = Filter {
    name: "min_p",
    check: |options, _| check_fraction("min_p", options.min_p),
    active: |options| options.min_p > 0.0,
    step: Step::Candidates(|options, candidates| candidates.min_p(options.min_p)),
};
