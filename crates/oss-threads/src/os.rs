//! The operating system: the only place with system calls.

use std::io;
use std::path::Path;
use std::thread::JoinHandle;

/// The text of a file of the system, or none where it has no such file.
pub(crate) fn text(path: &Path) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

/// Binds a thread to a CPU.
#[cfg(target_os = "linux")]
pub(crate) fn pin<T>(thread: &JoinHandle<T>, cpu: usize) -> io::Result<()> {
    use std::os::unix::thread::JoinHandleExt;

    if cpu >= libc::CPU_SETSIZE as usize {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // An integer in Rust's standard library, but not in every C library.
    let thread = thread.as_pthread_t() as libc::pthread_t;
    // SAFETY: a set of all zeros is an empty one, `cpu` is within it, and the thread is not joined.
    #[expect(unsafe_code, reason = "asks the system")]
    let status = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::pthread_setaffinity_np(thread, size_of_val(&set), &raw const set)
    };
    if status == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(status)) }
}

/// Binds a thread to a CPU: not possible here.
#[cfg(not(target_os = "linux"))]
pub(crate) fn pin<T>(_thread: &JoinHandle<T>, _cpu: usize) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}
