//! The file of slots: which page lies where, and how it gets there and back.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::ops::Range;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use oss_memory::file::RandomAccess;

use super::format::{Label, Parsed, SECTOR, Sizes};
use super::workers::{Job, Wait, Worker};
use crate::arena::PageBytes;
use crate::policy::{EvictionPolicy, Policy};
use crate::stats::ColdStats;
use crate::tree::NodeId;
use crate::{Error, Result};

/// Threads that read headers while a file is opened: a disk answers many at once as soon as one.
const SCANNERS: usize = 16;
/// Headers that are worth a thread.
const LEAST_SCANNED: usize = 64;
/// How long a file may be in use by another process before that is an error: one that looks
/// whether it is old and unused holds it for a moment, and so does a child of this process before
/// it runs its own program.
const LOCK_PATIENCE: Duration = Duration::from_millis(100);
/// After so long a disk that has refused a write may take one.
const REFUSED_FOR: Duration = Duration::from_secs(60);

/// Where cold pages go.
#[derive(Clone, Debug)]
pub struct ColdOptions {
    /// The file, made when there is none, and then for this user alone: it holds prompts. One cache
    /// at a time uses it.
    pub path: PathBuf,
    /// The file's size at most, in bytes.
    pub bytes: u64,
    /// Pages that may wait to be written, and as many to be read; one more is written later where
    /// memory keeps it, else waited for, though not for long.
    pub queue: usize,
    /// Everything that decides bits: model, packed layout, format of keys and values, instruction
    /// set, activation type, version of the numerics. A file with another key counts as empty.
    pub content_key: u64,
}

/// A slot's owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) block: NodeId,
    pub(crate) group: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    /// In use; its bytes are in the file, and on their way from there where a request is named.
    Written {
        owner: Owner,
        request: Option<u32>,
    },
    /// In use; its bytes are on their way.
    Writing(Owner),
    /// Given up while its bytes were on their way.
    Abandoned,
}

/// A page on its way to the file.
#[derive(Debug)]
pub(crate) enum Payload<'a> {
    /// As it is.
    Plain(PageBytes<'a>),
    /// Compressed, and its length when it is not; the thread that writes restores it.
    Packed(Box<[u8]>, usize),
}

/// Whether the disk takes writes of one kind. Once it has refused one, one a minute is tried.
#[derive(Debug, Default)]
struct Willingness {
    again: Option<Instant>,
}

impl Willingness {
    fn may_be_tried(&self) -> bool {
        self.again.is_none_or(|again| again <= Instant::now())
    }

    /// One more is on its way.
    fn tried(&mut self) {
        if self.again.is_some() {
            self.refused();
        }
    }

    fn refused(&mut self) {
        self.again = Some(Instant::now() + REFUSED_FOR);
    }
}

/// A slot found in the file of an earlier process.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) slot: u32,
    /// When it was last used, or left memory for the file, by the tree's clock.
    pub(crate) used: u64,
    pub(crate) hash: u64,
    pub(crate) parent: u64,
    pub(crate) index: u32,
    pub(crate) group: usize,
    pub(crate) tokens: Vec<u32>,
}

/// What the headers of some slots say.
#[derive(Debug, Default)]
struct Scanned {
    found: Vec<Found>,
    bad_slots: u64,
    foreign: u64,
}

/// The cold tier.
#[derive(Debug)]
pub(crate) struct Cold {
    file: Arc<RandomAccess>,
    sizes: Sizes,
    /// Of the slots that the file has; it may grow to `slots` of them.
    states: Vec<State>,
    slots: u32,
    /// Whether the file has room for a slot already: it was there, or written to.
    has_place: Vec<bool>,
    /// Free slots that have.
    free: Vec<u32>,
    /// Free ones that have not: the disk has refused them.
    refused: BTreeSet<u32>,
    /// Whether the disk takes what makes the file longer, and what does not.
    growth: Willingness,
    overwriting: Willingness,
    /// Orders the slots in use.
    pub(super) order: Box<dyn Policy>,
    writer: Worker,
    reader: Worker,
    /// The number of the last request to read a slot.
    requests: u32,
    /// Of the hashes in the file.
    seed: u64,
    buffer: Vec<u8>,
    pub(crate) stats: ColdStats,
}

