//! Where the keys and values of prompts came from.

use oss_cache::Stats;

/// Pages that came back from lower tiers for a request that waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Back {
    warm: u64,
    cold: u64,
}

impl Back {
    /// Adds what the cache has counted meanwhile.
    pub(crate) fn add(&mut self, before: &Stats, after: &Stats) {
        self.warm += after.warm_hits - before.warm_hits;
        self.cold += after.cold_hits - before.cold_hits;
    }
}

/// What each tier of the cache has and gave, counted in pages: sixteen positions of a group of
/// layers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct TierUse {
    /// Pages that the prompts of admitted requests needed.
    pub asked_pages: u64,
    /// Those of them that were at hand in memory.
    pub hot_found: u64,
    /// Those that were decompressed.
    pub warm_found: u64,
    /// Those that came from the file, whether they were fetched ahead or not.
    pub cold_found: u64,
    /// Everything that the cache has counted; where a panic has it made anew, counting goes on.
    pub counts: Stats,
    /// Bytes of compressed pages in memory.
    pub warm_bytes: usize,
    /// Pages in the file.
    pub cold_pages: usize,
}

impl TierUse {
    /// Counts an admitted request: pages that it asked for, pages that it begins with, and what
    /// came back for it from lower tiers. That may have come several times while it waited.
    pub(crate) fn count(&mut self, asked: usize, known: usize, back: Back) {
        let [asked, known] = [asked, known].map(|pages| pages as u64);
        let cold = back.cold.min(known);
        let warm = back.warm.min(known - cold);
        self.asked_pages += asked.max(known);
        self.hot_found += known - cold - warm;
        self.warm_found += warm;
        self.cold_found += cold;
    }

    /// The share of pages that were at hand in memory.
    #[must_use]
    pub fn hot_rate(&self) -> f64 {
        self.rate(self.hot_found)
    }

    /// The share of pages that were decompressed.
    #[must_use]
    pub fn warm_rate(&self) -> f64 {
        self.rate(self.warm_found)
    }

    /// The share of pages that came from the file, those fetched ahead included.
    #[must_use]
    pub fn cold_rate(&self) -> f64 {
        self.rate(self.cold_found)
    }

    fn rate(&self, pages: u64) -> f64 {
        pages as f64 / self.asked_pages.max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_page_is_counted_where_it_was_found_and_once() {
        let mut tiers = TierUse::default();
        tiers.count(10, 8, Back { warm: 2, cold: 3 });
        let found = |tiers: &TierUse| [tiers.hot_found, tiers.warm_found, tiers.cold_found];
        assert_eq!((tiers.asked_pages, found(&tiers)), (10, [3, 2, 3]));
        // They came back twice, as the request had to wait and others took their room.
        tiers.count(6, 4, Back { warm: 4, cold: 3 });
        assert_eq!((tiers.asked_pages, found(&tiers)), (16, [3, 3, 6]));
        // A window at another place may take a page more.
        tiers.count(3, 4, Back::default());
        assert_eq!((tiers.asked_pages, found(&tiers)), (20, [7, 3, 6]));
        let rates = [tiers.hot_rate(), tiers.warm_rate(), tiers.cold_rate()];
        assert_eq!(rates, [0.35, 0.15, 0.3]);
        assert_eq!(TierUse::default().hot_rate(), 0.0);
    }

    #[test]
    fn what_comes_back_is_the_difference_of_counts() {
        let mut back = Back::default();
        let mut before = Stats::default();
        (before.warm_hits, before.hot_hits) = (5, 3);
        let mut after = before;
        (after.warm_hits, after.cold_hits, after.prefetched_pages) = (7, 1, 9);
        back.add(&before, &after);
        back.add(&after, &after);
        assert_eq!(back, Back { warm: 2, cold: 1 });
    }
}
