//! How a waiting thread spends its time: polling, then yielding, then asleep.

use std::hint;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::protocol::Wait;

/// Time for which a waiter polls before it yields.
const SPIN: Duration = Duration::from_micros(50);
/// Time after which a waiter goes to sleep, yields included.
const HOT: Duration = Duration::from_micros(1000);
/// Polls between two looks at the clock.
const POLLS: u32 = 32;

/// What all waiters of a team go by.
pub(crate) struct WaitPolicy {
    /// Set while there are more threads than free cores: waiters sleep at once.
    pub(crate) passive: AtomicBool,
}

impl WaitPolicy {
    /// Waiters poll.
    pub(crate) fn active() -> Self {
        Self { passive: AtomicBool::new(false) }
    }
}

/// One wait.
pub(crate) struct Backoff<'a> {
    policy: &'a WaitPolicy,
    polls: u32,
    start: Option<Instant>,
    yielding: bool,
}

impl<'a> Backoff<'a> {
    pub(crate) fn new(policy: &'a WaitPolicy) -> Self {
        Self { policy, polls: 0, start: None, yielding: false }
    }
}

impl Wait for Backoff<'_> {
    fn pause(&mut self) -> bool {
        if !self.yielding {
            self.polls += 1;
            hint::spin_loop();
            if !self.polls.is_multiple_of(POLLS) {
                return true;
            }
        }
        if self.policy.passive.load(Ordering::Relaxed) {
            self.yielding = true;
            return false;
        }
        let waited = self.start.get_or_insert_with(Instant::now).elapsed();
        if waited < SPIN {
            return true;
        }
        self.yielding = true;
        if waited >= HOT {
            return false;
        }
        thread::yield_now();
        true
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{Backoff, HOT, Ordering, POLLS, Wait, WaitPolicy};

    /// Pauses before a waiter is told to sleep.
    fn pauses(backoff: &mut Backoff<'_>) -> u32 {
        let mut pauses = 0;
        while backoff.pause() {
            pauses += 1;
        }
        pauses
    }

    #[test]
    fn a_passive_waiter_sleeps_after_its_first_polls() {
        let policy = WaitPolicy::active();
        policy.passive.store(true, Ordering::Relaxed);
        let mut backoff = Backoff::new(&policy);
        assert_eq!([pauses(&mut backoff), pauses(&mut backoff)], [POLLS - 1, 0]);
    }

    #[test]
    fn an_active_waiter_polls_for_its_time_unless_the_policy_changes() {
        let policy = WaitPolicy::active();
        let (mut backoff, start) = (Backoff::new(&policy), std::time::Instant::now());
        let pauses = pauses(&mut backoff);
        assert!(pauses >= POLLS && start.elapsed() >= HOT, "{pauses} in {:?}", start.elapsed());
        let mut backoff = Backoff::new(&policy);
        assert!((0..POLLS).all(|_| backoff.pause()), "it polls");
        policy.passive.store(true, Ordering::Relaxed);
        assert!(!(0..POLLS).all(|_| backoff.pause()), "it sleeps");
    }
}
