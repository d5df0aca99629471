//! Threads for what loading does with many bytes at once. They go when it is done: while a team
//! works, nobody else does.

use crate::error::{Error, Result};
use rayon::ThreadPoolBuilder;

/// Does some work in which rayon's iterators share their parts among threads.
///
/// # Errors
/// Those of the work; [`Error::Thread`] where the system gives no threads for it.
pub(super) fn together<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    let threads = ThreadPoolBuilder::new().thread_name(|number| format!("oss-load-{number}"));
    let refused = |error| Error::Thread { source: std::io::Error::other(error) };
    threads.build().map_err(refused)?.install(work)
}
