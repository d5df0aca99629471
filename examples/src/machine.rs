//! What a process takes of memory and energy.

mod energy;

pub use energy::{Energy, Reading};

use oss_memory::file;
use std::path::Path;

/// The most memory that this process has had resident, in bytes, where the system tells.
#[must_use]
pub fn resident_peak() -> Option<u64> {
    let status = file::read(Path::new("/proc/self/status"), 1 << 16).ok()?;
    let status = String::from_utf8_lossy(&status);
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
}
