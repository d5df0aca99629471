//! The threads that read experts.

use super::table::{ReadJob, Table};
use crate::error::{Error, Result};
use oss_memory::file::RandomAccess;
use std::io;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

/// Bytes of one read, at most: a gpt-oss-20b expert is one read for each thread.
pub(super) const PART: usize = 4 << 20;
/// Reads in flight: what keeps a disk busy. The threads sleep while it works.
const THREADS: usize = 4;

/// What the threads and the forward pass share.
#[derive(Debug)]
struct Shared {
    file: RandomAccess,
    table: Mutex<Table>,
    /// There is something to read, or nothing ever will be.
    work: Condvar,
    /// An expert has come, or failed, or slots are pinned no longer.
    arrived: Condvar,
}

/// The threads, and the table that they work on.
#[derive(Debug)]
pub(super) struct Readers {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Readers {
    /// Threads that read what the table asks for.
    pub(super) fn start(file: RandomAccess, table: Table) -> Result<Self> {
        let (work, arrived) = (Condvar::new(), Condvar::new());
        let shared = Arc::new(Shared { file, table: Mutex::new(table), work, arrived });
        let mut readers = Self { shared, threads: Vec::new() };
        for _ in 0..THREADS {
            let shared = readers.shared.clone();
            let builder = thread::Builder::new().name("oss-experts".to_owned());
            let thread = builder.spawn(move || shared.run());
            readers.threads.push(thread.map_err(|cause| Error::Thread { cause })?);
        }
        Ok(readers)
    }

    pub(super) fn path(&self) -> &Path {
        self.shared.file.path()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Table> {
        self.shared.lock()
    }

    /// Tells the threads that there may be something to read.
    pub(super) fn wake(&self) {
        self.shared.work.notify_all();
    }

    /// Tells those who wait that slots are pinned no longer.
    pub(super) fn tell_of_slots(&self) {
        // Who has found them pinned and is about to wait has the lock until then.
        drop(self.lock());
        self.shared.arrived.notify_all();
    }

    /// Waits until another expert has come, or failed, or slots are pinned no longer.
    pub(super) fn wait<'a>(&'a self, table: MutexGuard<'a, Table>) -> MutexGuard<'a, Table> {
        self.shared.arrived.wait(table).unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        self.shared.lock().close();
        self.wake();
        for thread in self.threads.drain(..) {
            // A thread that panicked said so; there is nobody to tell.
            let _panic = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads until the table is closed.
    fn run(&self) {
        let mut table = self.lock();
        while !table.is_closed() {
            let Some(mut job) = table.next_job() else {
                table = self.work.wait(table).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            drop(table);
            let outcome = self.read(&mut job);
            table = self.lock();
            if table.finish(job, outcome) {
                self.arrived.notify_all();
            }
        }
    }

    fn read(&self, job: &mut ReadJob) -> Result<(), oss_memory::Error> {
        let got = self.file.read_to_end_at(&mut job.piece, job.offset)?;
        if got >= job.needed {
            return Ok(());
        }
        let reason = format!("got {got} bytes at {}, expected {}", job.offset, job.needed);
        let cause = io::Error::new(io::ErrorKind::UnexpectedEof, reason);
        let path = self.file.path().to_owned();
        Err(oss_memory::Error::File { action: "read", path, cause })
    }
}
