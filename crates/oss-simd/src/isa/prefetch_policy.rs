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
    /// Zen 3 reads twice as fast so as Zen 4's way.
    const AMD: Self = Self {
        streams: 1,
        distance: 8192,
        distance_8bit: 5120,
        distance_balanced: 12_288,
        level: CacheLevel::First,
    };
    /// AMD's Zen 4: fewer lines may be on their way to the first cache than memory needs, so
    /// products waited for nearly all that was prefetched there.
    const ZEN_4: Self = Self {
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
        *FOUND.get_or_init(|| match amd_version() {
            Some(version) if is_zen_4(version) => Self::ZEN_4,
            Some(_) => Self::AMD,
            None => Self::OTHERS,
        })
    }
}

/// The family and model of a processor that AMD made: `eax` of `cpuid` 1.
#[cfg(target_arch = "x86_64")]
pub(super) fn amd_version() -> Option<u32> {
    let vendor = std::arch::x86_64::__cpuid(0);
    let name = [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes);
    (name.as_flattened() == b"AuthenticAMD").then(|| std::arch::x86_64::__cpuid(1).eax)
}

#[cfg(not(target_arch = "x86_64"))]
fn amd_version() -> Option<u32> {
    None
}

/// Whether an AMD processor is a Zen 4, which shares its family with Zen 3.
fn is_zen_4(version: u32) -> bool {
    let family = (version >> 8 & 0xf) + (version >> 20 & 0xff);
    let model = (version >> 4 & 0xf) + (version >> 12 & 0xf0);
    family == 0x19 && matches!(model, 0x10..=0x1f | 0x60..=0xaf)
}

#[cfg(test)]
mod tests {
    use super::is_zen_4;

    #[test]
    fn zen_4_is_known_by_family_and_model() {
        // Genoa, Raphael and Bergamo.
        assert!([0xa1_0f11, 0xa6_0f12, 0xaa_0f02].into_iter().all(is_zen_4));
        // Zen 3's Milan, Vermeer and Cezanne; Rome and Turin.
        let others = [0xa0_0f11, 0xa2_0f12, 0xa5_0f00, 0x83_0f10, 0xb0_0f21];
        assert!(!others.into_iter().any(is_zen_4));
    }
}
