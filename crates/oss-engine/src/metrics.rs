//! What an engine has done: numbers always kept, read as a snapshot.

mod tiers;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use oss_model::ExpertUse;

pub(crate) use tiers::Back;
pub use tiers::TierUse;

/// Buckets of a histogram.
const BUCKETS: usize = 80;
/// Buckets for each doubling.
const PER_DOUBLING: f64 = 3.0;

/// A histogram of positive numbers with buckets of equal ratio (three for each doubling).
#[derive(Clone, Debug, PartialEq)]
pub struct Histogram {
    /// The upper end of the first bucket.
    first: f64,
    counts: [u64; BUCKETS],
    count: u64,
    sum: f64,
    max: f64,
}

impl Histogram {
    /// An empty histogram whose first bucket ends at `first`.
    const fn new(first: f64) -> Self {
        Self { first, counts: [0; BUCKETS], count: 0, sum: 0.0, max: 0.0 }
    }

    pub(crate) fn record(&mut self, value: f64) {
        let bucket = ((value / self.first).log2() * PER_DOUBLING).ceil().max(0.0) as usize;
        self.counts[bucket.min(BUCKETS - 1)] += 1;
        self.count += 1;
        self.sum += value;
        self.max = self.max.max(value);
    }

    /// How many numbers were recorded.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Their sum.
    #[must_use]
    pub fn sum(&self) -> f64 {
        self.sum
    }

    /// The largest one; 0 where there is none.
    #[must_use]
    pub fn max(&self) -> f64 {
        self.max
    }

    /// Their mean; 0 where there is none.
    #[must_use]
    pub fn mean(&self) -> f64 {
        if self.count == 0 { 0.0 } else { self.sum / self.count as f64 }
    }

    /// The quantile `q` (0 to 1), as if the numbers of a bucket were spread evenly over it: at most
    /// 26 % off, but for numbers below the first bucket and above the last.
    #[must_use]
    pub fn quantile(&self, q: f64) -> f64 {
        let wanted = (q * self.count as f64).ceil().max(1.0);
        let (mut lower, mut seen) = (self.first * (-1.0 / PER_DOUBLING).exp2(), 0.0);
        for (upper, count) in self.buckets() {
            let count = count as f64;
            if seen + count >= wanted {
                let within = lower + (upper.min(self.max) - lower) * (wanted - seen) / count;
                return within.min(self.max);
            }
            (lower, seen) = (upper, seen + count);
        }
        self.max
    }

    /// The buckets' upper ends and counts, ascending.
    pub fn buckets(&self) -> impl Iterator<Item = (f64, u64)> + '_ {
        let upper = |bucket: usize| self.first * (bucket as f64 / PER_DOUBLING).exp2();
        self.counts.iter().enumerate().map(move |(bucket, count)| (upper(bucket), *count))
    }
}

impl Default for Histogram {
    /// An empty histogram of seconds.
    fn default() -> Self {
        Self::new(10e-6)
    }
}

/// Pages of the cache, of one group of layers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PageUse {
    /// The group's window; `None`: full attention.
    pub window: Option<usize>,
    /// Pages that sequences hold.
    pub in_use: usize,
    /// Pages kept for prompts that begin as earlier ones did.
    pub kept: usize,
    /// Pages that could be had at once, besides those kept.
    pub available: usize,
    /// Bytes of a page.
    pub page_bytes: usize,
}

/// Bytes by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryUse {
    /// Packed weights; where experts stay in their file, the slots and everything else.
    pub weights: usize,
    /// Those of them that the system may not swap out: all but experts, where these are in slots
    /// and the process may lock so much (`RLIMIT_MEMLOCK`).
    pub locked: usize,
    /// Bytes of weights, and of what keys and values may take, on huge pages that were set aside:
    /// see [`EngineOptions::pages`](crate::EngineOptions::pages).
    pub reserved: usize,
    /// What of the model's file is not packed: norms and biases.
    pub vectors: usize,
    /// The tokenizer, and what the vocabulary may take as the first grammar makes it: about.
    pub vocabulary: usize,
    /// What resident keys and values may take.
    pub cache_limit: usize,
    /// What resident keys and values take.
    pub cache: usize,
    /// Compressed keys and values.
    pub warm: usize,
    /// What keys and values on their way between the tiers may take.
    pub queues: usize,
    /// The logits after whole prompts.
    pub repeats: usize,
    /// Scratch of the forward pass.
    pub scratch: usize,
    /// What [`Engine::tune`](crate::Engine::tune) has taken while it measures.
    pub measuring: usize,
}

