//! How a processor reads memory fastest.

use std::sync::OnceLock;

/// From how many places in turn memory is best read, and how far ahead it is to be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// Places from which a thread reads in turn, 1 or 2.
    pub streams: usize,
    /// Bytes between what is read and what is asked for, of all streams together.
    pub ahead: usize,
    /// The same for codes of 8 bits that a single row meets: they pass fastest.
    pub ahead_of_bytes: usize,
    /// The same where as many rows meet codes as reading takes about as long as their products:
    /// now and then either waits for the other.
    pub ahead_of_products: usize,
}

impl Reading {
    /// As measured on AMD's Zen 5 (see `docs/performance.md`): two streams are a third slower.
    const AMD: Self =
        Self { streams: 1, ahead: 8192, ahead_of_bytes: 5120, ahead_of_products: 12_288 };
    /// What reads as fast as memory allows on Intel's Granite Rapids; nobody has tried one stream
    /// there since lines are asked for evenly.
    const OTHERS: Self =
        Self { streams: 2, ahead: 4096, ahead_of_bytes: 4096, ahead_of_products: 4096 };

    /// What suits this processor, looked up once as its features are. Results do not depend on it.
    #[must_use]
    pub fn detect() -> Self {
        static FOUND: OnceLock<Reading> = OnceLock::new();
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
