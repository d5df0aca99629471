//! Keeps a number of best tokens, the lowest ids among equals.

use super::{Filter, Step};

pub(super) const FILTER: Filter = Filter {
    name: "top_k",
    // Any number: more than the vocabulary keeps everything.
    check: |_, _| Ok(()),
    active: |options| options.top_k > 0,
    step: Step::Candidates(|options, candidates| candidates.top_k(options.top_k)),
};