impl MemoryUse {
    /// All of it.
    #[must_use]
    pub fn total(&self) -> usize {
        let Self { weights, vectors, vocabulary, .. } = self;
        let Self { cache, warm, queues, repeats, scratch, measuring, .. } = self;
        weights + vectors + vocabulary + cache + warm + queues + repeats + scratch + measuring
    }
}

/// A snapshot of an engine's numbers, counted since it was loaded.
///
/// ```
/// use oss_engine::{Engine, Request};
///
/// # fn main() -> oss_engine::Result<()> {
/// let engine = Engine::from_bytes(oss_demo::GGUF)?;
/// for _ in 0..2 {
///     engine.generate(Request::text("Once upon a time").max_tokens(8).ignore_eos())?;
/// }
/// let metrics = engine.metrics();
/// assert_eq!((metrics.completed, metrics.completion_tokens), (2, 16));
/// // The second prompt was known.
/// assert!(metrics.cached_tokens > 0);
/// println!("{:.3} s to the first token", metrics.first_token.quantile(0.5));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Metrics {
    /// Requests taken.
    pub submitted: u64,
    /// Requests refused because the queue was full.
    pub rejected: u64,
    /// Requests that ended by themselves.
    pub completed: u64,
    /// Requests cancelled.
    pub cancelled: u64,
    /// Requests that ran out of their time.
    pub timed_out: u64,
    /// Requests that failed otherwise.
    pub failed: u64,
    /// Requests that wait now.
    pub queued: usize,
    /// Sequences that run now.
    pub running: usize,
    /// Sequences that gave up their pages for others. Later they go on from what the cache's tiers
    /// have kept; the rest is computed again.
    pub preempted: u64,
    /// Prompt tokens computed, recomputed ones included. Those that were known are not, unlike in
    /// [`Usage::prompt_tokens`](crate::Usage::prompt_tokens).
    pub computed_prompt_tokens: u64,
    /// Prompt tokens that were known: from earlier turns, other requests, or lower tiers.
    pub cached_tokens: u64,
    /// Requests whose whole prompt was known, logits included: no row of it was computed.
    pub repeated_prompts: u64,
    /// Requests that waited for another one that was computing the same prefix.
    pub shared_prefixes: u64,
    /// Tokens drawn.
    pub completion_tokens: u64,
    /// Guesses at tokens that were verified.
    pub drafted_tokens: u64,
    /// Those of them that came true: tokens that needed no step of their own.
    pub accepted_drafts: u64,
    /// Seconds of steps with prompt tokens in them.
    pub prefill_seconds: f64,
    /// Tokens drawn by steps without prompt tokens.
    pub decode_tokens: u64,
    /// Seconds of steps without prompt tokens in them.
    pub decode_seconds: f64,
    /// Seconds from submission to the first step.
    pub queue_time: Histogram,
    /// Seconds from submission to the first token.
    pub first_token: Histogram,
    /// Seconds between the tokens of a sequence.
    pub inter_token: Histogram,
    /// Seconds of a step. What requests need to leave the queue, as reading their pages, is before.
    pub step_time: Histogram,
    /// Seconds that draws took, all together: the masks of grammars and constraints before them,
    /// and the log-probabilities of prompts, are among them.
    pub draw_seconds: f64,
    /// Seconds of a step outside of forward pass, head and sampling: bookkeeping, planning, text
    /// and events.
    pub overhead: Histogram,
    /// Rows of a step; those of prompts that take several steps for the layers count in each.
    pub step_rows: Histogram,
    /// Sequences of a step: the batch.
    pub step_sequences: Histogram,
    /// Pages of the cache, by group of layers.
    pub pages: Vec<PageUse>,
    /// The share of the cache's free memory that cannot be given back to the system before pages
    /// are moved: 0 when all of it can, 1 when none.
    pub fragmentation: f64,
    /// What the tiers of the cache have and gave.
    pub tiers: TierUse,
    /// How experts were found, where the model is larger than its memory.
    pub experts: Option<ExpertUse>,
    /// Files with experts' popularity in earlier runs that were damaged, of another model or not to
    /// be read, so that experts began without: see
    /// [`EngineOptions::pack_directory`](crate::EngineOptions::pack_directory).
    pub unusable_popularity: u64,
    /// Bytes by kind.
    pub memory: MemoryUse,
    /// Bytes given back because the system ran short of memory.
    pub shed_bytes: u64,
    /// Time since the engine was loaded.
    pub uptime: Duration,
}

