//! The operating system: the only place with system calls.

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

/// The CPUs that a thread may run on.
#[cfg(target_os = "linux")]
pub(crate) struct Mask(libc::cpu_set_t);

#[cfg(target_os = "linux")]
impl Mask {
    /// One CPU alone.
    pub(crate) fn of(cpu: usize) -> io::Result<Self> {
        if cpu >= libc::CPU_SETSIZE as usize {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // SAFETY: a set of all zeros is an empty one, and `cpu` is within it.
        #[expect(unsafe_code, reason = "makes a set of the C library")]
        unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            libc::CPU_SET(cpu, &mut set);
            Ok(Self(set))
        }
    }

    /// That of the calling thread.
    pub(crate) fn here() -> io::Result<Self> {
        // SAFETY: a set of all zeros is an empty one, no more than its size is written, and 0 is
        // this thread.
        #[expect(unsafe_code, reason = "asks the system")]
        let (set, status) = unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            let status = libc::sched_getaffinity(0, size_of_val(&set), &raw mut set);
            (set, status)
        };
        if status == 0 { Ok(Self(set)) } else { Err(io::Error::last_os_error()) }
    }

    /// Without these CPUs; none where no other is left.
    pub(crate) fn without(&self, cpus: impl Iterator<Item = usize>) -> Option<Self> {
        let mut set = self.0;
        for cpu in cpus.filter(|&cpu| cpu < libc::CPU_SETSIZE as usize) {
            // SAFETY: `cpu` is within the set.
            #[expect(unsafe_code, reason = "changes a set of the C library")]
            unsafe {
                libc::CPU_CLR(cpu, &mut set);
            }
        }
        let left = Self(set);
        (!left.cpus().is_empty()).then_some(left)
    }

    /// Which they are, in ascending order.
    pub(crate) fn cpus(&self) -> Vec<usize> {
        let is_in = |&cpu: &usize| {
            // SAFETY: `cpu` is within the set.
            #[expect(unsafe_code, reason = "reads a set of the C library")]
            unsafe {
                libc::CPU_ISSET(cpu, &self.0)
            }
        };
        (0..libc::CPU_SETSIZE as usize).filter(is_in).collect()
    }

    /// Binds the calling thread.
    pub(crate) fn bind_here(&self) -> io::Result<()> {
        // SAFETY: the set has the size that is told, and 0 is this thread.
        #[expect(unsafe_code, reason = "asks the system")]
        let status = unsafe { libc::sched_setaffinity(0, size_of_val(&self.0), &raw const self.0) };
        if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Binds another thread.
    pub(crate) fn bind<T>(&self, thread: &JoinHandle<T>) -> io::Result<()> {
        use std::os::unix::thread::JoinHandleExt;

        // An integer in Rust's standard library, but not in every C library.
        let thread = thread.as_pthread_t() as libc::pthread_t;
        // SAFETY: the set has the size that is told, and the thread is not joined.
        #[expect(unsafe_code, reason = "asks the system")]
        let status = unsafe {
            libc::pthread_setaffinity_np(thread, size_of_val(&self.0), &raw const self.0)
        };
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

    pub(crate) fn bind_here(&self) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(crate) fn bind<T>(&self, _thread: &JoinHandle<T>) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}
