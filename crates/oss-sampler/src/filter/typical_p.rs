//! Keeps tokens whose surprise is near what is expected.

use super::{Filter, Step};
use crate::Options;
use crate::candidates::Candidates;
use crate::options::check_fraction;

pub(super) const FILTER: Filter = Filter {
    name: "typical_p",
    check: |options, _| check_fraction("typical_p", options.typical_p),
    active: |options| options.typical_p < 1.0,
    step: Step::Candidates(keep_typical),
};

/// With `p = w / Z` and `ln w = v`, the surprise of a token is `ln Z − v` and the entropy, its
/// mean, is `ln Z − Σ p v`; so they are apart by `|v − Σ p v|`, and Z matters no further.
fn keep_typical(options: &Options, candidates: &mut Candidates<'_>) {
    let expected = candidates.mean_value();
    let distance = |value: f32| (f64::from(value) - expected).abs() as f32;
    candidates.keep_mass_by(options.typical_p, distance);
}
