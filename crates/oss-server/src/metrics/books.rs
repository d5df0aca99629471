//! What only the server sees: whole requests, from their submission to their end.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use oss_engine::{End, FinishReason};

/// Upper ends of the buckets for seconds.
const SECONDS: [f64; 18] = [
    0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 240.0, 480.0,
    960.0, 1920.0,
];

/// Upper ends of the buckets for tokens.
const TOKENS: [f64; 18] = [
    1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5,
    5e5,
];

/// A histogram with fixed buckets.
#[derive(Clone)]
pub(crate) struct Counts {
    ends: [f64; 18],
    counts: [u64; 18],
    pub(crate) count: u64,
    pub(crate) sum: f64,
}

impl Counts {
    fn new(ends: [f64; 18]) -> Self {
        Self { ends, counts: [0; 18], count: 0, sum: 0.0 }
    }

    fn record(&mut self, value: f64) {
        if let Some(bucket) = self.ends.iter().position(|end| value <= *end) {
            self.counts[bucket] += 1;
        }
        self.count += 1;
        self.sum += value;
    }

    /// The buckets' upper ends and counts, ascending; what is larger is in no bucket.
    pub(crate) fn buckets(&self) -> impl Iterator<Item = (f64, u64)> + '_ {
        self.ends.iter().copied().zip(self.counts.iter().copied())
    }
}

/// Whole requests: those that ended by themselves.
#[derive(Clone)]
pub(crate) struct Finished {
    pub(crate) stopped: u64,
    pub(crate) length: u64,
    /// From submission to the end.
    pub(crate) total: Counts,
    /// From the first step to the end.
    pub(crate) inference: Counts,
    pub(crate) prefill: Counts,
    /// From the end of the prompt to the end.
    pub(crate) decode: Counts,
    pub(crate) prompt_tokens: Counts,
    pub(crate) completion_tokens: Counts,
}

/// The server's own numbers.
pub(crate) struct Books {
    finished: Mutex<Finished>,
    /// Responses by status.
    responses: Mutex<BTreeMap<u16, u64>>,
    /// Prompt tokens of requests that wait in the engine's queue.
    waiting_tokens: AtomicUsize,
    /// Tokens drawn a second, lately: the bits of an `f64`.
    throughput: AtomicU64,
    stalled: AtomicBool,
}

impl Default for Books {
    fn default() -> Self {
        let seconds = || Counts::new(SECONDS);
        let tokens = || Counts::new(TOKENS);
        let finished = Finished {
            stopped: 0,
            length: 0,
            total: seconds(),
            inference: seconds(),
            prefill: seconds(),
            decode: seconds(),
            prompt_tokens: tokens(),
            completion_tokens: tokens(),
        };
        Self {
            finished: Mutex::new(finished),
            responses: Mutex::default(),
            waiting_tokens: AtomicUsize::new(0),
            throughput: AtomicU64::new(0),
            stalled: AtomicBool::new(false),
        }
    }
}

impl Books {
    fn lock(&self) -> MutexGuard<'_, Finished> {
        // Plain numbers: whatever panicked under the lock left them usable.
        self.finished.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A choice ended by itself.
    pub(crate) fn finished(&self, end: &End) {
        let seconds = |time: Duration| time.as_secs_f64();
        let timing = end.timing;
        let inference = timing.total.saturating_sub(timing.queue);
        let mut books = self.lock();
        match end.finish_reason {
            FinishReason::Length => books.length += 1,
            _ => books.stopped += 1,
        }
        books.total.record(seconds(timing.total));
        books.inference.record(seconds(inference));
        books.prefill.record(seconds(timing.prefill));
        books.decode.record(seconds(inference.saturating_sub(timing.prefill)));
        books.prompt_tokens.record(end.usage.prompt_tokens as f64);
        books.completion_tokens.record(end.usage.completion_tokens as f64);
    }

    pub(crate) fn requests(&self) -> Finished {
        self.lock().clone()
    }

    /// How long requests take; 0 before the first has ended.
    pub(crate) fn mean_seconds(&self) -> f64 {
        let books = self.lock();
        books.total.sum / books.total.count.max(1) as f64
    }

    pub(crate) fn responded(&self, status: u16) {
        let mut responses = self.responses.lock().unwrap_or_else(PoisonError::into_inner);
        *responses.entry(status).or_default() += 1;
    }

    pub(crate) fn responses(&self) -> BTreeMap<u16, u64> {
        self.responses.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A prompt of so many tokens came to wait, or waits no longer.
    pub(crate) fn waiting_tokens(&self, tokens: usize, comes: bool) {
        match comes {
            true => self.waiting_tokens.fetch_add(tokens, Ordering::Relaxed),
            false => self.waiting_tokens.fetch_sub(tokens, Ordering::Relaxed),
        };
    }

    pub(crate) fn tokens_that_wait(&self) -> usize {
        self.waiting_tokens.load(Ordering::Relaxed)
    }

    pub(crate) fn set_throughput(&self, tokens_per_s: f64) {
        self.throughput.store(tokens_per_s.to_bits(), Ordering::Relaxed);
    }

    pub(crate) fn throughput(&self) -> f64 {
        f64::from_bits(self.throughput.load(Ordering::Relaxed))
    }

    pub(crate) fn set_stalled(&self, stalled: bool) {
        self.stalled.store(stalled, Ordering::Relaxed);
    }

    pub(crate) fn is_stalled(&self) -> bool {
        self.stalled.load(Ordering::Relaxed)
    }
}
