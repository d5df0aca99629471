//! How a processor reads memory fastest.

use std::sync::OnceLock;

/// A cache that a core has for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheLevel {
    /// The one that loads look into first.
    First,
    /// The one behind it.
    Second,
}

/// From how many places in turn memory is best read, how far ahead it is prefetched, and where to.
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
    /// Where weights are prefetched to, and keys and values that are no codes.
    pub level: CacheLevel,
}

impl PrefetchPolicy {
    /// As measured on AMD's Zen 5 (see `docs/performance.md`): two streams are a third slower.
    const AMD: Self = Self {
        streams: 1,
        distance: 8192,
        distance_8bit: 5120,
        distance_balanced: 12_288,
        level: CacheLevel::First,
    };
    /// AMD's Zen 3 and Zen 4, as measured on Zen 4: fewer lines may be on their way to the first
    /// cache than memory needs, so products waited for nearly all that was prefetched there.
    const AMD_FAMILY_19: Self = Self {
        distance_8bit: 8192,
        distance_balanced: 8192,
        level: CacheLevel::Second,
        ..Self::AMD
    };
    /// What reads as fast as memory allows on Intel's Granite Rapids; nobody has tried one stream
    /// there since lines are prefetched evenly.
    const OTHERS: Self = Self {
        streams: 2,
        distance: 4096,
        distance_8bit: 4096,
        distance_balanced: 4096,
        level: CacheLevel::First,
    };

    /// What suits this processor, looked up once as its features are. Results do not depend on it.
    #[must_use]
    pub fn detect() -> Self {
        static FOUND: OnceLock<PrefetchPolicy> = OnceLock::new();
        *FOUND.get_or_init(|| match amd_family() {
            Some(0x19) => Self::AMD_FAMILY_19,
            Some(_) => Self::AMD,
            None => Self::OTHERS,
        })
    }
}

/// The family of a processor that AMD made.
#[cfg(target_arch = "x86_64")]
pub(super) fn amd_family() -> Option<u32> {
    let vendor = std::arch::x86_64::__cpuid(0);
    let name = [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes);
    let version = std::arch::x86_64::__cpuid(1).eax;
    let family = match version >> 8 & 0xf {
        0xf => 0xf + (version >> 20 & 0xff),
        family => family,
    };
    (name.as_flattened() == b"AuthenticAMD").then_some(family)
}

#[cfg(not(target_arch = "x86_64"))]
fn amd_family() -> Option<u32> {
    None
}
