//! How much memory keys and values get.

use oss_model::{Model, State};

use crate::error::{Error, Result};
use crate::options::EngineOptions;
use crate::step::HEAD_ROWS;
use crate::tiers;

/// The most that is taken without being asked.
const UNASKED: usize = 2 << 30;
/// Full contexts that are worth having room for without being asked.
const CONTEXTS: usize = 8;

/// Bytes for resident keys and values: what was asked for, within the budget.
pub(crate) fn cache_bytes(
    model: &Model,
    options: &EngineOptions,
    (context_len, threads): (usize, usize),
    max_rows: usize,
) -> Result<usize> {
    let wanted = options.cache_bytes.unwrap_or_else(|| {
        context_bytes(model, context_len).saturating_mul(CONTEXTS).clamp(16 << 20, UNASKED)
    });
    let Some(budget) = options.max_memory else { return Ok(wanted) };
    let weights = model.weights.packed_bytes();
    let scratch = State::new(model, max_rows, threads).bytes();
    let logits = 4 * model.config.vocabulary * max_rows.min(HEAD_ROWS);
    let kept = options.warm_bytes + options.repeat_bytes;
    let taken = weights + scratch + logits + kept + tiers::queue_bytes(model, options);
    match budget.checked_sub(taken).filter(|left| *left > 0) {
        Some(left) if options.cache_bytes.is_none() => Ok(left.min(wanted.max(UNASKED))),
        Some(left) if left >= wanted => Ok(wanted),
        _ => {
            let expected = taken + options.cache_bytes.unwrap_or(1);
            Err(Error::Budget { what: "weights, scratch and caches", got: budget, expected })
        }
    }
}

/// Bytes of the keys and values of one full context.
fn context_bytes(model: &Model, context_len: usize) -> usize {
    let shape = model.cache_shape();
    let slot = shape.slot_bytes.next_multiple_of(64) * shape.n_kv_heads;
    let group = |group: &oss_cache::Group| {
        // A window's first and last page are used in part.
        let tokens = group.window.map_or(context_len, |w| w + 2 * shape.page_tokens);
        tokens.min(context_len).div_ceil(shape.page_tokens) * slot * group.layers.len()
    };
    shape.groups.iter().map(group).sum()
}
