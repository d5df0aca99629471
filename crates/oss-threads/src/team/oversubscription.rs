//! Notices when there are more threads than free cores, and makes all threads wait passively then.
//!
//! A thread that polls for another one that has no core takes a core from it. So some phases are
//! timed: when one in twenty of them waits far longer for stragglers than it works, waiters sleep
//! at once ([`WaitPolicy::passive`]) instead of polling. After a while polling is tried again, each
//! time later.
//!
//! [`WaitPolicy::passive`]: crate::backoff::WaitPolicy::passive

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// One phase of so many is timed: a prime, since with an even number, and an even number of phases
/// a token, some phases of a layer would never be.
pub(super) const EVERY: u32 = 17;
/// Timed phases that are judged together.
pub(super) const WINDOW: u32 = 64;
/// Late ones among them that are a sign of too many threads: more than one in twenty.
pub(super) const LATE: u32 = 4;
/// A late phase waits so many times as long as it works,
const FACTOR: u32 = 10;
/// and longer than waking a sleeper takes.
const LEAST: Duration = Duration::from_micros(250);
/// Before polling is tried again, the first and the longest time.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(64));

/// What is known of too many threads; written by the caller of the running phase.
pub(super) struct Oversubscription {
    phases: AtomicU32,
    window: Mutex<Window>,
}

#[derive(Default)]
struct Window {
    timed: u32,
    late: u32,
    /// While there are too many threads: since when.
    since: Option<Instant>,
    /// How long it lasts, or lasted the last time.
    lasts: Duration,
}

impl Oversubscription {
    pub(super) fn new() -> Self {
        Self { phases: AtomicU32::new(0), window: Mutex::new(Window::default()) }
    }

    /// Whether the phase that begins is to be timed.
    pub(super) fn is_timed(&self) -> bool {
        let phases = self.phases.load(Ordering::Relaxed).wrapping_add(1);
        self.phases.store(phases, Ordering::Relaxed);
        phases.is_multiple_of(EVERY)
    }

    /// Takes a timed phase in; true while there are too many threads.
    pub(super) fn observe(&self, work: Duration, wait: Duration, now: Instant) -> bool {
        let mut window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        window.observe(work, wait, now)
    }
}

impl Window {
    fn observe(&mut self, work: Duration, wait: Duration, now: Instant) -> bool {
        if let Some(since) = self.since {
            if now.saturating_duration_since(since) < self.lasts {
                return true;
            }
            self.since = None;
            (self.timed, self.late) = (0, 0);
        }
        self.timed += 1;
        self.late += u32::from(wait > LEAST && wait > work * FACTOR);
        if self.late >= LATE {
            self.lasts = (self.lasts * 2).clamp(RETRY.0, RETRY.1);
            self.since = Some(now);
            return true;
        }
        if self.timed == WINDOW {
            // A window without any late phase is forgiven the past.
            if self.late == 0 {
                self.lasts = Duration::ZERO;
            }
            (self.timed, self.late) = (0, 0);
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::{Duration, EVERY, Instant, LATE, Oversubscription, WINDOW, Window};

    const WORK: Duration = Duration::from_micros(30);
    const SOON: Duration = Duration::from_micros(40);
    const LATELY: Duration = Duration::from_millis(4);

    #[test]
    fn each_phase_of_a_layer_has_its_turn_to_be_timed() {
        for phases in [2, 6, 8, 16] {
            let oversubscription = Oversubscription::new();
            let timed =
                (0..EVERY * phases).filter(|_| oversubscription.is_timed()).map(|at| at % phases);
            let mut timed: Vec<_> = timed.collect();
            timed.sort_unstable();
            assert!(timed.into_iter().eq(0..phases), "{phases} phases");
        }
    }

    #[test]
    fn phases_that_wait_little_or_work_long_are_no_sign() {
        let (mut window, now) = (Window::default(), Instant::now());
        assert!((0..10 * WINDOW).all(|_| !window.observe(WORK, SOON, now)));
        assert!((0..10 * WINDOW).all(|_| !window.observe(LATELY, 5 * LATELY, now)));
    }

    #[test]
    fn a_rare_late_phase_is_no_sign() {
        let (mut window, now) = (Window::default(), Instant::now());
        for phase in 0..100 * WINDOW {
            let wait = if phase % WINDOW < LATE - 1 { LATELY } else { SOON };
            assert!(!window.observe(WORK, wait, now), "phase {phase}");
        }
    }

    #[test]
    fn after_many_late_phases_polling_is_tried_again_ever_later() {
        let (mut window, mut now) = (Window::default(), Instant::now());
        for seconds in [1, 2, 4, 8, 16, 32, 64, 64] {
            assert!((1..LATE).all(|_| !window.observe(WORK, LATELY, now)));
            assert!(window.observe(WORK, LATELY, now));
            now += Duration::from_millis(seconds * 1000 - 1);
            assert!(window.observe(WORK, SOON, now), "still within {seconds} s");
            now += Duration::from_millis(1);
            assert!(!window.observe(WORK, SOON, now), "after {seconds} s");
            (window.timed, window.late) = (0, 0);
        }
        assert!((0..WINDOW).all(|_| !window.observe(WORK, SOON, now)));
        assert_eq!(window.lasts, Duration::ZERO, "a good window is a fresh start");
    }
}