impl Cold {
    /// Opens the file and lists what it holds. Of the shape: tokens of a page, and bytes of a page
    /// of each group.
    pub(crate) fn open(
        options: &ColdOptions,
        policy: EvictionPolicy,
        key: u64,
        (page_tokens, page_bytes): (usize, &[usize]),
    ) -> Result<(Cold, Vec<Found>)> {
        let most = page_bytes.iter().copied().max().unwrap_or(0);
        let sizes = Sizes::new(page_tokens, most, key);
        let slots = options.bytes.saturating_sub(SECTOR as u64) / sizes.slot as u64;
        let slots = u32::try_from(slots).unwrap_or(u32::MAX - 1);
        if slots == 0 {
            let expected = (SECTOR + sizes.slot) as u64;
            return Err(Error::ColdCapacity { got: options.bytes, expected });
        }
        let file = Arc::new(open_locked(&options.path)?);
        let mut stats = ColdStats::default();
        // As random as the keys of the standard library's hash tables.
        let seed = RandomState::new().hash_one(&options.path);
        let (seed, due) = begin_or_go_on(&file, &sizes, seed, &mut stats)?;
        let queue = options.queue.max(1);
        let thread = |cause| Error::Thread { cause };
        let mut cold = Cold {
            writer: Worker::writer(file.clone(), sizes, due, queue).map_err(thread)?,
            reader: Worker::reader(file.clone(), sizes, queue).map_err(thread)?,
            file,
            sizes,
            states: Vec::new(),
            slots,
            has_place: Vec::new(),
            free: Vec::new(),
            refused: BTreeSet::new(),
            growth: Willingness::default(),
            overwriting: Willingness::default(),
            order: policy.build(),
            requests: 0,
            seed,
            // Pages are read one by one, and never larger.
            buffer: oss_memory::try_zeroed(sizes.header + most)?,
            stats,
        };
        // Whatever a file that could not be begun holds is not this one's.
        let found = if due.is_some() { Vec::new() } else { cold.scan(page_bytes)? };
        Ok((cold, found))
    }

    /// Reads the headers of all slots.
    fn scan(&mut self, page_bytes: &[usize]) -> Result<Vec<Found>> {
        let len = self.file.len()?;
        let end = self.sizes.offset(self.slots);
        if len > end {
            self.stats.failed_writes += u64::from(self.file.set_len(end).is_err());
        }
        let count = self.sizes.slots_begun(len).min(self.slots);
        self.states = vec![State::Free; count as usize];
        self.has_place = vec![true; count as usize];
        let share = (count as usize).div_ceil(SCANNERS).max(LEAST_SCANNED);
        let (file, sizes) = (&*self.file, &self.sizes);
        let scanned: Vec<Scanned> = thread::scope(|scope| {
            let start = |first: u32| {
                let slots = first..first.saturating_add(share as u32).min(count);
                let read = move || scan_slots(file, sizes, slots, page_bytes);
                thread::Builder::new().name("oss-cache-scan".into()).spawn_scoped(scope, read)
            };
            let scanners: Vec<_> =
                (0..count).step_by(share).map(start).collect::<io::Result<_>>()?;
            let join = |scanner: thread::ScopedJoinHandle<'_, Scanned>| scanner.join();
            let scanned = scanners.into_iter().map(join).collect::<thread::Result<_>>();
            Ok(scanned.unwrap_or_else(|panic| resume_unwind(panic)))
        })
        .map_err(|cause| Error::Thread { cause })?;
        let mut found = Vec::with_capacity(count as usize);
        for part in scanned {
            found.extend(part.found);
            self.stats.bad_slots += part.bad_slots;
            self.stats.foreign += part.foreign;
        }
        Ok(found)
    }

    /// Takes over slots of an earlier process; the policy learns of them in this order, the page
    /// that has been in use least lately first.
    pub(crate) fn claim(&mut self, claimed: &[(&Found, Owner)]) {
        for &(found, owner) in claimed {
            self.states[found.slot as usize] = State::Written { owner, request: None };
            self.order.insert(found.slot, content(found.hash, found.group), 0);
            self.stats.restored_slots += 1;
        }
        let is_free = |slot: &u32| self.states[*slot as usize] == State::Free;
        self.free = (0..self.states.len() as u32).rev().filter(is_free).collect();
    }

    /// The seed of the hashes in the file.
    pub(crate) fn seed(&self) -> u64 {
        self.seed
    }

