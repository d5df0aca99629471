//! What a cache has done so far.

use std::ops::AddAssign;

/// What two caches have counted, one after the other, adds up: every counter by its name, so that
/// one that is forgotten does not compile.
macro_rules! adds_up {
    ($stats:ident { $($count:ident),+ $(,)? }) => {
        impl AddAssign for $stats {
            fn add_assign(&mut self, more: Self) {
                let Self { $($count),+ } = more;
                $(self.$count += $count;)+
            }
        }
    };
}

/// Counters since the cache was made. Pages are counted per group: a position of a model with two
/// groups lies in two pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Positions taken over from the prefix tree.
    pub reused_tokens: u64,
    /// Pages taken over that were resident, and not brought back for it.
    pub hot_hits: u64,
    /// Pages taken over that were decompressed for it.
    pub warm_hits: u64,
    /// Pages taken over that were read from the file for it, or fetched ahead and not taken over
    /// before.
    pub cold_hits: u64,
    /// Pages fetched from the file ahead of a sequence, whether one took them over or not.
    pub prefetched_pages: u64,
    /// Blocks entered into the prefix tree.
    pub inserted_blocks: u64,
    /// Blocks that two sequences had computed, kept once.
    pub duplicate_blocks: u64,
    /// Blocks not entered because another had the same hash.
    pub hash_collisions: u64,
    /// Window pages given up far from message boundaries.
    pub thinned_pages: u64,
    /// Resident pages given up by policy.
    pub evicted_pages: u64,
    /// Pages moved so that memory could be given back.
    pub moved_pages: u64,
    /// Bytes moved with them.
    pub moved_bytes: u64,
    /// Pages copied because a sequence wrote to one that others had too.
    pub copied_pages: u64,
    /// Their bytes.
    pub copied_bytes: u64,
    /// Pages compressed when they were given up.
    pub compressed_pages: u64,
    /// Their bytes before.
    pub compressed_bytes: u64,
    /// Bytes of the pages that were decompressed.
    pub restored_bytes: u64,
    /// Pages that would not have shrunk enough.
    pub incompressible_pages: u64,
    /// Compressed pages given up.
    pub warm_evicted_pages: u64,
    /// The file of cold pages.
    pub cold: ColdStats,
}

adds_up!(Stats {
    reused_tokens,
    hot_hits,
    warm_hits,
    cold_hits,
    prefetched_pages,
    inserted_blocks,
    duplicate_blocks,
    hash_collisions,
    thinned_pages,
    evicted_pages,
    moved_pages,
    moved_bytes,
    copied_pages,
    copied_bytes,
    compressed_pages,
    compressed_bytes,
    restored_bytes,
    incompressible_pages,
    warm_evicted_pages,
    cold,
});

/// Counters of the file of cold pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ColdStats {
    /// Pages found in the file of an earlier process.
    pub restored_slots: u64,
    /// Pages written.
    pub written_pages: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Pages not written because too many were waiting, for want of memory, or because the file is
    /// full of what is worth more.
    pub dropped_writes: u64,
    /// Pages that the file did not take, as on a full disk.
    pub failed_writes: u64,
    /// Slots that were torn, damaged or not what they were taken for: misses.
    pub bad_slots: u64,
    /// Files and slots of another model or build: misses.
    pub foreign: u64,
    /// Pages that made room for others.
    pub evicted_pages: u64,
}

adds_up!(ColdStats {
    restored_slots,
    written_pages,
    written_bytes,
    read_bytes,
    dropped_writes,
    failed_writes,
    bad_slots,
    foreign,
    evicted_pages,
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_two_caches_count_adds_up() {
        let mut one = Stats::default();
        (one.reused_tokens, one.hot_hits, one.warm_evicted_pages) = (1, 3, 100);
        (one.cold.restored_slots, one.cold.read_bytes, one.cold.evicted_pages) = (7, 9, 11);
        let mut sum = Stats::default();
        sum += one;
        assert_eq!(sum, one);
        sum += Stats::default();
        assert_eq!(sum, one);
        sum += one;
        let ColdStats { restored_slots, read_bytes, evicted_pages, .. } = sum.cold;
        assert_eq!((sum.reused_tokens, sum.hot_hits, sum.warm_evicted_pages), (2, 6, 200));
        assert_eq!((restored_slots, read_bytes, evicted_pages), (14, 18, 22));
    }
}
