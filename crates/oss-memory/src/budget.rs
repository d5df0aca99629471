//! One limit for all the memory of an engine.
//!
//! ```
//! use oss_memory::{Budget, Kind};
//!
//! let budget = Budget::new(Some(1000));
//! let weights = budget.reserve(Kind::Weights, 700)?;
//! assert!(budget.reserve(Kind::Kv, 400).is_err());
//! drop(weights);
//! let kv = budget.reserve(Kind::Kv, 400)?;
//! assert_eq!((budget.used(Kind::Kv), budget.free()), (400, 600));
//! # Ok::<(), oss_memory::Error>(())
//! ```

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::{Error, Result};

/// What memory is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Resident weights.
    Weights,
    /// Keys and values.
    Kv,
    /// Working memory.
    Scratch,
    /// Everything else.
    Other,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 4] = [Self::Weights, Self::Kv, Self::Scratch, Self::Other];
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Weights => "weights",
            Self::Kv => "keys and values",
            Self::Scratch => "scratch",
            Self::Other => "other use",
        })
    }
}

/// A limit and what is reserved of it; clones share it.
#[derive(Clone, Debug)]
pub struct Budget {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    /// `usize::MAX` is no limit.
    limit: AtomicUsize,
    total: AtomicUsize,
    by_kind: [AtomicUsize; Kind::ALL.len()],
}

impl Budget {
    /// A budget of `limit` bytes; none is no limit.
    pub fn new(limit: Option<usize>) -> Self {
        let shared = Shared {
            limit: AtomicUsize::new(limit.unwrap_or(usize::MAX)),
            total: AtomicUsize::new(0),
            by_kind: Default::default(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Sets `bytes` aside until the reservation is dropped.
    ///
    /// # Errors
    /// When less than that is free.
    pub fn reserve(&self, kind: Kind, bytes: usize) -> Result<Reservation> {
        let mut reservation = Reservation { budget: self.clone(), kind, bytes: 0 };
        reservation.grow(bytes)?;
        Ok(reservation)
    }

    /// Bytes that are reserved for `kind`.
    pub fn used(&self, kind: Kind) -> usize {
        self.shared.by_kind[kind as usize].load(Ordering::Relaxed)
    }

    /// Bytes that are reserved in all.
    pub fn total(&self) -> usize {
        self.shared.total.load(Ordering::Relaxed)
    }

    /// The limit in bytes; none when there is no limit.
    pub fn limit(&self) -> Option<usize> {
        Some(self.shared.limit.load(Ordering::Relaxed)).filter(|&limit| limit != usize::MAX)
    }

    /// Changes the limit. What is reserved stays, even beyond it: see [`Budget::excess`].
    pub fn set_limit(&self, limit: Option<usize>) {
        self.shared.limit.store(limit.unwrap_or(usize::MAX), Ordering::Relaxed);
    }

    /// Bytes that can be reserved.
    pub fn free(&self) -> usize {
        self.shared.limit.load(Ordering::Relaxed).saturating_sub(self.total())
    }

    /// Bytes that are reserved beyond a limit that was lowered: what caches should give back.
    pub fn excess(&self) -> usize {
        self.total().saturating_sub(self.shared.limit.load(Ordering::Relaxed))
    }
}

/// Bytes of a [`Budget`], given back when dropped.
#[derive(Debug)]
pub struct Reservation {
    budget: Budget,
    kind: Kind,
    bytes: usize,
}

impl Reservation {
    /// Bytes that are set aside.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// What they are for.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Sets `more` bytes aside.
    ///
    /// # Errors
    /// When less than that is free; the reservation is then as before.
    pub fn grow(&mut self, more: usize) -> Result<()> {
        let shared = &self.budget.shared;
        let limit = shared.limit.load(Ordering::Relaxed);
        let add = |total: usize| total.checked_add(more).filter(|&sum| sum <= limit || more == 0);
        if let Err(total) = shared.total.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add) {
            let expected = limit.saturating_sub(total);
            return Err(Error::Budget { kind: self.kind, got: more, expected, limit });
        }
        shared.by_kind[self.kind as usize].fetch_add(more, Ordering::Relaxed);
        self.bytes += more;
        Ok(())
    }

    /// Gives `less` bytes back.
    ///
    /// # Panics
    /// When it has not that many.
    pub fn shrink(&mut self, less: usize) {
        let held = self.bytes;
        assert!(less <= held, "{less} bytes are given back of a reservation of {held}");
        self.bytes -= less;
        let shared = &self.budget.shared;
        shared.by_kind[self.kind as usize].fetch_sub(less, Ordering::Relaxed);
        shared.total.fetch_sub(less, Ordering::Relaxed);
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.shrink(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::{Budget, Error, Kind};

    #[test]
    fn the_limit_is_kept_by_many_threads() {
        let budget = Budget::new(Some(100));
        std::thread::scope(|scope| {
            for kind in Kind::ALL {
                let budget = budget.clone();
                scope.spawn(move || {
                    let mut held = Vec::new();
                    for step in 0..10_000 {
                        held.extend(budget.reserve(kind, step % 7));
                        assert!(budget.total() <= 100);
                        if step % 3 == 0 {
                            held.clear();
                        }
                    }
                });
            }
        });
        assert_eq!((budget.total(), Kind::ALL.map(|kind| budget.used(kind))), (0, [0; 4]));
    }

    #[test]
    fn a_refusal_says_what_was_asked_for_and_what_is_free() {
        let budget = Budget::new(Some(100));
        let mut held = budget.reserve(Kind::Weights, 60).expect("room");
        let error = held.grow(41).expect_err("too much");
        let expected =
            "41 bytes for weights were asked for, expected at most 40 of a budget of 100";
        assert_eq!(error.to_string(), expected);
        assert!(matches!(error, Error::Budget { got: 41, expected: 40, .. }));
        assert_eq!((held.bytes(), budget.total()), (60, 60));
        assert!(Budget::new(None).reserve(Kind::Other, usize::MAX).is_ok());
    }

    #[test]
    fn a_lowered_limit_leaves_an_excess_to_be_given_back() {
        let budget = Budget::new(None);
        let mut held = budget.reserve(Kind::Kv, 60).expect("room");
        budget.set_limit(Some(40));
        assert_eq!((budget.excess(), budget.free(), budget.limit()), (20, 0, Some(40)));
        assert!(budget.reserve(Kind::Kv, 1).is_err());
        assert!(budget.reserve(Kind::Kv, 0).is_ok());
        held.shrink(30);
        assert_eq!((budget.excess(), budget.free()), (0, 10));
    }
}