    pub(crate) fn owner(&self, slot: u32) -> Option<Owner> {
        match self.states[slot as usize] {
            State::Written { owner, .. } | State::Writing(owner) => Some(owner),
            State::Free | State::Abandoned => None,
        }
    }

    /// Slots in use.
    pub(crate) fn in_use(&self) -> usize {
        self.order.len()
    }

    /// Whether a page could be stored now without waiting.
    pub(crate) fn has_room_in_queue(&self) -> bool {
        self.writer.has_room()
    }

    /// Whether a page could be stored now without waiting, if there is a slot: then
    /// [`Cold::store`] has memory for it.
    pub(crate) fn prepare(&mut self) -> bool {
        self.writer.prepare(self.sizes.slot)
    }

    /// Another call of the cache begins that may wait for the thread that writes.
    pub(crate) fn renew_patience(&mut self) {
        self.writer.renew_patience();
    }

    /// A free slot, if there is one and while the disk takes what goes there: one that has been
    /// written before, else one that makes the file longer.
    pub(crate) fn free_slot(&mut self) -> Option<u32> {
        if self.overwriting.may_be_tried()
            && let Some(slot) = self.free.pop()
        {
            self.overwriting.tried();
            return Some(slot);
        }
        let next = self.states.len() as u32;
        if self.refused.is_empty() && next >= self.slots || !self.growth.may_be_tried() {
            return None;
        }
        self.growth.tried();
        self.refused.pop_first().or_else(|| {
            self.states.push(State::Free);
            self.has_place.push(false);
            Some(next)
        })
    }

    /// Makes a slot free that is not in use.
    fn set_free(&mut self, slot: u32) {
        self.states[slot as usize] = State::Free;
        match self.has_place[slot as usize] {
            true => self.free.push(slot),
            false => drop(self.refused.insert(slot)),
        }
    }

    /// Whether a slot is one that the disk has had no room for.
    pub(crate) fn is_refused(&self, slot: u32) -> bool {
        !self.has_place[slot as usize]
    }

    /// The slot in use that should go first among those whose owner is `evictable`; none while the
    /// disk refuses what is written over others.
    pub(crate) fn victim(
        &mut self,
        mut evictable: impl FnMut(Owner) -> bool,
    ) -> Option<(u32, Owner)> {
        if !self.overwriting.may_be_tried() {
            return None;
        }
        let states = &self.states;
        let slot = self.order.victim(&mut |slot| match states[slot as usize] {
            State::Written { owner, .. } => evictable(owner),
            _ => false,
        })?;
        let owner = self.owner(slot)?;
        self.states[slot as usize] = State::Free;
        self.overwriting.tried();
        self.stats.evicted_pages += 1;
        Some((slot, owner))
    }

    /// Sends a page that was used so often, at last at that time, to a slot that
    /// [`Cold::free_slot`] or [`Cold::victim`] has given after [`Cold::prepare`]; false (and the
    /// slot free) when the thread that writes is gone.
    pub(crate) fn store(
        &mut self,
        slot: u32,
        owner: Owner,
        (uses, used): (u8, u64),
        label: &Label,
        payload: Payload<'_>,
    ) -> bool {
        let sent = self.writer.buffer(self.sizes.slot).is_some_and(|mut bytes| {
            let packed = match payload {
                Payload::Plain(page) => {
                    self.sizes.compose(label, used, page.len(), &mut bytes);
                    page.append_to(&mut bytes);
                    None
                }
                Payload::Packed(packed, page_bytes) => {
                    self.sizes.compose(label, used, page_bytes, &mut bytes);
                    Some(packed)
                }
            };
            self.writer.send(Job { slot, bytes, packed, ..Job::default() })
        });
        if !sent {
            self.stats.failed_writes += 1;
            self.set_free(slot);
            return false;
        }
        self.states[slot as usize] = State::Writing(owner);
        self.order.insert(slot, content(label.hash, owner.group), uses);
        true
    }

    /// Gives a slot up.
    pub(crate) fn forget(&mut self, slot: u32) {
        self.order.remove(slot);
        match self.states[slot as usize] {
            State::Writing(_) => self.states[slot as usize] = State::Abandoned,
            State::Written { .. } => self.set_free(slot),
            State::Free | State::Abandoned => {}
        }
    }

