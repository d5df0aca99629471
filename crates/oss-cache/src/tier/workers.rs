//! The threads that write and read the cold file.
//!
//! Jobs and answers pass through bounded queues together with their buffers, which come back and
//! are used again. The owner of the cache never waits for a thread unless it says so.

use std::io;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use oss_memory::file::RandomAccess;

use super::format::Sizes;

/// A slot's bytes on their way.
#[derive(Debug)]
pub(super) struct Parcel {
    pub(super) slot: u32,
    pub(super) bytes: Vec<u8>,
    /// Set by the worker: whether the file took or gave the bytes.
    pub(super) done: bool,
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
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    /// Writes sealed slots.
    pub(super) fn writer(file: Arc<RandomAccess>, sizes: Sizes, most: usize) -> io::Result<Worker> {
        Worker::start("oss-cache-write", most, move |jobs, answers| {
            for mut parcel in jobs {
                sizes.seal(&mut parcel.bytes);
                parcel.done = file.write_at(&parcel.bytes, sizes.offset(parcel.slot)).is_ok();
                if answers.send(parcel).is_err() {
                    return;
                }
            }
        })
    }

    /// Reads slots.
    pub(super) fn reader(file: Arc<RandomAccess>, sizes: Sizes, most: usize) -> io::Result<Worker> {
        Worker::start("oss-cache-read", most, move |jobs, answers| {
            for mut parcel in jobs {
                parcel.done = file.read_at(&mut parcel.bytes, sizes.offset(parcel.slot)).is_ok();
                if answers.send(parcel).is_err() {
                    return;
                }
            }
        })
    }

    fn start(
        name: &str,
        most: usize,
        work: impl FnOnce(Receiver<Parcel>, Sender<Parcel>) + Send + 'static,
    ) -> io::Result<Worker> {
        let (jobs, taken) = sync_channel(most);
        let (answered, answers) = channel();
        let builder = std::thread::Builder::new().name(name.to_string());
        let thread = Some(builder.spawn(move || work(taken, answered))?);
        let answers = Mutex::new(answers);
        Ok(Worker { jobs: Some(jobs), answers, spare: Vec::new(), waiting: 0, most, thread })
    }

    /// A buffer for a job; none when as many jobs as allowed are waiting.
    pub(super) fn buffer(&mut self) -> Option<Vec<u8>> {
        (self.waiting < self.most).then(|| self.spare.pop().unwrap_or_default())
    }

    /// Queues a job; false when the thread is gone.
    pub(super) fn send(&mut self, slot: u32, bytes: Vec<u8>) -> bool {
        let parcel = Parcel { slot, bytes, done: false };
        let sent = self.jobs.as_ref().is_some_and(|jobs| jobs.try_send(parcel).is_ok());
        self.waiting += usize::from(sent);
        sent
    }

    fn answers(&mut self) -> &mut Receiver<Parcel> {
        self.answers.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    /// An answer, if there is one.
    pub(super) fn poll(&mut self) -> Option<Parcel> {
        let parcel = self.answers().try_recv().ok()?;
        self.waiting -= 1;
        Some(parcel)
    }

    /// The next answer; none when nothing is waiting, or the thread is gone.
    pub(super) fn wait(&mut self) -> Option<Parcel> {
        if self.waiting == 0 {
            return None;
        }
        let parcel = self.answers().recv().ok()?;
        self.waiting -= 1;
        Some(parcel)
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
            tracing::error!("a thread of the cold cache tier has panicked");
        }
    }
}
