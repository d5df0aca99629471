//! Adds what the caller wants to single logits.

use super::{Adjust, Filter, Step, finite};
use crate::options::{check, check_token};

pub(super) const FILTER: Filter = Filter {
    name: "logit_bias",
    check: |options, vocabulary| {
        options.logit_bias.iter().try_for_each(|&(id, bias)| {
            check_token("logit_bias", id, vocabulary)?;
            let fine = bias < f32::INFINITY;
            check("logit_bias", &format_args!("{bias} for token {id}"), fine, "a number or -inf")
        })
    },
    active: |options| !options.logit_bias.is_empty(),
    step: Step::Logits(add),
};

fn add(adjust: &mut Adjust<'_>) {
    for &(id, bias) in &adjust.options.logit_bias {
        adjust.logits.change(id, |logit| match bias == f32::NEG_INFINITY {
            true => bias,
            false => finite(logit + bias),
        });
    }
}