    /// Takes note of one finished write, waiting for it if asked to. An error is a slot that could
    /// not be written and whose owner must do without.
    pub(crate) fn written(&mut self, wait: Wait) -> Option<std::result::Result<(), u32>> {
        let Job { slot, bytes, done, .. } = self.writer.answer(wait)?;
        let written_bytes = bytes.len() as u64;
        self.writer.recycle(bytes);
        let had_place = std::mem::replace(&mut self.has_place[slot as usize], done);
        let kind = if had_place { &mut self.overwriting } else { &mut self.growth };
        if done {
            *kind = Willingness::default();
            self.stats.written_bytes += written_bytes;
        } else {
            kind.refused();
            self.stats.failed_writes += 1;
        }
        match self.states[slot as usize] {
            State::Abandoned => self.set_free(slot),
            State::Writing(owner) => {
                self.stats.written_pages += u64::from(done);
                self.states[slot as usize] = State::Written { owner, request: None };
                return Some(if done { Ok(()) } else { Err(slot) });
            }
            State::Free | State::Written { .. } => {
                unreachable!("slot {slot} was not being written")
            }
        }
        Some(Ok(()))
    }

    /// Waits a moment for a finished write, whatever was waited for in vain before.
    pub(crate) fn wait_for_written(&mut self) -> Option<std::result::Result<(), u32>> {
        self.writer.be_patient();
        self.written(Wait::Briefly)
    }

    /// Whether any slot's bytes are on their way to the file.
    pub(crate) fn is_writing_any(&self) -> bool {
        self.writer.is_busy()
    }

    /// Whether a slot's bytes are still on their way to the file.
    pub(crate) fn is_writing(&self, slot: u32) -> bool {
        matches!(self.states[slot as usize], State::Writing(_))
    }

    /// Reads the page of `page_bytes` bytes from a written slot; none when it does not hold that
    /// page whole.
    pub(crate) fn load(&mut self, slot: u32, label: &Label, page_bytes: usize) -> Option<&[u8]> {
        self.buffer.resize(self.sizes.header + page_bytes, 0);
        let read = self.file.read_at(&mut self.buffer, self.sizes.offset(slot)).is_ok();
        let payload = self.sizes.open(&self.buffer, label, page_bytes).filter(|_| read);
        count(&mut self.stats, self.buffer.len(), payload)
    }

    /// Asks for a slot's bytes in the background; false when the queue is full, memory is refused,
    /// or it is on its way.
    pub(crate) fn fetch(&mut self, slot: u32, page_bytes: usize) -> bool {
        let State::Written { owner, request: None } = self.states[slot as usize] else {
            return false;
        };
        let Some(mut bytes) = self.reader.buffer(self.sizes.slot) else { return false };
        bytes.resize(self.sizes.header + page_bytes, 0);
        self.requests = self.requests.wrapping_add(1);
        let request = self.requests;
        let sent = self.reader.send(Job { slot, request, bytes, ..Job::default() });
        if sent {
            self.states[slot as usize] = State::Written { owner, request: Some(request) };
        }
        sent
    }

    /// Whether slots are being fetched, those included that were given up meanwhile.
    pub(crate) fn is_fetching(&self) -> bool {
        self.reader.is_busy()
    }

    /// A fetched slot and its bytes (empty when they could not be read); the slot is none when
    /// it was given up meanwhile, whoever has it now.
    pub(crate) fn fetched(&mut self, wait: Wait) -> Option<(Option<u32>, Vec<u8>)> {
        let Job { slot, request, mut bytes, done, .. } = self.reader.answer(wait)?;
        if !done {
            bytes.clear();
        }
        match &mut self.states[slot as usize] {
            State::Written { request: asked, .. } if *asked == Some(request) => {
                *asked = None;
                Some((Some(slot), bytes))
            }
            _ => Some((None, bytes)),
        }
    }

    /// Waits a moment for a slot that is being fetched.
    pub(crate) fn wait_for_fetched(&mut self) -> Option<(Option<u32>, Vec<u8>)> {
        self.reader.be_patient();
        self.fetched(Wait::Briefly)
    }

