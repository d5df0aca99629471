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
pub(crate) struct Manners {
    /// Set while there are more threads than free cores: waiters sleep at once.
    pub(crate) crowded: AtomicBool,
}

/// One wait.
pub(crate) struct Patience<'a> {
    manners: &'a Manners,
    polls: u32,
    start: Option<Instant>,
    yielding: bool,
}

impl<'a> Patience<'a> {
    pub(crate) fn new(manners: &'a Manners) -> Self {
        Self { manners, polls: 0, start: None, yielding: false }
    }
}

impl Wait for Patience<'_> {
    fn pause(&mut self) -> bool {
        if !self.yielding {
            self.polls += 1;
            hint::spin_loop();
            if !self.polls.is_multiple_of(POLLS) {
                return true;
            }
        }
        if self.manners.crowded.load(Ordering::Relaxed) {
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
