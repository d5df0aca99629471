//! What becomes of the cache, and of experts in slots, when the system runs short of memory.
//!
//! What is kept for reuse goes first: it may never be asked for again, while every token needs
//! experts, and each one that is not in a slot is read from the disk. Slots follow where that is
//! not enough, and come back by themselves once there is room for them.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use oss_memory::pressure::{Level, Pressure};

use crate::step::Scheduler;

/// How often the system is asked while steps run.
const EVERY: Duration = Duration::from_millis(500);
/// How often while nothing runs.
const EVERY_IDLE: Duration = Duration::from_secs(1);
/// This part of the resident pages goes when memory stalls without a limit that says how many; and
/// this part of the slots where memory is critical.
const PART: usize = 8;
/// This part of the slots goes where memory is tight: stalls are those of the last ten seconds, in
/// which nearly all would go by eighths.
const PART_OF_SLOTS: usize = 32;

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
    /// Asks the system now and then, and shrinks what is kept for reuse and then the slots of
    /// experts, or lets them grow again.
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
            self.take_slots_again(pressure.spare_bytes());
            return;
        }
        let least = (self.cache.bytes_resident() + self.cache.warm_bytes()) / PART;
        let wanted = usize::try_from(pressure.shed_bytes()).unwrap_or(usize::MAX);
        let wanted = wanted.max(least).max(1);
        let (shed, part) = match level {
            Level::Critical => (self.shed_all(), PART),
            _ => (self.shed(wanted), PART_OF_SLOTS),
        };
        if shed < wanted {
            self.give_slots_back(wanted - shed, part);
        }
    }

    /// When an idle engine asks again; none where it has nothing to give.
    pub(crate) fn next_relief(&self) -> Option<Instant> {
        let least = self.model.slots_of_a_token();
        let has_slots =
            self.model.weights.expert_use().is_some_and(|experts| {
                experts.slots_in_use > least || experts.slots_given_back > 0
            });
        let has = has_slots || self.cache.bytes_resident() + self.cache.warm_bytes() > 0;
        has.then(|| self.relief.next + (EVERY_IDLE - EVERY))
    }

    /// Gives back about so many bytes: compressed pages first, then pages kept for reuse. Tells how
    /// many it gave.
    fn shed(&mut self, bytes: usize) -> usize {
        let (resident, warm) = (self.cache.bytes_resident(), self.cache.warm_bytes());
        self.cache.set_warm_limit(warm.saturating_sub(bytes));
        let rest = bytes.saturating_sub(warm);
        if rest > 0 {
            self.limit_cache(resident.saturating_sub(rest));
        }
        self.count_shed(resident + warm)
    }

    /// Gives back all pages that no running request needs; tells how many bytes they were.
    pub(crate) fn shed_all(&mut self) -> usize {
        let before = self.cache.bytes_resident() + self.cache.warm_bytes();
        while self.sessions.give_up_oldest(&mut self.cache) {}
        self.repeats.clear();
        self.cache.set_warm_limit(0);
        self.limit_cache(0);
        self.count_shed(before)
    }

    /// Gives back slots of experts with about so many bytes, and that part of those in use at
    /// least, but never those that a token needs.
    fn give_slots_back(&mut self, bytes: usize, part: usize) {
        let Some(before) = self.model.weights.expert_use() else { return };
        let n = bytes.div_ceil(before.slot_bytes).max(before.slots_in_use.div_ceil(part));
        let least = self.model.slots_of_a_token();
        let slots = before.slots_in_use.saturating_sub(n).max(least);
        if slots >= before.slots {
            return;
        }
        let after = self.resize_slots(slots);
        let bytes = before.slots_in_use.saturating_sub(after) * before.slot_bytes;
        if bytes == 0 {
            return;
        }
        tracing::info!(slots = after, bytes, "experts gave memory back");
        self.recorder.lock().shed_bytes += bytes as u64;
    }

    /// Takes slots again that were given back, an eighth of all at a time, as far as there is room.
    fn take_slots_again(&mut self, spare: Option<u64>) {
        let Some(experts) = self.model.weights.expert_use() else { return };
        if experts.slots_given_back == 0 {
            return;
        }
        let all = experts.slots + experts.slots_given_back;
        let spare = spare.map_or(usize::MAX, |spare| usize::try_from(spare).unwrap_or(usize::MAX));
        // Those that are still empty will take some of it.
        let empty = experts.slots - experts.slots_in_use;
        let n = (spare / experts.slot_bytes).saturating_sub(empty).min(all.div_ceil(PART));
        self.resize_slots(experts.slots + n);
    }

    /// Lets experts have so many slots; tells how many they use then.
    fn resize_slots(&mut self, slots: usize) -> usize {
        if let Err(error) = self.model.weights.resize_slots(slots) {
            tracing::warn!(%error, "the system does not take slots of experts back");
        }
        self.model.weights.expert_use().map_or(0, |experts| experts.slots_in_use)
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

    /// Whether the cache may have less than it was made for.
    pub(crate) const fn is_limited(&self) -> bool {
        self.relief.limit.is_some()
    }

    /// Lets resident pages have so many bytes, but never less than running requests use and a
    /// sixteenth to go on with.
    pub(crate) fn limit_cache(&mut self, bytes: usize) {
        let used: usize = (0..self.cache.shape().groups.len())
            .map(|group| self.cache.pages(group))
            .map(|pages| (pages.in_use - pages.idle) * pages.page_bytes)
            .sum();
        let most = self.cache_options.capacity_bytes;
        let limit = bytes.max(used + most / 16).min(most);
        self.relief.limit = (limit < most).then_some(limit);
        self.set_capacity(limit);
    }

    fn set_capacity(&mut self, bytes: usize) {
        if let Err(error) = self.cache.set_capacity(bytes) {
            tracing::warn!(%error, "the system does not take memory back");
        }
    }

    fn count_shed(&mut self, before: usize) -> usize {
        let after = self.cache.bytes_resident() + self.cache.warm_bytes();
        let shed = before.saturating_sub(after);
        tracing::info!(bytes = shed, "the cache gave memory back");
        self.recorder.lock().shed_bytes += shed as u64;
        shed
    }
}
