//! How a processor reads memory fastest.

use std::sync::OnceLock;

/// From how many places in turn memory is best read, and how far ahead it is prefetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefetchPolicy {
    /// Places from which a thread reads in turn, 1 or 2.
    pub streams: usize,
    /// Bytes between what is read and what is prefetched, of all streams together.
    pub distance: usize,
    /// The same for codes of 8 bits that a single row meets: they pass fastest.
    pub distance_8bit: usize,
    /// The same where as many rows meet codes as reading takes about as long as their products:
    /// now and then either waits for the other.
    pub distance_balanced: usize,
}

impl PrefetchPolicy {
    /// As measured on AMD's Zen 5 (see `docs/performance.md`): two streams are a third slower.
    const AMD: Self =
        Self { streams: 1, distance: 8192, distance_8bit: 5120, distance_balanced: 12_288 };
    /// What reads as fast as memory allows on Intel's Granite Rapids; nobody has tried one stream
    /// there since lines are prefetched evenly.
    const OTHERS: Self =
        Self { streams: 2, distance: 4096, distance_8bit: 4096, distance_balanced: 4096 };

    /// What suits this processor, looked up once as its features are. Results do not depend on it.
    #[must_use]
    pub fn detect() -> Self {
        static FOUND: OnceLock<PrefetchPolicy> = OnceLock::new();
        *FOUND.get_or_init(|| if is_amd() { Self::AMD } else { Self::OTHERS })
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) fn is_amd() -> bool {
    let vendor = std::arch::x86_64::__cpuid(0);
    let name = [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes);
    name.as_flattened() == b"AuthenticAMD"
}

#[cfg(not(target_arch = "x86_64"))]
fn is_amd() -> bool {
    false
}
