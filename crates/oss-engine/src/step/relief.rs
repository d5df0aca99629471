//! What becomes of the cache when the machine runs short of memory.
//!
//! Slots of experts stay: under a budget close to the machine's memory, where they matter most,
//! memory is always short, and each slot that is given back is read from the disk for every token.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use oss_memory::pressure::{Level, Pressure};

use crate::step::Scheduler;

/// How often the system is asked while steps run.
const EVERY: Duration = Duration::from_millis(500);
/// How often while nothing runs.
const EVERY_IDLE: Duration = Duration::from_secs(1);
/// This part of the resident pages goes when memory stalls without a limit that says how many.
const PART: usize = 8;
/// This part of what the cache was made for is left to running requests to go on with.
const LEFT: usize = 16;

/// Asks the system, and remembers what it made the cache do.
pub(crate) struct Relief {
    root: PathBuf,
    next: Instant,
    /// Bytes of resident pages that the cache may have now, where that is less than it was made
    /// for.
    limit: Option<usize>,
}

impl Relief {
    pub(crate) fn new(root: PathBuf) -> Self {
        Self { root, next: Instant::now(), limit: None }
    }
}

impl Scheduler {
    /// Asks the system now and then, and shrinks what is kept for reuse, or lets it grow again.
    pub(crate) fn relieve(&mut self) {
        let now = Instant::now();
        if now < self.relief.next {
            return;
        }
        self.relief.next = now + EVERY;
        let pressure = match Pressure::read_under(&self.relief.root) {
            Ok(pressure) => pressure,
            Err(error) => {
                tracing::warn!(%error, "the system's memory pressure cannot be read");
                return;
            }
        };
        let level = pressure.level();
        if level == Level::Calm {
            self.grow();
            return;
        }
        let least = self.bytes_to_give() / PART;
        let wanted = usize::try_from(pressure.shed_bytes()).unwrap_or(usize::MAX);
        let wanted = wanted.max(least).max(1);
        match level {
            Level::Critical if self.gives_pages() => self.shed_all(),
            Level::Critical => {
                self.repeats.clear();
                self.shed(usize::MAX);
            }
            _ => self.shed(wanted),
        }
    }

    /// When an idle engine asks again; none where it has nothing to give.
    pub(crate) fn next_relief(&self) -> Option<Instant> {
        (self.bytes_to_give() > 0).then(|| self.relief.next + (EVERY_IDLE - EVERY))
    }

    /// Whether the system gets the memory of resident pages back: not where it was set aside.
    pub(crate) fn gives_pages(&self) -> bool {
        self.cache.bytes_reserved() == 0
    }

    /// Bytes that the system could get back from the cache, if no request used any.
    fn bytes_to_give(&self) -> usize {
        let resident = if self.gives_pages() { self.cache.bytes_resident() } else { 0 };
        resident + self.cache.warm_bytes()
    }

    /// Gives back about so many bytes: compressed pages first, then pages kept for reuse, then what
    /// sessions keep, the longest unused first; these only where that gives memory back.
    fn shed(&mut self, bytes: usize) {
        let (resident, warm) = (self.cache.bytes_resident(), self.cache.warm_bytes());
        self.cache.set_warm_limit(warm.saturating_sub(bytes));
        let rest = bytes.saturating_sub(warm);
        if rest > 0 && self.gives_pages() {
            let wanted = resident.saturating_sub(rest);
            let least = wanted.max(self.cache_options.capacity_bytes / LEFT);
            while self.limit_cache(wanted) > least
                && self.cache.bytes_resident() > least
                && self.sessions.give_up_oldest(&mut self.cache)
            {}
        }
        self.count_shed(resident + warm);
    }

    /// Gives up all pages that no running request needs, also where the system gets no memory back:
    /// a step may want pages.
    pub(crate) fn shed_all(&mut self) {
        let before = self.cache.bytes_resident() + self.cache.warm_bytes();
        while self.sessions.give_up_oldest(&mut self.cache) {}
        self.repeats.clear();
        self.cache.set_warm_limit(0);
        self.limit_cache(0);
        self.count_shed(before);
    }

    /// Lets the cache grow again, an eighth at a time.
    fn grow(&mut self) {
        let Some(limit) = self.relief.limit else {
            self.cache.set_warm_limit(self.cache_options.warm_bytes);
            return;
        };
        let most = self.cache_options.capacity_bytes;
        let limit = limit.saturating_add((most / PART).max(1));
        if limit < most {
            self.limit_cache(limit);
        } else {
            self.lift_limit();
        }
    }

    /// Lets the cache have what it was made for; false when it has that already.
    pub(crate) fn lift_limit(&mut self) -> bool {
        let limited = self.relief.limit.take().is_some();
        if limited {
            self.set_capacity(self.cache_options.capacity_bytes);
        }
        limited
    }

    /// Bytes that resident pages may have now.
    pub(crate) fn cache_limit(&self) -> usize {
        self.relief.limit.unwrap_or(self.cache_options.capacity_bytes)
    }

    /// Whether the cache may have less than it was made for.
    pub(crate) const fn is_limited(&self) -> bool {
        self.relief.limit.is_some()
    }

    /// Lets resident pages have so many bytes, but never less than running requests and sessions
    /// use and a sixteenth to go on with; returns how many they may have.
    pub(crate) fn limit_cache(&mut self, bytes: usize) -> usize {
        let used: usize = (0..self.cache.shape().groups.len())
            .map(|group| self.cache.pages(group))
            .map(|pages| (pages.in_use - pages.idle) * pages.page_bytes)
            .sum();
        let most = self.cache_options.capacity_bytes;
        let limit = bytes.max(used + most / LEFT).min(most);
        self.relief.limit = (limit < most).then_some(limit);
        self.set_capacity(limit);
        limit
    }

    fn set_capacity(&mut self, bytes: usize) {
        if let Err(error) = self.cache.set_capacity(bytes) {
            tracing::warn!(%error, "the system does not take memory back");
        }
    }

    fn count_shed(&mut self, before: usize) {
        let after = self.cache.bytes_resident() + self.cache.warm_bytes();
        let shed = before.saturating_sub(after);
        if shed > 0 {
            tracing::info!(bytes = shed, "the cache gave memory back");
            self.recorder.lock().shed_bytes += shed as u64;
        }
    }
}
