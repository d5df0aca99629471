//! What a cache has done so far.

/// Counters since the cache was made. Pages are counted per group: a position of a model with two
/// groups lies in two pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Positions taken over from the prefix tree.
    pub reused_tokens: u64,
    /// Pages taken over while resident.
    pub hot_hits: u64,
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
}
