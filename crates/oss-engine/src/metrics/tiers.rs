//! Where the keys and values of prompts came from.

use oss_cache::Stats;

/// What each tier of the cache has and gave, counted in pages: sixteen positions of a group of
/// layers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct TierUse {
    /// Pages that the prompts of admitted requests needed.
    pub asked_pages: u64,
    /// Everything that the cache has counted.
    pub counts: Stats,
    /// Bytes of compressed pages in memory.
    pub warm_bytes: usize,
    /// Pages in the file.
    pub cold_pages: usize,
}

impl TierUse {
    /// The share of pages that were at hand in memory.
    #[must_use]
    pub fn hot_rate(&self) -> f64 {
        self.rate(self.counts.hot_hits.saturating_sub(self.counts.prefetched_pages))
    }

    /// The share of pages that were decompressed.
    #[must_use]
    pub fn warm_rate(&self) -> f64 {
        self.rate(self.counts.warm_hits)
    }

    /// The share of pages that came from the file, those fetched ahead included.
    #[must_use]
    pub fn cold_rate(&self) -> f64 {
        self.rate(self.counts.cold_hits + self.counts.prefetched_pages)
    }

    fn rate(&self, pages: u64) -> f64 {
        pages as f64 / self.asked_pages.max(1) as f64
    }
}
