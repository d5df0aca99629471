//! The threads that compress pages, and write and read the cold file.
//!
//! Jobs and answers pass through bounded queues together with their buffers, which come back and
//! are used again. The owner of the cache never waits for a thread unless it says so.

use std::io;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use oss_memory::file::RandomAccess;
use oss_memory::{Buffer, Pages};

use super::codec;
use super::format::Sizes;

/// Memory that has to be had beside another compressed page: for all those who cannot do without.
const MARGIN: usize = 4 << 20;

/// The longest that [`Wait::Briefly`] waits: a page that takes a disk longer is computed sooner.
const PATIENCE: Duration = Duration::from_millis(250);

/// How long to wait for a thread's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    Not,
    /// For [`PATIENCE`]; after waiting in vain not at all before the next answer has come, so that
    /// a disk that hangs costs so much only once.
    Briefly,
    /// Until there is one, or the thread is gone.
    Long,
}

/// A page or a slot on its way.
#[derive(Debug, Default)]
pub(super) struct Parcel {
    /// The slot in the file; of pages to be compressed: the sender's own number.
    pub(super) slot: u32,
    /// Of slots that are read: which request it was.
    pub(super) request: u32,
    pub(super) bytes: Vec<u8>,
    /// The compressed page: goes to the writer instead of a payload, comes from the packer.
    pub(super) packed: Option<Box<[u8]>>,
    /// Set by the worker: whether the file took or gave the bytes, or the page was compressed.
    pub(super) done: bool,
    /// Set by the packer: there was too little memory for the compressed page.
    pub(super) refused: bool,
}

/// One thread and its two queues.
#[derive(Debug)]
pub(super) struct Worker {
    jobs: Option<SyncSender<Parcel>>,
    /// Never locked: it makes the cache `Sync`, so that workers may read slots in parallel.
    answers: Mutex<Receiver<Parcel>>,
    spare: Vec<Vec<u8>>,
    /// Jobs without answer.
    waiting: usize,
    most: usize,
    /// Whether [`Wait::Briefly`] has been in vain since the last answer.
    hangs: bool,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    /// Writes slots: seals them, compressed payloads restored.
    pub(super) fn writer(file: Arc<RandomAccess>, sizes: Sizes, most: usize) -> io::Result<Worker> {
        Worker::start("oss-cache-write", most, move |parcel| {
            let is_whole = parcel
                .packed
                .take()
                .is_none_or(|packed| codec::restore(&packed, sizes.add_payload(&mut parcel.bytes)));
            // What is not must not be found under a right checksum.
            parcel.done = is_whole && {
                sizes.seal(&mut parcel.bytes);
                file.write_at(&parcel.bytes, sizes.offset(parcel.slot)).is_ok()
            };
        })
    }

    /// Reads slots.
    pub(super) fn reader(file: Arc<RandomAccess>, sizes: Sizes, most: usize) -> io::Result<Worker> {
        Worker::start("oss-cache-read", most, move |parcel| {
            parcel.done = file.read_at(&mut parcel.bytes, sizes.offset(parcel.slot)).is_ok();
        })
    }

    /// Compresses pages.
    pub(super) fn packer(most: usize) -> io::Result<Worker> {
        let mut scratch = Vec::new();
        Worker::start("oss-cache-pack", most, move |parcel| {
            scratch.clear();
            // What is not shorter than the page is not kept.
            let refused = scratch.try_reserve(parcel.bytes.len()).is_err();
            parcel.refused = refused || Buffer::new(MARGIN, Pages::Ordinary).is_err();
            parcel.done = !parcel.refused && codec::compress(&parcel.bytes, &mut scratch);
            if parcel.done {
                let packed = oss_memory::copy(&scratch);
                parcel.refused = packed.is_err();
                parcel.packed = packed.ok().map(Vec::into_boxed_slice);
            }
        })
    }

    pub(super) fn start(
        name: &str,
        most: usize,
        mut work: impl FnMut(&mut Parcel) + Send + 'static,
    ) -> io::Result<Worker> {
        let (jobs, taken): (SyncSender<Parcel>, Receiver<Parcel>) = sync_channel(most);
        let (answered, answers): (Sender<Parcel>, Receiver<Parcel>) = channel();
        let builder = std::thread::Builder::new().name(name.to_string());
        let run = move || {
            for mut parcel in taken {
                work(&mut parcel);
                if answered.send(parcel).is_err() {
                    return;
                }
            }
        };
        let thread = Some(builder.spawn(run)?);
        let answers = Mutex::new(answers);
        let (jobs, spare) = (Some(jobs), Vec::new());
        Ok(Worker { jobs, answers, spare, waiting: 0, most, hangs: false, thread })
    }

    /// Whether a job would be taken.
    pub(super) fn has_room(&self) -> bool {
        self.waiting < self.most
    }

    /// An empty buffer with room for so many bytes; none when as many jobs as allowed are waiting,
    /// or memory is refused.
    pub(super) fn buffer(&mut self, bytes: usize) -> Option<Vec<u8>> {
        if !self.has_room() {
            return None;
        }
        let mut buffer = self.spare.pop().unwrap_or_default();
        buffer.clear();
        buffer.try_reserve_exact(bytes).is_ok().then_some(buffer)
    }

    /// Queues a job; false when the thread is gone.
    pub(super) fn send(&mut self, parcel: Parcel) -> bool {
        let sent = self.jobs.as_ref().is_some_and(|jobs| jobs.try_send(parcel).is_ok());
        self.waiting += usize::from(sent);
        sent
    }

    /// Whether jobs are without an answer.
    pub(super) fn is_busy(&self) -> bool {
        self.waiting > 0
    }

    fn answers(&mut self) -> &mut Receiver<Parcel> {
        self.answers.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next answer, if it is there or comes while this waits. None when nothing is waiting, or
    /// the thread is gone.
    pub(super) fn answer(&mut self, wait: Wait) -> Option<Parcel> {
        if self.waiting == 0 {
            return None;
        }
        let hangs = self.hangs;
        let answers = self.answers();
        let parcel = match wait {
            Wait::Briefly if !hangs => answers.recv_timeout(PATIENCE).ok(),
            Wait::Not | Wait::Briefly => answers.try_recv().ok(),
            Wait::Long => answers.recv().ok(),
        };
        self.hangs = parcel.is_none() && (hangs || wait == Wait::Briefly);
        self.waiting -= usize::from(parcel.is_some());
        parcel
    }

    /// Gives a buffer back.
    pub(super) fn recycle(&mut self, bytes: Vec<u8>) {
        self.spare.push(bytes);
    }
}

impl Drop for Worker {
    /// Ends the thread after the jobs that are queued.
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("a thread of the cache's tiers has panicked");
        }
    }
}
