//! Threads for what loading does with many bytes at once. They have ended when it is done: while a
//! team works, no other threads do.

use crate::error::{Error, Result};
use rayon::ThreadPoolBuilder;
use std::thread;

/// Does some work in which rayon's iterators share their parts among threads.
///
/// # Errors
/// Those of the work; [`Error::Thread`] where the system gives no threads for it.
pub(super) fn on_load_pool<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    let mut handles = Vec::new();
    let start = |worker: rayon::ThreadBuilder| {
        let thread = thread::Builder::new().name(format!("oss-load-{}", worker.index()));
        handles.push(thread.spawn(|| worker.run())?);
        Ok(())
    };
    let refused = |error| Error::Thread { cause: std::io::Error::other(error) };
    let pool = ThreadPoolBuilder::new().spawn_handler(start).build().map_err(refused)?;
    let result = pool.install(work);
    // A pool that is dropped tells its threads to end, and does not wait until they have.
    drop(pool);
    for handle in handles {
        // The pool carries panics of the work to the caller.
        let _ended = handle.join();
    }
    result
}
