//! System calls of Linux and macOS.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::ops::Range;
#[cfg(target_os = "linux")]
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use super::{Advice, Policy};

/// Bytes of an ordinary page.
pub fn page_size() -> usize {
    // SAFETY: reads a constant of the system.
    #[expect(unsafe_code, reason = "asks the system")]
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(bytes).unwrap_or(4096)
}

/// Gives advice about a file's map, as whole pages. `DontNeed` shrinks to the pages that lie
/// inside, everything else grows.
pub(crate) fn advise(map: &[u8], advice: Advice) -> io::Result<()> {
    // No bytes lie on no page, and need not point into a map.
    if map.is_empty() {
        return Ok(());
    }
    let page = page_size();
    let (mut begin, mut end) = (map.as_ptr().addr(), map.as_ptr().addr() + map.len());
    if advice == Advice::DontNeed {
        (begin, end) = (begin.next_multiple_of(page), end - end % page);
    } else {
        begin -= begin % page;
    }
    let Some(advice) = number(advice) else { return Ok(()) };
    if begin >= end {
        return Ok(());
    }
    let start = map.as_ptr().with_addr(begin).cast_mut().cast();
    // SAFETY: the pages are of the caller's map, since maps are whole pages, and no advice changes
    // the bytes of a map of a file.
    #[expect(unsafe_code, reason = "advises the system")]
    let status = unsafe { libc::madvise(start, end - begin, advice) };
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Whether `path` names `file`, and not another one.
pub(crate) fn is_named(file: &File, path: &Path) -> io::Result<bool> {
    let own = file.metadata()?;
    match path.metadata() {
        Ok(named) => Ok((named.dev(), named.ino()) == (own.dev(), own.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Lets the system drop what it keeps of a file's range, but for pages that somebody maps or that
/// are not on disk yet.
#[cfg(target_os = "linux")]
pub(crate) fn evict(file: &File, range: Range<usize>) -> io::Result<()> {
    // To the system no bytes mean all to the file's end.
    if range.is_empty() {
        return Ok(());
    }
    let number = |bytes| libc::off_t::try_from(bytes).map_err(|_| io::ErrorKind::InvalidInput);
    let (start, len) = (number(range.start)?, number(range.len())?);
    // SAFETY: the descriptor is the file's, and no byte of it changes.
    #[expect(unsafe_code, reason = "advises the system")]
    let status =
        unsafe { libc::posix_fadvise(file.as_raw_fd(), start, len, libc::POSIX_FADV_DONTNEED) };
    if status == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(status)) }
}

/// The system keeps what it has read of a file.
#[cfg(not(target_os = "linux"))]
pub(crate) fn evict(_file: &File, _range: Range<usize>) -> io::Result<()> {
    Ok(())
}

/// How many bytes of a map lie on huge pages now (Linux 6.7).
#[cfg(target_os = "linux")]
pub(crate) fn huge_bytes(map: &[u8]) -> io::Result<usize> {
    /// `struct page_region` of the kernel.
    #[derive(Clone, Copy, Default)]
    #[repr(C)]
    struct Region {
        start: u64,
        end: u64,
        categories: u64,
    }
    /// `struct pm_scan_arg` of the kernel.
    #[derive(Default)]
    #[repr(C)]
    struct Scan {
        size: u64,
        flags: u64,
        start: u64,
        end: u64,
        walk_end: u64,
        regions: u64,
        n_regions: u64,
        max_pages: u64,
        category_inverted: u64,
        category_mask: u64,
        category_anyof_mask: u64,
        return_mask: u64,
    }
    /// `_IOWR('f', 16, struct pm_scan_arg)`.
    const PAGEMAP_SCAN: u64 = 0xc060_6610;
    const PAGE_IS_HUGE: u64 = 1 << 6;

    let page = page_size();
    let (begin, end) = (map.as_ptr().addr(), map.as_ptr().addr() + map.len());
    let (begin, end) = ((begin - begin % page) as u64, end.next_multiple_of(page) as u64);
    let pages = File::open("/proc/self/pagemap")?;
    let mut regions = [Region::default(); 64];
    let (mut at, mut bytes) = (begin, 0);
    while at < end {
        let mut scan = Scan {
            size: size_of::<Scan>() as u64,
            start: at,
            end,
            regions: regions.as_mut_ptr().expose_provenance() as u64,
            n_regions: regions.len() as u64,
            category_mask: PAGE_IS_HUGE,
            return_mask: PAGE_IS_HUGE,
            ..Scan::default()
        };
        // SAFETY: both structures are the kernel's, it writes at most `n_regions` regions and the
        // field `walk_end`, and the call changes no page.
        #[expect(unsafe_code, reason = "asks the system")]
        let found = unsafe { libc::ioctl(pages.as_raw_fd(), PAGEMAP_SCAN as _, &raw mut scan) };
        let found = usize::try_from(found).map_err(|_| io::Error::last_os_error())?;
        bytes += regions[..found].iter().map(|region| region.end - region.start).sum::<u64>();
        at = scan.walk_end.max(at + page as u64);
    }
    Ok(bytes as usize)
}

/// The system does not say.
#[cfg(not(target_os = "linux"))]
pub(crate) fn huge_bytes(_map: &[u8]) -> io::Result<usize> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Zeroes private memory that is whole pages by giving it back to the system.
pub(crate) fn clear(memory: &mut [u8]) -> io::Result<()> {
    // Elsewhere, memory that was given back need not read as zero.
    if !cfg!(target_os = "linux") {
        memory.fill(0);
        return Ok(());
    }
    let (start, len) = (memory.as_mut_ptr().cast(), memory.len());
    // SAFETY: the caller holds the memory exclusively, and zeros are a value of it.
    #[expect(unsafe_code, reason = "gives memory back")]
    let status = unsafe { libc::madvise(start, len, libc::MADV_DONTNEED) };
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Takes the pages of private memory, which begins on one, now and as they are: where the system
/// has none to give, this is an error, and touching them would kill the process. Linux before 5.14
/// does not know this, and gives pages when they are touched.
#[cfg(target_os = "linux")]
pub(crate) fn populate(memory: &mut [u8]) -> io::Result<()> {
    let (start, len) = (memory.as_mut_ptr().cast(), memory.len());
    // SAFETY: the caller holds the memory exclusively, and no byte of it changes.
    #[expect(unsafe_code, reason = "asks for memory")]
    let status = unsafe { libc::madvise(start, len, libc::MADV_POPULATE_WRITE) };
    if status == 0 {
        return Ok(());
    }
    match io::Error::last_os_error() {
        error if error.raw_os_error() == Some(libc::EINVAL) => Ok(()),
        error => Err(error),
    }
}

/// Pages are given when they are touched.
#[cfg(not(target_os = "linux"))]
pub(crate) fn populate(_memory: &mut [u8]) -> io::Result<()> {
    Ok(())
}

/// The system's number, or none where the system has no such advice and nothing is lost.
fn number(advice: Advice) -> Option<libc::c_int> {
    match advice {
        Advice::DontNeed => Some(libc::MADV_DONTNEED),
        #[cfg(target_os = "linux")]
        Advice::HugePage => Some(libc::MADV_HUGEPAGE),
        #[cfg(target_os = "linux")]
        Advice::PopulateRead => Some(libc::MADV_POPULATE_READ),
        #[cfg(not(target_os = "linux"))]
        Advice::HugePage => None,
        #[cfg(not(target_os = "linux"))]
        Advice::PopulateRead => Some(libc::MADV_WILLNEED),
    }
}

/// Fills `bytes` from `offset`.
pub(crate) fn read_at(file: &File, bytes: &mut [u8], offset: u64) -> io::Result<()> {
    file.read_exact_at(bytes, offset)
}

/// Reads what is there from `offset`, at most `bytes`; 0 at the end of the file.
pub(crate) fn read_some_at(file: &File, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
    loop {
        match file.read_at(bytes, offset) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            read => return read,
        }
    }
}

/// Opens a file, made if there is none, which no other user may read or write then.
pub(crate) fn open_private(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    options.mode(0o600).open(path)
}

/// Makes a directory and those above it; what is made no other user may look into.
pub(crate) fn create_private_directory(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Opens a file for reading past the system's cache.
#[cfg(target_os = "linux")]
pub(crate) fn open_direct(path: &Path) -> io::Result<File> {
    File::options().read(true).custom_flags(libc::O_DIRECT).open(path)
}

/// No such reads here.
#[cfg(not(target_os = "linux"))]
pub(crate) fn open_direct(_path: &Path) -> io::Result<File> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Writes all `bytes` at `offset`.
pub(crate) fn write_at(file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    file.write_all_at(bytes, offset)
}

/// Makes a rename in `directory` survive a power cut, where its file system lets a directory be
/// synchronised.
pub(crate) fn sync_directory(directory: &Path) -> io::Result<()> {
    match File::open(directory)?.sync_all() {
        // So says a file system that cannot synchronise directories.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(()),
        synchronised => synchronised,
    }
}

/// Keeps the pages that hold `memory` resident while they are mapped.
pub(crate) fn lock(memory: &[u8]) -> io::Result<()> {
    let (start, len) = (memory.as_ptr().cast(), memory.len());
    // SAFETY: the range is mapped, and locking changes no byte.
    #[expect(unsafe_code, reason = "asks the system")]
    let status = unsafe { libc::mlock(start, len) };
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Sets where the pages of `memory`, which begins on a page, come to lie when they are touched. One
/// that ends within a huge page that was set aside is refused.
#[cfg(target_os = "linux")]
pub(crate) fn place(memory: &mut [u8], policy: Policy, nodes: &[usize]) -> io::Result<()> {
    const NODES: usize = 1024;
    let mask: [libc::c_ulong; NODES / BITS] = set_of(nodes)?;
    let mode = match policy {
        Policy::Interleave => libc::MPOL_INTERLEAVE,
        Policy::Prefer => libc::MPOL_PREFERRED,
    };
    // The kernel reads one bit fewer than it is told.
    let bits = NODES + 1;
    let (start, len) = (memory.as_mut_ptr(), memory.len());
    // SAFETY: the range is the caller's alone, the mask has the bits it is said to have, and the
    // call changes no byte.
    #[expect(unsafe_code, reason = "asks the system")]
    let status =
        unsafe { libc::syscall(libc::SYS_mbind, start, len, mode, mask.as_ptr(), bits, 0) };
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Memory cannot be placed here.
#[cfg(not(target_os = "linux"))]
pub(crate) fn place(_memory: &mut [u8], _policy: Policy, _nodes: &[usize]) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Binds the calling thread to some CPUs.
#[cfg(target_os = "linux")]
pub(crate) fn bind_thread(cpus: &[usize]) -> io::Result<()> {
    let set: [libc::c_ulong; MOST_CPUS / BITS] = set_of(cpus)?;
    // SAFETY: the system reads no more than the set's size, and 0 is this thread.
    #[expect(unsafe_code, reason = "asks the system")]
    let status = unsafe { libc::sched_setaffinity(0, size_of_val(&set), set.as_ptr().cast()) };
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The most CPUs that Linux has; `cpu_set_t` of the C library ends at 1,024.
#[cfg(target_os = "linux")]
const MOST_CPUS: usize = 8192;

/// Bits of a word of the system's sets.
#[cfg(target_os = "linux")]
const BITS: usize = libc::c_ulong::BITS as usize;

/// A set of small numbers as the system takes it; refused where one does not fit.
#[cfg(target_os = "linux")]
fn set_of<const WORDS: usize>(numbers: &[usize]) -> io::Result<[libc::c_ulong; WORDS]> {
    let mut set = [0; WORDS];
    for number in numbers {
        let word = set.get_mut(number / BITS).ok_or(io::ErrorKind::InvalidInput)?;
        *word |= 1 << (number % BITS);
    }
    Ok(set)
}

/// Threads cannot be bound here.
#[cfg(not(target_os = "linux"))]
pub(crate) fn bind_thread(_cpus: &[usize]) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// The CPU that the calling thread runs on just now; as a rule without entering the system.
#[cfg(target_os = "linux")]
pub(crate) fn current_cpu() -> Option<usize> {
    // SAFETY: reads a number.
    #[expect(unsafe_code, reason = "asks the system")]
    let cpu = unsafe { libc::sched_getcpu() };
    usize::try_from(cpu).ok()
}

/// The system does not say.
#[cfg(not(target_os = "linux"))]
pub(crate) fn current_cpu() -> Option<usize> {
    None
}

#[cfg(all(test, target_os = "linux"))]
mod tests;
