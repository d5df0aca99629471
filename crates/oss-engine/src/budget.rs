//! How much memory keys and values get, and experts where there is not enough for all.

use std::thread;

use oss_memory::{Buffer, Pages};
use oss_model::{ExpertRoom, Model};
use oss_sampler::Scratch;
use oss_text::Tokenizer;

use crate::error::{Error, Result};
use crate::grammar::Vocabulary;
use crate::metrics::Recorder;
use crate::options::EngineOptions;
use crate::step::HEAD_ROWS;
use crate::text_side::Text;
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

/// Memory for what is too small to be worth an error: where that is refused, the process ends.
const SMALL: usize = 32 << 20;
/// The same for each thread that is started, its stack included.
const SMALL_PER_THREAD: usize = 3 << 20;

/// Finds out whether there is memory for small things beside so many bytes, which come next.
///
/// # Errors
/// When the system refuses it.
pub(crate) fn ask_for_small(beside: usize) -> Result<()> {
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let bytes = SMALL + SMALL_PER_THREAD * threads;
    drop(Buffer::new(beside.saturating_add(bytes), Pages::Ordinary)?);
    Ok(())
}

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
    (batching, copies): (Batching, usize),
    vocabulary_bytes: usize,
) -> Result<Shares> {
    let one = context_bytes(model, context_len, batching.max_batched_tokens);
    // A context that was asked for has room, whatever the cache's size would be unasked.
    let context = options.context_len.map(|_| one);
    let wanted = options.cache_bytes.unwrap_or_else(|| {
        let unasked = one.saturating_mul(CONTEXTS).clamp(LEAST, one.clamp(UNASKED, ONE_CONTEXT));
        unasked.max(context.unwrap_or(0))
    });
    let Some(budget) = options.max_memory else {
        return Ok(Shares { cache_bytes: wanted, slots: None });
    };
    let scratch = scratch_bytes(model, batching, threads)?;
    let others = others(model, options, scratch, vocabulary_bytes);
    let asked = options.cache_bytes;
    let room = model.weights.expert_room().filter(|_| copies == 1);
    // A model that can do with less is not kept whole at the cost of nearly all keys and values.
    let asked_least = asked.or(context);
    let least = asked_least.unwrap_or(if room.is_some() { wanted / PART } else { 1 });
    let whole = others.saturating_add(copies * model.weights.packed_bytes());
    if let Some(left) = budget.checked_sub(whole).filter(|left| *left >= least.max(1)) {
        let cache_bytes = asked.unwrap_or_else(|| left.min(wanted.max(UNASKED)));
        return Ok(Shares { cache_bytes, slots: None });
    }
    match room {
        Some(room) => {
            let wanted = (asked_least, one.max(LEAST));
            share_slots(budget, others, wanted, (room, model.config.max_top_k()))
        }
        None => {
            let expected = whole.saturating_add(asked_least.unwrap_or(1));
            let what = match copies {
                1 => "weights, vectors, the vocabulary, scratch and caches",
                _ => "weights on each NUMA node, vectors, the vocabulary, scratch and caches",
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
    let taken = others.saturating_add(room.dense_bytes);
    let left = budget.saturating_sub(taken);
    let cache_bytes = asked.unwrap_or_else(|| one.min(left / PART));
    let slots = left.saturating_sub(cache_bytes) / room.slot_bytes;
    if slots < top {
        let what = "weights without experts, room for those of one token, vectors, the vocabulary, \
                    scratch and caches";
        let expected = taken.saturating_add(cache_bytes).saturating_add(top * room.slot_bytes);
        return Err(Error::Budget { what, got: budget, expected });
    }
    Ok(Shares { cache_bytes, slots: Some(slots.min(room.experts)) })
}

/// Bytes of scratch for such steps, with the logits of the rows that go through the head at once
/// and what draws from them take, one after the other.
///
/// # Errors
/// When the system refuses them.
pub(crate) fn scratch_bytes(model: &Model, batching: Batching, threads: usize) -> Result<usize> {
    let vocabulary = model.config.vocabulary;
    let logits = 4 * vocabulary * batching.max_batched_tokens.min(HEAD_ROWS);
    Ok(batching.state(model, threads)?.bytes() + logits + Scratch::bytes(vocabulary))
}

/// Bytes of everything but packed matrices and resident keys and values.
pub(crate) fn others(
    model: &Model,
    options: &EngineOptions,
    scratch_bytes: usize,
    vocabulary_bytes: usize,
) -> usize {
    let kept = options.warm_bytes.saturating_add(options.repeat_bytes);
    let queues = tiers::queue_bytes(model, options);
    kept.saturating_add(scratch_bytes + queues + model.weights.vector_bytes() + vocabulary_bytes)
}

/// Bytes of the tokenizer, and of the vocabulary as the first grammar makes it.
pub(crate) fn vocabulary_bytes(text: &Text) -> usize {
    let bytes = |tokenizer: &Tokenizer| {
        tokenizer.bytes_in_memory() + Vocabulary::bytes_in_memory(tokenizer)
    };
    text.tokenizer().map_or(0, bytes)
}

/// What the budget has left for something that is needed for a while, as for measuring.
pub(crate) struct Spare<'a> {
    /// The budget, and what is taken of it; none where there is no limit.
    pub(crate) of: Option<(usize, usize)>,
    /// Told what is taken for a while.
    pub(crate) recorder: &'a Recorder,
}

/// Bytes that are taken until this goes.
pub(crate) struct Taken<'a>(&'a Recorder);

impl<'a> Spare<'a> {
    /// Whether there is room for so many bytes.
    pub(crate) fn holds(&self, bytes: usize) -> bool {
        self.of.is_none_or(|(budget, taken)| taken + bytes <= budget)
    }

    /// Takes so many bytes for `what`.
    ///
    /// # Errors
    /// [`Error::Budget`] where there is no room for them.
    pub(crate) fn take(&self, what: &'static str, bytes: usize) -> Result<Taken<'a>> {
        match self.of {
            Some((budget, taken)) if !self.holds(bytes) => {
                Err(Error::Budget { what, got: budget, expected: taken + bytes })
            }
            _ => {
                self.recorder.lock().memory.measuring = bytes;
                Ok(Taken(self.recorder))
            }
        }
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.0.lock().memory.measuring = 0;
    }
}

/// Bytes of the keys and values of one full context, computed at most `rows` positions at a time,
/// with a copy of the page that its prompt ends in.
pub(crate) fn context_bytes(model: &Model, context_len: usize, rows: usize) -> usize {
    model.cache_shape().sequence_bytes(context_len, rows)
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
    fn what_is_taken_for_a_while_has_room_in_the_budget_and_is_told_until_it_goes() {
        let recorder = Recorder::new();
        let spare = Spare { of: Some((1000, 700)), recorder: &recorder };
        assert!(spare.holds(300) && !spare.holds(301));
        let taken = spare.take("measuring", 300).unwrap();
        assert_eq!(recorder.lock().memory.measuring, 300);
        drop(taken);
        assert_eq!(recorder.lock().memory.measuring, 0);
        let Err(Error::Budget { what, got, expected }) = spare.take("measuring", 301) else {
            panic!("another error, or none");
        };
        assert_eq!((what, got, expected), ("measuring", 1000, 1001));
        let unlimited = Spare { of: None, recorder: &recorder };
        assert!(unlimited.holds(usize::MAX) && unlimited.take("measuring", 1 << 40).is_ok());
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
