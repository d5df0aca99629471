//! The file of slots: which page lies where, and how it gets there and back.

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
use super::workers::{Parcel, Wait, Worker};
use crate::arena::PageBytes;
use crate::policy::{Policy, PolicyKind};
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
const PATIENCE: Duration = Duration::from_millis(100);

/// Where cold pages go.
#[derive(Clone, Debug)]
pub struct ColdOptions {
    /// The file, made when there is none, and then for this user alone: it holds prompts. One cache
    /// at a time uses it.
    pub path: PathBuf,
    /// The file's size at most, in bytes.
    pub bytes: u64,
    /// Pages that may wait to be written, and as many to be read; one more is dropped, or waited
    /// for where nothing else has it.
    pub queue: usize,
    /// Everything that decides bits: model, packed layout, format of keys and values, instruction
    /// set, activation type, version of the numerics. A file with another key counts as empty.
    pub content_key: u64,
}

/// A slot's owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    pub(crate) block: NodeId,
    pub(crate) group: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    /// In use; its bytes are in the file, and on their way from there where a request is named.
    Written(Slot, Option<u32>),
    /// In use; its bytes are on their way.
    Writing(Slot),
    /// Given up while its bytes were on their way.
    Abandoned,
}

/// A page on its way to the file.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Payload<'a> {
    /// As it is.
    Plain(PageBytes<'a>),
    /// Compressed, and its length when it is not; the thread that writes restores it.
    Packed(&'a [u8], usize),
}

/// A slot found in the file of an earlier process.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) slot: u32,
    /// When it was written, or last used where the end of a process wrote it, by the tree's clock.
    pub(crate) used: u64,
    pub(crate) hash: u64,
    pub(crate) parent: u64,
    pub(crate) block: u32,
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
    free: Vec<u32>,
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
    /// Opens the file and lists what it holds, the oldest first. Of the shape: tokens of a page,
    /// and bytes of a page of each group.
    pub(crate) fn open(
        options: &ColdOptions,
        policy: PolicyKind,
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
        let queue = options.queue.max(1);
        let thread = |cause| Error::Thread { cause };
        let mut cold = Cold {
            writer: Worker::writer(file.clone(), sizes, queue).map_err(thread)?,
            reader: Worker::reader(file.clone(), sizes, queue).map_err(thread)?,
            file,
            sizes,
            states: Vec::new(),
            slots,
            free: Vec::new(),
            order: policy.build(),
            requests: 0,
            // As random as the keys of the standard library's hash tables.
            seed: RandomState::new().hash_one(&options.path),
            // Pages are read one by one, and never larger.
            buffer: oss_memory::zeros(sizes.header + most)?,
            stats: ColdStats::default(),
        };
        let mut found = cold.scan(page_bytes)?;
        found.sort_by_key(|found| found.used);
        Ok((cold, found))
    }

    /// Reads the headers of all slots; starts the file anew when it belongs to something else.
    fn scan(&mut self, page_bytes: &[usize]) -> Result<Vec<Found>> {
        let len = self.file.len()?;
        let mut header = [0; SECTOR];
        let readable = len >= SECTOR as u64 && self.file.read_at(&mut header, 0).is_ok();
        let Some(seed) = self.sizes.seed_of(&header).filter(|_| readable) else {
            self.stats.foreign += u64::from(len > 0);
            // Without this header, nobody will take for pages what is written after it.
            let header = self.sizes.file_header(self.seed);
            let begun = self.file.set_len(0).and_then(|()| self.file.write_at(&header, 0));
            self.stats.failed_writes += u64::from(begun.is_err());
            return Ok(Vec::new());
        };
        self.seed = seed;
        // Written again, so that the file's time tells when it was used last.
        self.stats.failed_writes += u64::from(self.file.write_at(&header, 0).is_err());
        let end = self.sizes.offset(self.slots);
        if len > end {
            self.stats.failed_writes += u64::from(self.file.set_len(end).is_err());
        }
        let count = self.sizes.slots_begun(len).min(self.slots);
        self.states = vec![State::Free; count as usize];
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
    pub(crate) fn claim(&mut self, claimed: &[(&Found, Slot)]) {
        for &(found, owner) in claimed {
            self.states[found.slot as usize] = State::Written(owner, None);
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

    pub(crate) fn owner(&self, slot: u32) -> Option<Slot> {
        match self.states[slot as usize] {
            State::Written(owner, _) | State::Writing(owner) => Some(owner),
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

    /// A free slot, if there is one.
    pub(crate) fn free_slot(&mut self) -> Option<u32> {
        self.free.pop().or_else(|| {
            let slot = self.states.len() as u32;
            let more = slot < self.slots;
            more.then(|| {
                self.states.push(State::Free);
                slot
            })
        })
    }

    /// The slot in use that should go first among those whose owner is `evictable`.
    pub(crate) fn victim(
        &mut self,
        mut evictable: impl FnMut(Slot) -> bool,
    ) -> Option<(u32, Slot)> {
        let states = &self.states;
        let slot = self.order.victim(&mut |slot| match states[slot as usize] {
            State::Written(owner, _) => evictable(owner),
            _ => false,
        })?;
        let owner = self.owner(slot)?;
        self.states[slot as usize] = State::Free;
        self.stats.evicted_pages += 1;
        Some((slot, owner))
    }

    /// Sends a page that was used so often, at last at that time, to a slot that
    /// [`Cold::free_slot`] or [`Cold::victim`] has given; false (and the slot free) when the queue
    /// is full, or memory is refused.
    pub(crate) fn store(
        &mut self,
        slot: u32,
        owner: Slot,
        (uses, used): (u8, u64),
        label: &Label,
        payload: Payload<'_>,
    ) -> bool {
        let Some(mut bytes) = self.writer.buffer(self.sizes.slot) else {
            return self.drop_write(slot);
        };
        let packed = match payload {
            Payload::Plain(page) => {
                self.sizes.compose(label, used, page.len(), &mut bytes);
                page.append_to(&mut bytes);
                None
            }
            Payload::Packed(packed, page_bytes) => {
                let Ok(packed) = oss_memory::copy(packed) else { return self.drop_write(slot) };
                self.sizes.compose(label, used, page_bytes, &mut bytes);
                Some(packed.into_boxed_slice())
            }
        };
        if !self.writer.send(Parcel { slot, bytes, packed, ..Parcel::default() }) {
            self.stats.failed_writes += 1;
            self.free.push(slot);
            return false;
        }
        self.states[slot as usize] = State::Writing(owner);
        self.order.insert(slot, content(label.hash, owner.group), uses);
        true
    }

    /// Does without writing a page for which a slot was taken.
    fn drop_write(&mut self, slot: u32) -> bool {
        self.stats.dropped_writes += 1;
        self.free.push(slot);
        false
    }

    /// Gives a slot up.
    pub(crate) fn forget(&mut self, slot: u32) {
        self.order.remove(slot);
        match self.states[slot as usize] {
            State::Writing(_) => self.states[slot as usize] = State::Abandoned,
            State::Written(..) => {
                self.states[slot as usize] = State::Free;
                self.free.push(slot);
            }
            State::Free | State::Abandoned => {}
        }
    }

    /// Takes note of one finished write, waiting for it if asked to; `Some(Some(slot))` is a slot
    /// that could not be written and whose owner must do without.
    pub(crate) fn written(&mut self, wait: Wait) -> Option<Option<u32>> {
        let parcel = self.writer.answer(wait)?;
        let slot = parcel.slot;
        self.stats.written_bytes += if parcel.done { parcel.bytes.len() as u64 } else { 0 };
        self.writer.recycle(parcel.bytes);
        match self.states[slot as usize] {
            State::Abandoned => {
                self.states[slot as usize] = State::Free;
                self.free.push(slot);
            }
            State::Writing(owner) if parcel.done => {
                self.stats.written_pages += 1;
                self.states[slot as usize] = State::Written(owner, None);
            }
            State::Writing(owner) => {
                self.stats.failed_writes += 1;
                self.states[slot as usize] = State::Written(owner, None);
                return Some(Some(slot));
            }
            State::Free | State::Written(..) => unreachable!("slot {slot} was not being written"),
        }
        Some(None)
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
        let State::Written(owner, None) = self.states[slot as usize] else { return false };
        let Some(mut bytes) = self.reader.buffer(self.sizes.slot) else { return false };
        bytes.resize(self.sizes.header + page_bytes, 0);
        self.requests = self.requests.wrapping_add(1);
        let request = self.requests;
        let sent = self.reader.send(Parcel { slot, request, bytes, ..Parcel::default() });
        if sent {
            self.states[slot as usize] = State::Written(owner, Some(request));
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
        let Parcel { slot, request, mut bytes, done, .. } = self.reader.answer(wait)?;
        if !done {
            bytes.clear();
        }
        match &mut self.states[slot as usize] {
            State::Written(_, fetch) if *fetch == Some(request) => {
                *fetch = None;
                Some((Some(slot), bytes))
            }
            _ => Some((None, bytes)),
        }
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
                let Label { hash, parent, block, group, .. } = label;
                let group = group as usize;
                if page_bytes.get(group) == Some(&payload) {
                    scanned.found.push(Found { slot, used, hash, parent, block, group, tokens });
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
        } else if begin.elapsed() < PATIENCE {
            thread::sleep(PATIENCE / 50);
        } else {
            return Err(Error::InUse { path: path.to_path_buf() });
        }
    }
}

#[cfg(test)]
mod tests;
