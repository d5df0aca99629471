//! The operating system: the only place in this crate with system calls.
//!
//! Each has a plain fallback for systems that lack it; what a fallback loses is said beside it.

use std::fs::File;
use std::io;

use memmap2::{Mmap, MmapMut, MmapOptions};

#[cfg(not(unix))]
mod plain;
#[cfg(unix)]
mod unix;

#[cfg(not(unix))]
pub use plain::page_size;
#[cfg(not(unix))]
pub(crate) use plain::{
    advise, bind_thread, clear, create_private_directory, current_cpu, evict, huge_bytes, is_named,
    lock, open_direct, open_private, place, populate, read_at, read_some_at, sync_directory,
    write_at,
};
#[cfg(unix)]
pub use unix::page_size;
#[cfg(unix)]
pub(crate) use unix::{
    advise, bind_thread, clear, create_private_directory, current_cpu, evict, huge_bytes, is_named,
    lock, open_direct, open_private, place, populate, read_at, read_some_at, sync_directory,
    write_at,
};

/// Bytes of a huge page on the machines that have transparent ones.
pub const HUGE_PAGE: usize = 2 << 20;

/// What the system is told about the use of a range of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// It is not needed: give its memory back. Maps of files are read again when touched, private
    /// memory is zero.
    DontNeed,
    /// Back it with huge pages where possible. A file's pages are read into huge ones on Linux
    /// where its file system keeps such (ext4 from 6.16 on, XFS); those in memory stay as they are.
    HugePage,
    /// Read it now; returns when it is resident (Linux 5.14).
    PopulateRead,
}

/// Where the pages of a range of memory come to lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Policy {
    /// In turn on the nodes.
    Interleave,
    /// On the node while it has room, on others then.
    Prefer,
}

/// Maps a whole file for reading.
pub(crate) fn map_file(file: &File) -> io::Result<Mmap> {
    // SAFETY: the bytes are only read, as plain bytes; that the file keeps its length while it is
    // mapped is asked of the user in the documentation of `file::Map`.
    #[expect(unsafe_code, reason = "a map is as good as the file behind it")]
    unsafe {
        MmapOptions::new().map(file)
    }
}

/// Maps zeroed private memory that takes no room before it is touched.
pub(crate) fn map_memory(bytes: usize) -> io::Result<MmapMut> {
    MmapOptions::new().len(bytes).no_reserve_swap().map_anon()
}

/// Maps zeroed private memory on pages of `HUGE_PAGE` that the administrator has set aside; fails
/// where there are none.
pub(crate) fn map_huge(bytes: usize) -> io::Result<MmapMut> {
    if cfg!(target_os = "linux") {
        MmapOptions::new().len(bytes).huge(Some(21)).map_anon()
    } else {
        Err(io::ErrorKind::Unsupported.into())
    }
}
