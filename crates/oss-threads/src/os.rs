//! The operating system: the only place in this crate with system calls.

use std::io;
use std::path::Path;
use std::thread::JoinHandle;

/// The text of a file of the system, or none where it has no such file.
pub(crate) fn text(path: &Path) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

/// The CPU that runs the calling thread, where the system says.
#[cfg(target_os = "linux")]
pub(crate) fn cpu() -> Option<usize> {
    // SAFETY: takes nothing.
    #[expect(unsafe_code, reason = "asks the system")]
    let cpu = unsafe { libc::sched_getcpu() };
    usize::try_from(cpu).ok()
}

/// The system does not say.
#[cfg(not(target_os = "linux"))]
pub(crate) fn cpu() -> Option<usize> {
    None
}

/// The CPUs that threads of this process may run on now, in ascending order, where the system says.
pub(crate) fn allowed_cpus() -> Option<Vec<usize>> {
    Mask::here().ok().map(|mask| mask.cpus()).filter(|cpus| !cpus.is_empty())
}

/// Words of a set of CPUs: Linux refuses sets that are shorter than its own, which has 8,192 CPUs
/// at most.
#[cfg(target_os = "linux")]
const WORDS: usize = 8192 / 64;

/// The CPUs that a thread may run on.
#[cfg(target_os = "linux")]
#[derive(Clone, Copy)]
#[repr(align(8))]
pub(crate) struct Mask([u64; WORDS]);

#[cfg(target_os = "linux")]
impl Mask {
    /// One CPU alone.
    pub(crate) fn of(cpu: usize) -> io::Result<Self> {
        let mut words = [0; WORDS];
        let word = words.get_mut(cpu / 64).ok_or(io::ErrorKind::InvalidInput)?;
        *word |= 1 << (cpu % 64);
        Ok(Self(words))
    }

    /// That of the calling thread.
    pub(crate) fn here() -> io::Result<Self> {
        let mut words = [0; WORDS];
        let set = (&raw mut words).cast::<libc::cpu_set_t>();
        // SAFETY: no more than the words' size is written, and 0 is this thread.
        #[expect(unsafe_code, reason = "asks the system")]
        let status = unsafe { libc::sched_getaffinity(0, size_of_val(&words), set) };
        if status == 0 { Ok(Self(words)) } else { Err(io::Error::last_os_error()) }
    }

    /// Without these CPUs; none where no other is left.
    pub(crate) fn without(&self, cpus: impl Iterator<Item = usize>) -> Option<Self> {
        let mut words = self.0;
        for cpu in cpus {
            if let Some(word) = words.get_mut(cpu / 64) {
                *word &= !(1 << (cpu % 64));
            }
        }
        words.iter().any(|word| *word != 0).then_some(Self(words))
    }

    /// Which they are, in ascending order.
    pub(crate) fn cpus(&self) -> Vec<usize> {
        (0..64 * WORDS).filter(|cpu| self.0[cpu / 64] >> (cpu % 64) & 1 == 1).collect()
    }

    fn set(&self) -> *const libc::cpu_set_t {
        self.0.as_ptr().cast()
    }

    /// Binds the calling thread.
    pub(crate) fn bind_here(&self) -> io::Result<()> {
        // SAFETY: the set has the size that is told, and 0 is this thread.
        #[expect(unsafe_code, reason = "asks the system")]
        let status = unsafe { libc::sched_setaffinity(0, size_of_val(&self.0), self.set()) };
        if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Binds another thread.
    pub(crate) fn bind<T>(&self, thread: &JoinHandle<T>) -> io::Result<()> {
        use std::os::unix::thread::JoinHandleExt;

        // An integer in Rust's standard library, but not in every C library.
        let thread = thread.as_pthread_t() as libc::pthread_t;
        // SAFETY: the set has the size that is told, and the thread is not joined.
        #[expect(unsafe_code, reason = "asks the system")]
        let status =
            unsafe { libc::pthread_setaffinity_np(thread, size_of_val(&self.0), self.set()) };
        if status == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(status)) }
    }
}

/// Threads cannot be bound here.
#[cfg(not(target_os = "linux"))]
pub(crate) struct Mask;

#[cfg(not(target_os = "linux"))]
impl Mask {
    pub(crate) fn of(_cpu: usize) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(crate) fn here() -> io::Result<Self> {
        Ok(Self)
    }

    pub(crate) fn without(&self, _cpus: impl Iterator<Item = usize>) -> Option<Self> {
        None
    }

    pub(crate) fn cpus(&self) -> Vec<usize> {
        Vec::new()
    }

    pub(crate) fn bind_here(&self) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(crate) fn bind<T>(&self, _thread: &JoinHandle<T>) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}
