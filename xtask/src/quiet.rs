//! Waiting until nothing else runs: a build that has just ended, as a rule.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

/// CPUs that are at work on a quiet machine, at most.
const QUIET: f64 = 0.2;
/// How long it is waited for.
const LONGEST: Duration = Duration::from_secs(120);
/// How long it is looked at.
const WHILE: Duration = Duration::from_secs(1);

/// Waits until the machine is quiet, or warns that it does not become so. Tells how many CPUs were
/// at work in the last second, where the system does.
pub(crate) fn wait() -> Option<f64> {
    let begin = Instant::now();
    let mut cpus = busy()?;
    if cpus > QUIET {
        let most = LONGEST.as_secs();
        eprintln!("{cpus:.1} CPUs are at work: waiting until they are not, {most} s at most");
    }
    while cpus > QUIET && begin.elapsed() < LONGEST {
        cpus = busy()?;
    }
    if cpus > QUIET {
        eprintln!("warning: others keep {cpus:.1} CPUs at work, which slows what is measured");
    }
    Some(cpus)
}

/// How many CPUs are at work, over a second.
fn busy() -> Option<f64> {
    let read = || Times::parse(&fs::read_to_string("/proc/stat").ok()?);
    let before = read()?;
    thread::sleep(WHILE);
    read()?.busy_since(&before)
}

/// What all CPUs together have done since the start of the system, in ticks.
struct Times {
    cpus: usize,
    all: u64,
    idle: u64,
}

impl Times {
    /// From the text of `/proc/stat`: a line for all CPUs, `cpu user nice system idle iowait irq
    /// softirq steal …`, then one for each. What guests take is a part of `user` and `nice`.
    fn parse(stat: &str) -> Option<Self> {
        let mut lines = stat.lines();
        let times = lines.next()?.strip_prefix("cpu ")?.split_whitespace().take(8);
        let times: Vec<u64> = times.map(|time| time.parse().ok()).collect::<Option<_>>()?;
        let cpus = lines.take_while(|line| line.starts_with("cpu")).count();
        Some(Self { cpus, all: times.iter().sum(), idle: times.get(3..5)?.iter().sum() })
    }

    fn busy_since(&self, before: &Self) -> Option<f64> {
        let all = self.all.checked_sub(before.all).filter(|all| *all > 0)?;
        // What waits for disks has been seen to count backwards.
        let idle = self.idle.saturating_sub(before.idle).min(all);
        Some(self.cpus as f64 * (all - idle) as f64 / all as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(first: &str) -> Option<Times> {
        Times::parse(&format!("{first}\ncpu0 1 2 3\ncpu1 1 2 3\nintr 9 9\n"))
    }

    #[test]
    fn what_is_neither_idle_nor_waiting_for_disks_is_at_work() {
        let before = times("cpu  100 0 50 1000 30 0 0 0 7 0").expect("times");
        let busy = |first| times(first).expect("times").busy_since(&before);
        assert_eq!(busy("cpu  200 0 50 1080 50 0 0 0 7 0"), Some(1.0));
        assert_eq!(busy("cpu  100 20 70 1100 30 20 20 20 999 0"), Some(1.0));
        assert_eq!(busy("cpu  100 0 50 1150 80 0 0 0 7 0"), Some(0.0));
        assert_eq!(busy("cpu  300 0 50 1000 30 0 0 0 7 0"), Some(2.0));
        assert_eq!(busy("cpu  100 0 50 1000 30 0 0 0 7 0"), None, "no time has passed");
    }

    #[test]
    fn what_is_no_such_text_tells_nothing() {
        for text in ["", "cpu0 1 2 3 4 5", "cpu  1 2 3 4", "cpu  1 2 3 x 5"] {
            assert!(times(text).is_none(), "{text}");
        }
    }
}
