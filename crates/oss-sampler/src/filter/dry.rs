//! Makes tokens that continue a repetition less likely, the more the longer it is.

use super::{Adjust, Filter, Step, finite};
use crate::options::{check, check_token};

pub(super) const FILTER: Filter = Filter {
    name: "dry",
    check: |options, vocabulary| {
        let dry = &options.dry;
        let (multiplier, base) = (dry.multiplier, dry.base);
        let fine = multiplier >= 0.0 && multiplier.is_finite();
        check("dry.multiplier", &multiplier, fine, "a number from 0 up")?;
        check("dry.base", &base, base >= 1.0 && base.is_finite(), "a number from 1 up")?;
        let length = dry.allowed_length;
        check("dry.allowed_length", &length, length >= 1, "at least 1")?;
        let check = |&id: &u32| check_token("dry.sequence_breakers", id, vocabulary);
        dry.sequence_breakers.iter().try_for_each(check)
    },
    active: |options| options.dry.multiplier > 0.0,
    step: Step::Logits(penalise),
};

/// Buffers that are kept from draw to draw.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scratch {
    /// `matches[i]`: how many tokens before, and with, the one `i` from the end equal the text's
    /// end.
    matches: Vec<u32>,
    /// (token, length of the repetition that it would continue).
    found: Vec<(u32, u32)>,
}

fn penalise(adjust: &mut Adjust<'_>) {
    let dry = &adjust.options.dry;
    let tokens = adjust.history.tokens();
    let start = if dry.window == 0 { 0 } else { tokens.len().saturating_sub(dry.window) };
    let tokens = &tokens[start..];
    // Sorted when the sampler was made: a vocabulary may have a thousand control tokens.
    let is_breaker = |id: u32| dry.sequence_breakers.binary_search(&id).is_ok();
    // A repetition ends at the last breaker.
    let limit = tokens.iter().rev().position(|&id| is_breaker(id)).unwrap_or(tokens.len());
    let Scratch { matches, found } = &mut *adjust.dry;
    suffix_matches(tokens, matches);
    // At most so many are found: room for all now, so that draws allocate only as a text grows.
    found.clear();
    found.reserve(matches.len());
    if let Some(changed) = &mut adjust.logits.changed {
        changed.reserve(matches.len());
    }
    let backwards = tokens.iter().rev();
    for (&length, &next) in matches.iter().skip(1).zip(backwards) {
        let length = (length as usize).min(limit);
        if length >= dry.allowed_length && !is_breaker(next) {
            found.push((next, length as u32));
        }
    }
    // The longest repetition of each token counts.
    found.sort_unstable_by(|a, b| a.0.cmp(&b.0).then(b.1.cmp(&a.1)));
    found.dedup_by_key(|(id, _)| *id);
    for &(id, length) in found.iter() {
        let beyond = f64::from(length) - dry.allowed_length as f64;
        let penalty = f64::from(dry.multiplier) * f64::from(dry.base).powf(beyond);
        let penalty = penalty.min(f64::from(f32::MAX)) as f32;
        adjust.logits.change(id, |logit| finite(logit - penalty));
    }
}

/// `matches[i]`: the length of the longest common suffix of `tokens` and of `tokens` without its
/// last `i`; the Z-function of the reversed tokens, in linear time.
fn suffix_matches(tokens: &[u32], matches: &mut Vec<u32>) {
    let len = tokens.len();
    let at = |index: usize| tokens[len - 1 - index];
    matches.clear();
    matches.resize(len, 0);
    // The match that reaches farthest back: [left, right).
    let (mut left, mut right) = (0, 0);
    for i in 1..len {
        let mut length = 0;
        if i < right {
            length = (matches[i - left] as usize).min(right - i);
        }
        while i + length < len && at(length) == at(i + length) {
            length += 1;
        }
        matches[i] = length as u32;
        if i + length > right {
            (left, right) = (i, i + length);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use oss_testing::Seeded;

    #[test]
    fn suffix_matches_equal_a_naive_comparison() {
        let mut seeded = Seeded::new(31);
        let mut matches = Vec::new();
        for len in 0..60 {
            let tokens: Vec<u32> = (0..len).map(|_| seeded.below(2) as u32).collect();
            suffix_matches(&tokens, &mut matches);
            for (i, &got) in matches.iter().enumerate().skip(1) {
                let pairs = tokens.iter().rev().zip(tokens.iter().rev().skip(i));
                let want = pairs.take_while(|(a, b)| a == b).count();
                assert_eq!(got as usize, want, "{tokens:?} without the last {i}");
            }
        }
    }
}
