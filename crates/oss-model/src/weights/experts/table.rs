//! Which expert is in memory, which is coming, and which goes.

use super::frequency::Frequency;
use super::prediction_record::PredictionRecord;
use super::{ExpertUse, Place, Slot, parts};
use oss_memory::{Error, OwnedSlice};
use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;
use std::time::Instant;

/// Where an expert is.
#[derive(Debug)]
pub(super) enum Residency {
    /// In the file alone.
    OnDisk,
    /// On its way.
    Loading(Loading),
    /// In memory; `used`: somebody needed it since it came, or no layer predicted it.
    Resident { slot: Arc<Slot>, used: bool },
    /// It was needed and could not be read.
    Failed(Error),
}

/// Why an expert is read, the most urgent first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Priority {
    /// A step waits for it.
    Needed,
    /// A layer before predicted it.
    Predicted,
    /// It was popular in an earlier run.
    Popular,
}

/// An expert on its way.
#[derive(Debug)]
pub(super) struct Loading {
    /// The parts of its slot that have come, in order.
    parts: Vec<Option<OwnedSlice>>,
    missing: usize,
    priority: Priority,
    failed: Option<Error>,
}

/// One read: a part of an expert.
#[derive(Debug)]
pub(super) struct ReadJob {
    pub(super) piece: OwnedSlice,
    pub(super) offset: u64,
    /// Bytes of it that the file must have: it may end within the last block.
    pub(super) needed: usize,
    id: usize,
    part: usize,
}

/// All experts by number, the free slots, and what is to be read.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) frequency: Frequency,
    pub(super) prediction_record: PredictionRecord,
    places: Vec<Place>,
    states: Vec<Residency>,
    /// How many of them are in the file alone.
    on_disk: usize,
    free: Vec<OwnedSlice>,
    /// Reads that nobody has begun, by why.
    queues: [VecDeque<ReadJob>; 3],
    /// Experts to be read while nothing else is and slots are free, in order.
    popular: VecDeque<usize>,
    counts: ExpertUse,
    /// Jobs that are queued or being read, and since when there is any.
    jobs: usize,
    since: Instant,
    closed: bool,
}

impl Table {
    /// Nothing is in memory. Every piece takes any expert; what was popular before gets them first.
    pub(super) fn new(places: Vec<Place>, free: Vec<OwnedSlice>, frequency: Frequency) -> Self {
        Self {
            popular: frequency.popular().into(),
            frequency,
            prediction_record: PredictionRecord::default(),
            states: places.iter().map(|_| Residency::OnDisk).collect(),
            on_disk: places.len(),
            places,
            free,
            queues: Default::default(),
            counts: ExpertUse::default(),
            jobs: 0,
            since: Instant::now(),
            closed: false,
        }
    }

