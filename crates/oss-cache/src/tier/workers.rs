//! The threads that compress pages, and write and read the cold file.
//!
//! Jobs and answers pass through bounded queues together with their buffers, which come back and
//! are used again. The owner of the cache never waits for a thread unless it says so.

use std::io;
use std::sync::mpsc::{
    Receiver, RecvTimeoutError, Sender, SyncSender, TryRecvError, channel, sync_channel,
};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use oss_memory::file::RandomAccess;
use oss_memory::{Buffer, Pages};

use super::codec;
use super::cold::begin;
use super::format::{SECTOR, Sizes};

/// Memory that has to be had beside another compressed page: for all those who cannot do without.
const MARGIN: usize = 4 << 20;

/// The longest that one call waits for a disk, all its pages together: what takes a disk longer is
/// computed sooner.
pub(super) const PATIENCE: Duration = Duration::from_millis(250);

/// How long to wait for a thread's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    No,
    /// As long as the patience with this thread lasts: see [`Worker::renew_patience`].
    Briefly,
    /// Until there is one, or the thread is gone.
    Forever,
}

/// A page or a slot on its way.
#[derive(Debug, Default)]
pub(super) struct Job {
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
    jobs: Option<SyncSender<Job>>,
    /// Never locked: it makes the cache `Sync`, so that workers may read slots in parallel.
    answers: Mutex<Receiver<Job>>,
    spare: Vec<Vec<u8>>,
    /// Jobs without answer.
    waiting: usize,
    most: usize,
    /// What is left of [`PATIENCE`].
    patience: Duration,
    /// Whether an answer has come since the patience was whole.
    has_answered: bool,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    /// Writes slots: seals them, compressed payloads restored; before the first one a file's
    /// header that is `due`.
    pub(super) fn writer(
        file: Arc<RandomAccess>,
        sizes: Sizes,
        mut due: Option<[u8; SECTOR]>,
        most: usize,
    ) -> io::Result<Worker> {
        let mut refuses = false;
        Worker::start("oss-cache-write", most, move |job| {
            let is_whole = job
                .packed
                .take()
                .is_none_or(|packed| codec::restore(&packed, sizes.add_payload(&mut job.bytes)));
            // What is not must not be found under a right checksum.
            if !is_whole {
                return;
            }
            sizes.seal(&mut job.bytes);
            let begun = due.map_or(Ok(()), |header| begin(&file, &header));
            let written = begun.and_then(|()| {
                due = None;
                file.write_at(&job.bytes, sizes.offset(job.slot))
            });
            if let Err(error) = &written
                && !refuses
            {
                tracing::warn!(%error, "a page could not be written to the file of cold pages");
            }
            refuses = written.is_err();
            job.done = !refuses;
        })
    }

    /// Reads slots.
    pub(super) fn reader(file: Arc<RandomAccess>, sizes: Sizes, most: usize) -> io::Result<Worker> {
        Worker::start("oss-cache-read", most, move |job| {
            job.done = file.read_at(&mut job.bytes, sizes.offset(job.slot)).is_ok();
        })
    }

    /// Compresses pages.
    pub(super) fn packer(most: usize) -> io::Result<Worker> {
        let mut scratch = Vec::new();
        Worker::start("oss-cache-pack", most, move |job| {
            scratch.clear();
            // What is not shorter than the page is not kept.
            let refused = scratch.try_reserve(job.bytes.len()).is_err();
            job.refused = refused || Buffer::new(MARGIN, Pages::Ordinary).is_err();
            job.done = !job.refused && codec::compress(&job.bytes, &mut scratch);
            if job.done {
                let packed = oss_memory::try_to_vec(&scratch);
                job.refused = packed.is_err();
                job.packed = packed.ok().map(Vec::into_boxed_slice);
            }
        })
    }

    pub(super) fn start(
        name: &str,
        most: usize,
        mut work: impl FnMut(&mut Job) + Send + 'static,
    ) -> io::Result<Worker> {
        let (jobs, taken): (SyncSender<Job>, Receiver<Job>) = sync_channel(most);
        let (answered, answers): (Sender<Job>, Receiver<Job>) = channel();
        let builder = std::thread::Builder::new().name(name.to_string());
        let run = move || {
            for mut job in taken {
                work(&mut job);
                if answered.send(job).is_err() {
                    return;
                }
            }
        };
        let thread = Some(builder.spawn(run)?);
        let answers = Mutex::new(answers);
        let (jobs, spare) = (Some(jobs), Vec::new());
        Ok(Worker {
            jobs,
            answers,
            spare,
            waiting: 0,
            most,
            patience: PATIENCE,
            has_answered: false,
            thread,
        })
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

    /// Whether a job that needs so many bytes would be taken: [`Worker::buffer`] gives them then.
    pub(super) fn prepare(&mut self, bytes: usize) -> bool {
        let buffer = self.buffer(bytes);
        let had = buffer.is_some();
        self.spare.extend(buffer);
        had
    }

    /// Queues a job; false when the thread is gone.
    pub(super) fn send(&mut self, job: Job) -> bool {
        let sent = self.jobs.as_ref().is_some_and(|jobs| jobs.try_send(job).is_ok());
        self.waiting += usize::from(sent);
        sent
    }

    /// Whether jobs are without an answer.
    pub(super) fn is_busy(&self) -> bool {
        self.waiting > 0
    }

    fn answers(&mut self) -> &mut Receiver<Job> {
        self.answers.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    /// Another call begins: its patience is whole, unless the last one's ended in vain and there
    /// was no answer since. So a disk that hangs costs so much only once.
    pub(super) fn renew_patience(&mut self) {
        if std::mem::take(&mut self.has_answered) {
            self.patience = PATIENCE;
        }
    }

    /// Patience begins anew, whatever was waited for in vain.
    pub(super) fn be_patient(&mut self) {
        self.patience = PATIENCE;
    }

    /// The next answer, if it is there or comes while this waits. None when nothing is waiting, or
    /// the thread is gone, and with it all that was waiting.
    pub(super) fn answer(&mut self, wait: Wait) -> Option<Job> {
        if self.waiting == 0 {
            return None;
        }
        let patience = self.patience;
        let answers = self.answers();
        let answer = match wait {
            Wait::No => answers.try_recv().map_err(|none| none == TryRecvError::Disconnected),
            Wait::Briefly => {
                let begin = Instant::now();
                let answer = answers.recv_timeout(patience);
                self.patience = patience.saturating_sub(begin.elapsed());
                answer.map_err(|none| none == RecvTimeoutError::Disconnected)
            }
            Wait::Forever => answers.recv().map_err(|_| true),
        };
        match answer {
            Ok(_) => {
                self.waiting -= 1;
                self.has_answered = true;
            }
            Err(true) => self.waiting = 0,
            Err(false) => {}
        }
        answer.ok()
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
