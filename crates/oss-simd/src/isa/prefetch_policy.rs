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
    const ONE_STREAM: Self = Self {
        streams: 1,
        distance: 8192,
        distance_8bit: 5120,
        distance_balanced: 12_288,
        level: CacheLevel::First,
    };
    /// AMD's Zen 4: fewer lines may be on their way to the first cache than memory needs, so
    /// products waited for nearly all that was prefetched there.
    const SECOND_LEVEL: Self = Self {
        distance_8bit: 8192,
        distance_balanced: 8192,
        level: CacheLevel::Second,
        ..Self::ONE_STREAM
    };
    /// What reads as fast as memory allows on Intel's Granite Rapids, where nobody has tried one
    /// stream since lines are prefetched evenly. On AMD's Zen 3 a token's layers take 4 to 18 %
    /// less time so than with one.
    const TWO_STREAMS: Self = Self {
        streams: 2,
        distance: 4096,
        distance_8bit: 4096,
        distance_balanced: 4096,
        level: CacheLevel::First,
    };

    /// What suits some processor, by name.
    pub const ALL: [(&str, Self); 3] = [
        ("one stream", Self::ONE_STREAM),
        ("two streams", Self::TWO_STREAMS),
        ("to the second-level cache", Self::SECOND_LEVEL),
    ];

    /// The name in [`Self::ALL`], where it is one of them.
    #[must_use]
    pub fn name(self) -> Option<&'static str> {
        Self::ALL.iter().find(|(_, policy)| *policy == self).map(|(name, _)| *name)
    }

    /// What suits this processor, looked up once as its features are. Results do not depend on it.
    #[must_use]
    pub fn detect() -> Self {
        static FOUND: OnceLock<PrefetchPolicy> = OnceLock::new();
        *FOUND.get_or_init(|| amd_version().map_or(Self::TWO_STREAMS, Self::for_amd))
    }

    /// What suits a processor that AMD made. Nobody has tried those before Zen 3: they are taken
    /// for its like, and those after Zen 5 for Zen 5's.
    fn for_amd(version: u32) -> Self {
        let family = (version >> 8 & 0xf) + (version >> 20 & 0xff);
        let model = (version >> 4 & 0xf) + (version >> 12 & 0xf0);
        match (family, model) {
            (0x19, 0x10..=0x1f | 0x60..=0xaf) => Self::SECOND_LEVEL,
            (..=0x19, _) => Self::TWO_STREAMS,
            _ => Self::ONE_STREAM,
        }
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

#[cfg(test)]
mod tests {
    use super::PrefetchPolicy;

    #[test]
    fn each_policy_has_its_name() {
        for (name, policy) in PrefetchPolicy::ALL {
            assert_eq!(policy.name(), Some(name));
        }
        assert!(PrefetchPolicy::detect().name().is_some());
        let other = PrefetchPolicy { distance: 64, ..PrefetchPolicy::detect() };
        assert_eq!(other.name(), None);
    }

    #[test]
    fn amds_processors_are_known_by_family_and_model() {
        let are = |versions: &[u32], policy| {
            versions.iter().all(|version| PrefetchPolicy::for_amd(*version) == policy)
        };
        // Zen 4's Genoa, Raphael and Bergamo, which share Zen 3's family.
        assert!(are(&[0xa1_0f11, 0xa6_0f12, 0xaa_0f02], PrefetchPolicy::SECOND_LEVEL));
        // Zen 3's Milan, Vermeer and Cezanne; Zen 2's Rome.
        let others = [0xa0_0f11, 0xa2_0f12, 0xa5_0f00, 0x83_0f10];
        assert!(are(&others, PrefetchPolicy::TWO_STREAMS));
        // Zen 5's Turin.
        assert!(are(&[0xb0_0f21], PrefetchPolicy::ONE_STREAM));
    }
}
