//! How much memory keys and values get, and experts where there is not enough for all.

use oss_model::{ExpertRoom, Model};

use crate::error::{Error, Result};
use crate::options::EngineOptions;
use crate::step::HEAD_ROWS;
use crate::tiers;
use crate::tuning::Batching;

/// The most that is taken without being asked, but for one full context.
const UNASKED: usize = 2 << 30;
/// The most that is taken for one full context without being asked.
const ONE_CONTEXT: usize = 4 << 30;
/// The least that keys and values are worth.
pub(crate) const LEAST: usize = 16 << 20;

/// Rows of a prompt that are reckoned with at once when it is told what the pages can hold: larger
/// chunks, as where each reads experts from their file, are cut where pages are short.
pub(crate) const ALWAYS_ROWS: usize = 512;

/// Full contexts that are worth having room for without being asked.
const CONTEXTS: usize = 8;

/// Beside a model that is larger than memory, keys and values get room for one context without
/// being asked, at most this part of what is left, and experts the rest.
const PART: usize = 16;

/// What the budget is divided into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shares {
    /// Bytes for resident keys and values.
    pub(crate) cache_bytes: usize,
    /// Experts that are in memory, where they cannot all be.
    pub(crate) slots: Option<usize>,
}

/// Divides the budget: keys and values get what was asked for; experts get slots where the whole
/// model has no room beside a useful cache. Weights of which there are to be several `copies` have
/// room for all of them, or none.
pub(crate) fn share(
    model: &Model,
    options: &EngineOptions,
    (context_len, threads): (usize, usize),
    batching: Batching,
    copies: usize,
) -> Result<Shares> {
    let max_rows = batching.max_rows;
    let one = context_bytes(model, context_len, max_rows);
    let wanted = options.cache_bytes.unwrap_or_else(|| {
        one.saturating_mul(CONTEXTS).clamp(LEAST, one.clamp(UNASKED, ONE_CONTEXT))
    });
    let Some(budget) = options.max_memory else {
        return Ok(Shares { cache_bytes: wanted, slots: None });
    };
    let scratch = batching.state(model, threads).bytes();
    let logits = 4 * model.config.vocabulary * max_rows.min(HEAD_ROWS);
    let kept = options.warm_bytes + options.repeat_bytes;
    let others = scratch + logits + kept + tiers::queue_bytes(model, options);
    let asked = options.cache_bytes;
    let room = model.weights.expert_room().filter(|_| copies == 1);
    // A model that can do with less is not kept whole at the cost of nearly all keys and values.
    let least = asked.unwrap_or(if room.is_some() { wanted / PART } else { 1 });
    let whole = copies * model.weights.packed_bytes() + others;
    if let Some(left) = budget.checked_sub(whole).filter(|left| *left >= least.max(1)) {
        let cache_bytes = asked.unwrap_or_else(|| left.min(wanted.max(UNASKED)));
        return Ok(Shares { cache_bytes, slots: None });
    }
    match room {
        Some(room) => {
            share_slots(budget, others, (asked, one.max(LEAST)), (room, model.config.max_top()))
        }
        None => {
            let expected = whole + asked.unwrap_or(1);
            let what = match copies {
                1 => "weights, scratch and caches",
                _ => "weights on each NUMA node, scratch and caches",
            };
            Err(Error::Budget { what, got: budget, expected })
        }
    }
}

/// Divides what the dense weights and `others` leave among keys and values and the slots of
/// experts: at least as many as one token goes to in a layer.
fn share_slots(
    budget: usize,
    others: usize,
    (asked, one): (Option<usize>, usize),
    (room, top): (ExpertRoom, usize),
) -> Result<Shares> {
    let taken = room.dense_bytes + others;
    let left = budget.saturating_sub(taken);
    let cache_bytes = asked.unwrap_or_else(|| one.min(left / PART));
    let slots = left.saturating_sub(cache_bytes) / room.slot_bytes;
    if slots < top {
        let what = "weights without experts, room for those of one token, scratch and caches";
        let expected = taken + cache_bytes + top * room.slot_bytes;
        return Err(Error::Budget { what, got: budget, expected });
    }
    Ok(Shares { cache_bytes, slots: Some(slots.min(room.experts)) })
}

/// Bytes of the keys and values of one full context, computed at most `rows` positions at a time.
pub(crate) fn context_bytes(model: &Model, context_len: usize, rows: usize) -> usize {
    let shape = model.cache_shape();
    let slot = shape.slot_bytes.next_multiple_of(64) * shape.n_kv_heads;
    let group = |group: &oss_cache::Group| {
        // A window's first and last page are used in part, and one page behind it is kept.
        let tokens = group.window.map_or(context_len, |w| w + rows + 3 * shape.page_tokens);
        tokens.min(context_len).div_ceil(shape.page_tokens) * slot * group.layers.len()
    };
    shape.groups.iter().map(group).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOM: ExpertRoom = ExpertRoom { dense_bytes: 1000, slot_bytes: 50, experts: 20 };

    fn shared(budget: usize, asked: Option<usize>) -> Result<Shares> {
        share_slots(budget, 300, (asked, 100), (ROOM, 4))
    }

    #[test]
    fn slots_get_what_keys_and_values_and_everything_dense_leave() {
        let shares = |budget, asked| shared(budget, asked).map(|s| (s.cache_bytes, s.slots));
        assert_eq!(shares(1700, None).unwrap(), (25, Some(7)));
        assert_eq!(shares(1700, Some(80)).unwrap(), (80, Some(6)));
        // One context bounds the cache, the model its slots.
        assert_eq!(shares(9000, None).unwrap(), (100, Some(20)));
        assert_eq!(shares(1500, Some(0)).unwrap(), (0, Some(4)));
    }

    #[test]
    fn fewer_slots_than_one_token_needs_are_refused_and_the_error_says_what_would_do() {
        for (budget, asked) in [(1499, Some(0)), (1510, None), (10, Some(70)), (0, None)] {
            let Error::Budget { got, expected, .. } = shared(budget, asked).unwrap_err() else {
                panic!("another error");
            };
            assert_eq!(got, budget);
            let shares = shared(expected, asked).or_else(|_| shared(expected + 100, asked));
            assert!(shares.unwrap().slots >= Some(4), "{expected}");
        }
    }
}