    /// The page of `page_bytes` bytes in fetched bytes; none when they do not hold that page.
    pub(crate) fn unpack<'a>(
        &mut self,
        bytes: &'a [u8],
        label: &Label,
        page_bytes: usize,
    ) -> Option<&'a [u8]> {
        count(&mut self.stats, bytes.len(), self.sizes.open(bytes, label, page_bytes))
    }

    pub(crate) fn recycle(&mut self, bytes: Vec<u8>) {
        self.reader.recycle(bytes);
    }

    /// Makes what has been written durable.
    pub(crate) fn sync(&self) -> Result<()> {
        Ok(self.file.sync()?)
    }

    /// Empties the file once nothing is on its way there any more.
    pub(crate) fn discard(self) -> Result<()> {
        let Cold { file, writer, reader, .. } = self;
        // Its thread ends after what is queued.
        drop(writer);
        drop(reader);
        file.set_len(0)?;
        Ok(file.sync()?)
    }
}

/// Begins a file anew. Without this header, nobody will take for pages what is written after it.
pub(super) fn begin(file: &RandomAccess, header: &[u8; SECTOR]) -> oss_memory::Result<()> {
    file.set_len(0)?;
    file.write_at(header, 0)
}

/// The seed in a file's header. A file that belongs to something else is begun anew, with `seed`;
/// where the disk refuses that, also the header that is still due.
fn begin_or_go_on(
    file: &RandomAccess,
    sizes: &Sizes,
    seed: u64,
    stats: &mut ColdStats,
) -> Result<(u64, Option<[u8; SECTOR]>)> {
    let len = file.len()?;
    let mut header = [0; SECTOR];
    if len >= SECTOR as u64 {
        file.read_at(&mut header, 0)?;
    }
    let known = sizes.seed_of(&header);
    let written = match known {
        // Written again, so that the file's time tells when it was used last.
        Some(_) => file.write_at(&header, 0),
        None => {
            stats.foreign += u64::from(len > 0);
            header = sizes.file_header(seed);
            begin(file, &header)
        }
    };
    if let Err(error) = &written {
        stats.failed_writes += 1;
        tracing::warn!(%error, "the file of cold pages takes no header");
    }
    let is_due = known.is_none() && written.is_err();
    Ok((known.unwrap_or(seed), is_due.then_some(header)))
}

/// Reads the headers of some slots.
fn scan_slots(
    file: &RandomAccess,
    sizes: &Sizes,
    slots: Range<u32>,
    page_bytes: &[usize],
) -> Scanned {
    let mut scanned = Scanned::default();
    let mut header = vec![0; sizes.header];
    for slot in slots {
        let mut tokens = Vec::new();
        let read = file.read_at(&mut header, sizes.offset(slot)).is_ok();
        let parsed = match read {
            true => sizes.parse(&header, &mut tokens),
            false => Parsed::Torn,
        };
        match parsed {
            Parsed::Slot { label, used, payload } => {
                let Label { hash, parent, index, group, .. } = label;
                let group = group as usize;
                if page_bytes.get(group) == Some(&payload) {
                    scanned.found.push(Found { slot, used, hash, parent, index, group, tokens });
                } else {
                    scanned.bad_slots += 1;
                }
            }
            // A hole in the file was never written.
            Parsed::Torn => {
                scanned.bad_slots += u64::from(header.iter().any(|&byte| byte != 0));
            }
            Parsed::Foreign => scanned.foreign += 1,
        }
    }
    scanned
}

/// What the policy knows a page by: the groups of a block have one hash.
fn content(hash: u64, group: usize) -> u64 {
    hash ^ (group as u64) << 48
}

/// Counts what reading a slot of `bytes` bytes has given.
fn count<'a>(stats: &mut ColdStats, bytes: usize, payload: Option<&'a [u8]>) -> Option<&'a [u8]> {
    match payload {
        Some(_) => stats.read_bytes += bytes as u64,
        None => stats.bad_slots += 1,
    }
    payload
}

/// Opens the file and keeps other processes out of it: one that removes unused files may have
/// removed this one between the two.
fn open_locked(path: &Path) -> Result<RandomAccess> {
    let begin = Instant::now();
    loop {
        let file = RandomAccess::open_private(path)?;
        if file.try_lock()? {
            if file.has_its_name()? {
                return Ok(file);
            }
        } else if begin.elapsed() < LOCK_PATIENCE {
            thread::sleep(LOCK_PATIENCE / 50);
        } else {
            return Err(Error::InUse { path: path.to_path_buf() });
        }
    }
}

#[cfg(test)]
mod tests;
