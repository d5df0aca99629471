//! Which expert is in memory, which is coming, and which goes.

use super::foresight::Foresight;
use super::frequency::Frequency;
use super::{ExpertUse, Place, Slot, parts};
use oss_memory::{Error, Piece};
use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;
use std::time::Instant;

/// Where an expert is.
#[derive(Debug)]
pub(super) enum State {
    /// In the file alone.
    InFile,
    /// On its way.
    Coming(Coming),
    /// In memory; `used`: somebody needed it since it came, or nobody foresaw it.
    Here { slot: Arc<Slot>, used: bool },
    /// It was needed and could not be read.
    Failed(Error),
}

/// Why an expert is read, the most urgent first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// A step waits for it.
    Needed,
    /// A layer before foresaw it.
    Foreseen,
    /// It was popular in an earlier run.
    Popular,
}

/// An expert on its way.
#[derive(Debug)]
pub(super) struct Coming {
    /// The parts of its slot that have come, in order.
    parts: Vec<Option<Piece>>,
    missing: usize,
    why: Why,
    failed: Option<Error>,
}

/// One read: a part of an expert.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) piece: Piece,
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
    pub(super) foresight: Foresight,
    places: Vec<Place>,
    states: Vec<State>,
    free: Vec<Piece>,
    /// Reads that nobody has begun, by why.
    queues: [VecDeque<Job>; 3],
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
    pub(super) fn new(places: Vec<Place>, free: Vec<Piece>, frequency: Frequency) -> Self {
        Self {
            popular: frequency.popular().into(),
            frequency,
            foresight: Foresight::default(),
            states: places.iter().map(|_| State::InFile).collect(),
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

    pub(super) fn state(&self, id: usize) -> &State {
        &self.states[id]
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
            State::Here { .. } => 0,
            State::Coming(_) => 1,
            State::InFile | State::Failed(_) => 2,
        }
    }

    /// Counts that a step needs an expert, and whether it is here.
    pub(super) fn need(&mut self, id: usize) {
        match &mut self.states[id] {
            State::Here { used, .. } => {
                self.counts.hits += 1;
                if !mem::replace(used, true) {
                    self.counts.foreseen_used += 1;
                    self.counts.missed_bytes += self.places[id].bytes as u64;
                }
            }
            State::Coming(_) | State::InFile => self.counts.misses += 1,
            State::Failed(_) => {
                // A step that had failed before; this one tries again.
                self.counts.misses += 1;
                self.states[id] = State::InFile;
            }
        }
    }

    /// The expert's slot, if it is here: it stays while the slot is held.
    pub(super) fn pin(&self, id: usize) -> Option<Arc<Slot>> {
        match &self.states[id] {
            State::Here { slot, .. } => Some(slot.clone()),
            _ => None,
        }
    }

    /// Sees to it that an expert comes, unless it is here. False when no slot can be had: all are
    /// held, on their way, or of those that `is_kept` names.
    pub(super) fn ask(&mut self, id: usize, why: Why, is_kept: impl Fn(usize) -> bool) -> bool {
        match &mut self.states[id] {
            State::Here { .. } | State::Failed(_) => true,
            State::Coming(coming) => {
                if why == Why::Needed && coming.why != why {
                    let before = mem::replace(&mut coming.why, why);
                    self.hurry(id, before);
                }
                true
            }
            State::InFile => match self.free.pop().or_else(|| self.evict(is_kept)) {
                Some(piece) => {
                    self.read(id, piece, why);
                    true
                }
                None => false,
            },
        }
    }

    /// What is read for another reason is needed now: its reads go before those that are not.
    fn hurry(&mut self, id: usize, before: Why) {
        if before == Why::Foreseen {
            self.counts.foreseen_used += 1;
            self.counts.missed_bytes += self.places[id].bytes as u64;
        }
        let queue = &mut self.queues[before as usize];
        let (mine, others) = mem::take(queue).into_iter().partition(|job| job.id == id);
        let mine: VecDeque<Job> = mine;
        *queue = others;
        self.queues[Why::Needed as usize].extend(mine);
    }

    /// Takes the slot of the expert that is least likely to be needed; one that was foreseen and
    /// not used yet is needed soon.
    fn evict(&mut self, is_kept: impl Fn(usize) -> bool) -> Option<Piece> {
        let value = |id: usize| match &self.states[id] {
            // Slots are pinned under the lock that the caller has: one that nobody holds stays so.
            State::Here { slot, used } if Arc::strong_count(slot) == 1 && !is_kept(id) => {
                Some(self.frequency.chance(id) + f32::from(!used))
            }
            _ => None,
        };
        let values = (0..self.states.len()).filter_map(|id| Some((id, value(id)?)));
        let (id, _) = values.min_by(|(_, a), (_, b)| a.total_cmp(b))?;
        match mem::replace(&mut self.states[id], State::InFile) {
            State::Here { slot, used } => {
                self.counts.foreseen_wasted += u64::from(!used);
                Some(Arc::into_inner(slot).expect("nobody else holds the slot").piece)
            }
            other => panic!("expert {id} is {other:?}, expected it in a slot"),
        }
    }

    /// Queues the reads of an expert.
    fn read(&mut self, id: usize, piece: Piece, why: Why) {
        let place = self.places[id];
        let begin = place.offset - place.lead() as u64;
        let end = place.lead() + place.bytes;
        if self.jobs == 0 {
            self.since = Instant::now();
        }
        let (mut missing, mut rest) = (0, Some(piece));
        let (mut slots, queue) = (Vec::new(), &mut self.queues[why as usize]);
        for part in parts(place.span()) {
            let (piece, behind) = rest.take().expect("parts lie within the slot").split(part.len());
            rest = Some(behind);
            let offset = begin + part.start as u64;
            let needed = part.end.min(end) - part.start;
            let job = Job { piece, offset, needed, id, part: missing };
            if why == Why::Foreseen {
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
        match why {
            Why::Needed => self.counts.missed_bytes += place.bytes as u64,
            Why::Foreseen => self.counts.foreseen += 1,
            Why::Popular => self.counts.popular_bytes += place.span() as u64,
        }
        self.states[id] = State::Coming(Coming { parts: slots, missing, why, failed: None });
    }

    /// The next read.
    pub(super) fn next_job(&mut self) -> Option<Job> {
        self.next_queued().or_else(|| {
            self.read_popular();
            self.next_queued()
        })
    }

    fn next_queued(&mut self) -> Option<Job> {
        self.queues.iter_mut().find_map(VecDeque::pop_front)
    }

    /// Queues the reads of the next expert that was popular, while slots are free.
    fn read_popular(&mut self) {
        while let Some(id) = self.popular.pop_front() {
            if matches!(self.states[id], State::InFile) {
                match self.free.pop() {
                    Some(piece) => self.read(id, piece, Why::Popular),
                    None => self.popular.clear(),
                }
                break;
            }
        }
    }

    /// Takes a read's result; true when the expert is here now, or has failed.
    pub(super) fn finish(&mut self, job: Job, outcome: Result<(), Error>) -> bool {
        self.jobs -= 1;
        if self.jobs == 0 {
            self.counts.reading_seconds += self.since.elapsed().as_secs_f64();
        }
        let State::Coming(coming) = &mut self.states[job.id] else {
            panic!("expert {} is not on its way, but a part of it came", job.id);
        };
        coming.parts[job.part] = Some(job.piece);
        coming.missing -= 1;
        if let Err(error) = outcome {
            coming.failed.get_or_insert(error);
        }
        if coming.missing > 0 {
            return false;
        }
        let piece = coming.parts.drain(..).flatten().reduce(Piece::join);
        let piece = piece.expect("a slot has parts");
        let (why, failed) = (coming.why, coming.failed.take());
        self.states[job.id] = match failed {
            None => {
                let slot = Arc::new(Slot { piece, lead: self.places[job.id].lead() });
                State::Here { slot, used: why != Why::Foreseen }
            }
            Some(error) => {
                self.free.push(piece);
                // Who needs it reads it again, and is told then.
                if why == Why::Needed { State::Failed(error) } else { State::InFile }
            }
        };
        true
    }

    /// Where an expert that failed lies, and why it did; it may be asked for again.
    pub(super) fn take_failure(&mut self, id: usize) -> (Place, Error) {
        match mem::replace(&mut self.states[id], State::InFile) {
            State::Failed(error) => (self.places[id], error),
            other => panic!("expert {id} is {other:?}, expected a failure"),
        }
    }
}
