//! Files: maps, whole reads, atomic replacement, positioned access.
//!
//! Every file of the engine is opened here, so that errors name it and writes cannot leave half a
//! file behind.

mod map;
mod random_access;
mod writer;

use std::fs::File;
use std::io::Read;
use std::path::Path;

pub use crate::os::Advice;
use crate::{Error, Result};
pub use map::Map;
pub use random_access::RandomAccess;
pub use writer::Writer;

/// Reads a whole file of at most `limit` bytes.
///
/// # Errors
/// When the file cannot be opened or read, or is longer than `limit`.
pub fn read(path: &Path, limit: u64) -> Result<Vec<u8>> {
    let file = File::open(path).map_err(Error::file("open", path))?;
    let len = file.metadata().map_err(Error::file("examine", path))?.len();
    if len > limit {
        return Err(Error::TooLarge { path: path.to_path_buf(), got: len, expected: limit });
    }
    let mut bytes = Vec::with_capacity(usize::try_from(len).unwrap_or(0));
    // One byte more than allowed shows that the file has grown meanwhile.
    let read = file.take(limit.saturating_add(1)).read_to_end(&mut bytes);
    let got = read.map_err(Error::file("read", path))? as u64;
    if got > limit {
        return Err(Error::TooLarge { path: path.to_path_buf(), got, expected: limit });
    }
    Ok(bytes)
}