impl Metrics {
    /// Prompt tokens a second, over the steps that had any (they may have drawn tokens too).
    #[must_use]
    pub fn prefill_tokens_per_s(&self) -> f64 {
        ratio(self.computed_prompt_tokens, self.prefill_seconds)
    }

    /// The share of the verified guesses that came true; 0 where there were none.
    #[must_use]
    pub fn acceptance(&self) -> f64 {
        self.accepted_drafts as f64 / self.drafted_tokens.max(1) as f64
    }

    /// Tokens drawn a second, over the steps that computed no prompt.
    #[must_use]
    pub fn decode_tokens_per_s(&self) -> f64 {
        ratio(self.decode_tokens, self.decode_seconds)
    }
}

fn ratio(count: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { count as f64 / seconds } else { 0.0 }
}

/// The numbers as they are kept.
pub(crate) struct Recorder {
    metrics: Mutex<Metrics>,
    /// Beside the others, as those who submit should not wait for the step thread.
    pub(crate) submitted: AtomicU64,
    pub(crate) rejected: AtomicU64,
    since: Instant,
}

impl Recorder {
    pub(crate) fn new() -> Self {
        let metrics = Metrics {
            overhead: Histogram::new(1e-6),
            step_rows: Histogram::new(1.0),
            step_sequences: Histogram::new(1.0),
            ..Metrics::default()
        };
        let (submitted, rejected) = Default::default();
        Self { metrics: Mutex::new(metrics), submitted, rejected, since: Instant::now() }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Metrics> {
        // Plain numbers: whatever panicked under the lock left them usable.
        self.metrics.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn snapshot(&self) -> Metrics {
        let [submitted, rejected] =
            [&self.submitted, &self.rejected].map(|count| count.load(Ordering::Relaxed));
        Metrics { submitted, rejected, uptime: self.since.elapsed(), ..self.lock().clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_of_evenly_spread_numbers_are_exact_and_others_within_a_bucket() {
        let mut histogram = Histogram::new(1e-3);
        (1..=1000).for_each(|i| histogram.record(f64::from(i) * 1e-3));
        for q in [0.1, 0.5, 0.9, 0.99, 1.0] {
            let got = histogram.quantile(q);
            assert!((got / q - 1.0).abs() < 0.01, "{q}: {got}");
        }
        // In the first bucket too.
        for (first, value) in [(1e-3, 0.7), (1.0, 1.0)] {
            let mut alike = Histogram::new(first);
            (0..100).for_each(|_| alike.record(value));
            for q in [0.01, 0.5, 1.0] {
                let got = alike.quantile(q);
                assert!(got > value / 1.26 && got <= value, "{q}: {got}");
            }
        }
        assert_eq!(histogram.count(), 1000);
        assert!((histogram.mean() - 0.5005).abs() < 1e-9);
    }

    #[test]
    fn an_empty_histogram_and_extreme_numbers_are_fine() {
        let mut histogram = Histogram::new(1.0);
        assert_eq!(histogram.quantile(0.5), 0.0);
        histogram.record(0.0);
        histogram.record(1e30);
        assert_eq!(histogram.count(), 2);
        assert_eq!(histogram.quantile(1.0), histogram.buckets().last().unwrap().0.min(1e30));
    }
}
