//! The steps between the model's logits and a draw: one row each, in the order in which they act.

mod dry;
mod logit_bias;
mod mask;
mod min_p;
mod penalties;
mod temperature;
mod top_k;
mod top_p;
mod typical_p;

use crate::candidates::Candidates;
use crate::history::{Counted, History};
use crate::{Error, Mask, Options};
use oss_simd::Isa;

/// A step; each is one file of `filter/`.
pub(crate) struct Filter {
    /// The name, as in [`Options`]; the three penalties are one filter.
    pub(crate) name: &'static str,
    /// Checks its options.
    pub(crate) check: fn(&Options, vocabulary: usize) -> Result<(), Error>,
    /// Whether the options ask for it.
    pub(crate) active: fn(&Options) -> bool,
    /// What it does.
    pub(crate) step: Step,
}

/// What a filter works on.
pub(crate) enum Step {
    /// The logits, in place.
    Logits(fn(&mut Adjust<'_>)),
    /// The set of candidates; not run when greedy.
    Candidates(fn(&Options, &mut Candidates<'_>)),
}

/// What a filter of logits sees.
pub(crate) struct Adjust<'a> {
    pub(crate) isa: Isa,
    pub(crate) options: &'a Options,
    pub(crate) history: &'a History,
    pub(crate) allowed: Option<&'a Mask>,
    pub(crate) dry: &'a mut DryScratch,
    pub(crate) logits: Logits<'a>,
}

pub(crate) use dry::Scratch as DryScratch;

/// The logits that penalties and biases work on.
pub(crate) struct Logits<'a> {
    pub(crate) values: &'a mut [f32],
    /// Where the model's own logit of each token that is changed is noted, if anybody wants it.
    pub(crate) changed: Option<&'a mut Vec<(u32, f32)>>,
}

impl Logits<'_> {
    /// Changes a logit, but −∞: a token that cannot be drawn stays one.
    fn change(&mut self, id: u32, to: impl FnOnce(f32) -> f32) {
        let logit = &mut self.values[id as usize];
        if *logit > f32::NEG_INFINITY {
            if let Some(changed) = &mut self.changed {
                changed.push((id, *logit));
            }
            *logit = to(*logit);
        }
    }
}

/// The model's own logit of a token, by what was noted in [`Logits::changed`]: the first note.
pub(crate) fn raw_logit(logits: &[f32], changed: &[(u32, f32)], id: u32) -> f32 {
    let noted = changed.iter().find(|(changed, _)| *changed == id);
    noted.map_or(logits[id as usize], |&(_, logit)| logit)
}

/// What a penalty or bias that was accepted makes too large stays a number: infinity is the model's
/// fault.
fn finite(logit: f32) -> f32 {
    logit.clamp(f32::MIN, f32::MAX)
}

/// The names of the filters in the order in which they act.
///
/// 1. `penalties` (repetition, then presence, then frequency) and `dry`: they correct the model's
///    own logits, whose sign and scale they rely on, so they come before all else.
/// 2. `logit_bias`: what the caller wants is added to the corrected logits and not penalised away.
/// 3. `mask`: what is forbidden stays forbidden, whatever the bias says; and the probability of
///    forbidden tokens is not counted by the filters below.
/// 4. `temperature`: before the truncations, so that these cut the distribution that is drawn from
///    (as in transformers and vLLM; llama.cpp tempers last by default).
/// 5. `top_k`, then `top_p` of what is left, then `min_p`, then `typical_p`: from the cheapest and
///    bluntest to the finest; each works on the renormalised survivors of those before it (as in
///    transformers).
pub const ORDER: [&str; FILTERS.len()] = {
    let mut names = [""; FILTERS.len()];
    let mut index = 0;
    while index < names.len() {
        names[index] = FILTERS[index].name;
        index += 1;
    }
    names
};

/// The table; see [`ORDER`] for the reasons.
pub(crate) const FILTERS: [Filter; 9] = [
    penalties::FILTER,
    dry::FILTER,
    logit_bias::FILTER,
    mask::FILTER,
    temperature::FILTER,
    top_k::FILTER,
    top_p::FILTER,
    min_p::FILTER,
    typical_p::FILTER,
];

/// Whether any filter before the mask changes logits.
pub(crate) fn adjusts(options: &Options) -> bool {
    let changes = |f: &Filter| matches!(f.step, Step::Logits(_)) && f.name != "mask";
    FILTERS.iter().any(|filter| changes(filter) && (filter.active)(options))
}

/// What the penalties need to have counted.
pub(crate) fn counted(options: &Options) -> Counted {
    match ((penalties::FILTER.active)(options), penalties::counts_prompt(options)) {
        (false, _) => Counted::Nothing,
        (true, false) => Counted::Generated,
        (true, true) => Counted::All,
    }
}

/// Runs the filters of logits.
pub(crate) fn adjust(mut adjust: Adjust<'_>) {
    for filter in &FILTERS {
        if let Step::Logits(step) = filter.step
            && (filter.active)(adjust.options)
        {
            step(&mut adjust);
        }
    }
}

/// Runs the filters of candidates.
pub(crate) fn narrow(options: &Options, candidates: &mut Candidates<'_>) {
    for filter in &FILTERS {
        if let Step::Candidates(step) = filter.step
            && (filter.active)(options)
        {
            step(options, candidates);
        }
    }
}
