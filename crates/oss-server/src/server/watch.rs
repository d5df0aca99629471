//! Looks after the engine's step thread, how fast it draws, and the model's files.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::app::App;
use crate::error::Error;
use crate::phase::Phase;

/// How often to look.
const PERIOD: Duration = Duration::from_millis(500);

/// The throughput is that of so many periods.
const WINDOW: usize = 10;

/// Runs until the engine is gone or its files are damaged, which fails the server.
pub(super) async fn watch(app: Arc<App>) {
    app.reached(Phase::Ready).await;
    let Some(engine) = app.loaded() else {
        // It failed, or was ended, before there was anything to watch.
        return std::future::pending().await;
    };
    let mut ticks = interval(PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut pulse = Pulse { beats: 0, since: Instant::now() };
    let mut drawn = VecDeque::with_capacity(WINDOW + 1);
    loop {
        let now = ticks.tick().await;
        let Some(beats) = engine.pulse() else {
            return app.fail(Error::EngineOver);
        };
        if let Err(error) = engine.check_integrity() {
            return app.fail(Error::Damaged(error));
        }
        let stalled = pulse.silence(beats, now) > app.options.stall_timeout;
        if stalled != app.books.is_stalled() {
            tracing::warn!(stalled, "the engine's step thread");
        }
        app.books.set_stalled(stalled);
        drawn.push_back((now, engine.metrics().completion_tokens));
        if drawn.len() > WINDOW {
            drawn.pop_front();
        }
        app.books.set_throughput(rate(&drawn));
    }
}

/// Tokens a second from the first sample to the last.
fn rate(drawn: &VecDeque<(Instant, u64)>) -> f64 {
    let (Some((began, first)), Some((ended, last))) = (drawn.front(), drawn.back()) else {
        return 0.0;
    };
    let seconds = (*ended - *began).as_secs_f64();
    if seconds > 0.0 { (last - first) as f64 / seconds } else { 0.0 }
}

/// When the step thread was last seen to go on.
struct Pulse {
    beats: u64,
    since: Instant,
}

impl Pulse {
    /// How long it has stood still, seen at `now` with so many beats.
    fn silence(&mut self, beats: u64, now: Instant) -> Duration {
        if beats != self.beats {
            *self = Self { beats, since: now };
        }
        now - self.since
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_does_not_go_on_is_silent_for_as_long() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let mut pulse = Pulse { beats: 3, since: start };
        assert_eq!(pulse.silence(3, after(5)), Duration::from_secs(5));
        assert_eq!(pulse.silence(4, after(6)), Duration::ZERO);
        assert_eq!(pulse.silence(4, after(9)), Duration::from_secs(3));
    }

    #[test]
    fn the_rate_is_that_of_the_window() {
        let start = Instant::now();
        let drawn = [(start, 10), (start + Duration::from_secs(4), 50)].into_iter().collect();
        assert_eq!(rate(&drawn), 10.0);
        assert_eq!(rate(&VecDeque::new()), 0.0);
    }
}