    /// Nothing is read any more.
    pub(super) fn close(&mut self) {
        self.closed = true;
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    pub(super) fn state(&self, id: usize) -> &Residency {
        &self.states[id]
    }

    /// Whether any expert is in the file alone.
    pub(super) const fn lacks_any(&self) -> bool {
        self.on_disk > 0
    }

    /// Puts another state in the place of an expert's.
    fn replace(&mut self, id: usize, state: Residency) -> Residency {
        self.on_disk += usize::from(matches!(state, Residency::OnDisk));
        let before = mem::replace(&mut self.states[id], state);
        self.on_disk -= usize::from(matches!(before, Residency::OnDisk));
        before
    }

    pub(super) fn counts(&self) -> ExpertUse {
        let mut counts = self.counts;
        if self.jobs > 0 {
            counts.reading_seconds += self.since.elapsed().as_secs_f64();
        }
        counts
    }

    /// How long until an expert is here, by order.
    pub(super) fn distance(&self, id: usize) -> usize {
        match &self.states[id] {
            Residency::Resident { .. } => 0,
            Residency::Loading(_) => 1,
            Residency::OnDisk | Residency::Failed(_) => 2,
        }
    }

    /// Counts that a step needs an expert, and whether it is here.
    pub(super) fn need(&mut self, id: usize) {
        match &mut self.states[id] {
            Residency::Resident { used, .. } => {
                self.counts.hits += 1;
                if !mem::replace(used, true) {
                    self.counts.predicted_used += 1;
                    self.counts.missed_bytes += self.places[id].bytes as u64;
                }
            }
            Residency::Loading(_) | Residency::OnDisk => self.counts.misses += 1,
            Residency::Failed(_) => {
                // A step that had failed before; this one tries again.
                self.counts.misses += 1;
                self.replace(id, Residency::OnDisk);
            }
        }
    }

    /// The expert's slot, if it is here: it stays while the slot is held.
    pub(super) fn pin(&self, id: usize) -> Option<Arc<Slot>> {
        match &self.states[id] {
            Residency::Resident { slot, .. } => Some(slot.clone()),
            _ => None,
        }
    }

    /// Sees to it that an expert comes, unless it is here. False when no slot can be had: all are
    /// held, on their way, or of those that `is_kept` names.
    pub(super) fn ask(
        &mut self,
        id: usize,
        priority: Priority,
        is_kept: impl Fn(usize) -> bool,
    ) -> bool {
        match &mut self.states[id] {
            Residency::Resident { .. } | Residency::Failed(_) => true,
            Residency::Loading(loading) => {
                if priority == Priority::Needed && loading.priority != priority {
                    let before = mem::replace(&mut loading.priority, priority);
                    self.hurry(id, before);
                }
                true
            }
            Residency::OnDisk => match self.free.pop().or_else(|| self.evict(is_kept)) {
                Some(piece) => {
                    self.read(id, piece, priority);
                    true
                }
                None => false,
            },
        }
    }

    /// What is read for another reason is needed now: its reads go before those that are not.
    fn hurry(&mut self, id: usize, before: Priority) {
        if before == Priority::Predicted {
            self.counts.predicted_used += 1;
            self.counts.missed_bytes += self.places[id].bytes as u64;
        }
        let queue = &mut self.queues[before as usize];
        let (mine, others) = mem::take(queue).into_iter().partition(|job| job.id == id);
        let mine: VecDeque<ReadJob> = mine;
        *queue = others;
        self.queues[Priority::Needed as usize].extend(mine);
    }

    /// Takes the slot of the expert that is least likely to be needed; one that was predicted and
    /// not used yet is needed soon.
    fn evict(&mut self, is_kept: impl Fn(usize) -> bool) -> Option<OwnedSlice> {
        let mut least: Option<(usize, f32)> = None;
        for (id, state) in self.states.iter().enumerate() {
            let Residency::Resident { slot, used } = state else { continue };
            let value = self.frequency.chance(id) + f32::from(!used);
            let is_less = least.is_none_or(|(_, least)| value.total_cmp(&least).is_lt());
            // Slots are pinned under the lock that the caller has: one that nobody holds stays so.
            if is_less && Arc::strong_count(slot) == 1 && !is_kept(id) {
                least = Some((id, value));
            }
        }
        let (id, _) = least?;
        match self.replace(id, Residency::OnDisk) {
            Residency::Resident { slot, used } => {
                self.counts.predicted_wasted += u64::from(!used);
                Some(Arc::into_inner(slot).expect("nobody else holds the slot").piece)
            }
            other => panic!("expert {id} is {other:?}, expected it in a slot"),
        }
    }

    /// Queues the reads of an expert.
    fn read(&mut self, id: usize, piece: OwnedSlice, priority: Priority) {
        let place = self.places[id];
        let begin = place.offset - place.lead() as u64;
        let end = place.lead() + place.bytes;
        if self.jobs == 0 {
            self.since = Instant::now();
        }
        let (mut missing, mut rest) = (0, Some(piece));
        let (mut slots, queue) = (Vec::new(), &mut self.queues[priority as usize]);
        for part in parts(place.span()) {
            let (piece, behind) = rest.take().expect("parts lie within the slot").split(part.len());
            rest = Some(behind);
            let offset = begin + part.start as u64;
            let needed = part.end.min(end) - part.start;
            let job = ReadJob { piece, offset, needed, id, part: missing };
            if priority == Priority::Predicted {
                // A later layer's experts have higher numbers, and more time.
                let at = queue.partition_point(|other| other.id <= id);
                queue.insert(at, job);
            } else {
                queue.push_back(job);
            }
            slots.push(None);
            missing += 1;
        }
        // What a shorter expert leaves of its slot waits where the parts do.
        slots.push(rest);
        self.jobs += missing;
        self.counts.read_bytes += place.span() as u64;
        match priority {
            Priority::Needed => self.counts.missed_bytes += place.bytes as u64,
            Priority::Predicted => self.counts.predicted += 1,
            Priority::Popular => self.counts.popular_bytes += place.span() as u64,
        }
        self.replace(
            id,
            Residency::Loading(Loading { parts: slots, missing, priority, failed: None }),
        );
    }

    /// The next read.
    pub(super) fn next_job(&mut self) -> Option<ReadJob> {
        self.next_queued().or_else(|| {
            self.read_popular();
            self.next_queued()
        })
    }

    fn next_queued(&mut self) -> Option<ReadJob> {
        self.queues.iter_mut().find_map(VecDeque::pop_front)
    }

    /// Queues the reads of the next expert that was popular, while slots are free.
    fn read_popular(&mut self) {
        while let Some(id) = self.popular.pop_front() {
            if matches!(self.states[id], Residency::OnDisk) {
                match self.free.pop() {
                    Some(piece) => self.read(id, piece, Priority::Popular),
                    None => self.popular.clear(),
                }
                break;
            }
        }
    }

    /// Takes a read's result; true when the expert is here now, or has failed.
    pub(super) fn finish(&mut self, job: ReadJob, outcome: Result<(), Error>) -> bool {
        self.jobs -= 1;
        if self.jobs == 0 {
            self.counts.reading_seconds += self.since.elapsed().as_secs_f64();
        }
        let Residency::Loading(loading) = &mut self.states[job.id] else {
            panic!("expert {} is not on its way, but a part of it came", job.id);
        };
        loading.parts[job.part] = Some(job.piece);
        loading.missing -= 1;
        if let Err(error) = outcome {
            loading.failed.get_or_insert(error);
        }
        if loading.missing > 0 {
            return false;
        }
        let piece = loading.parts.drain(..).flatten().reduce(OwnedSlice::join);
        let piece = piece.expect("a slot has parts");
        let (priority, failed) = (loading.priority, loading.failed.take());
        let state = match failed {
            None => {
                let slot = Arc::new(Slot { piece, lead: self.places[job.id].lead() });
                Residency::Resident { slot, used: priority != Priority::Predicted }
            }
            Some(error) => {
                self.free.push(piece);
                // Who needs it reads it again, and is told then.
                if priority == Priority::Needed {
                    Residency::Failed(error)
                } else {
                    Residency::OnDisk
                }
            }
        };
        self.replace(job.id, state);
        true
    }

    /// Where an expert that failed lies, and why it did; it may be asked for again.
    pub(super) fn take_failure(&mut self, id: usize) -> (Place, Error) {
        match self.replace(id, Residency::OnDisk) {
            Residency::Failed(error) => (self.places[id], error),
            other => panic!("expert {id} is {other:?}, expected a failure"),
        }
    }
}
