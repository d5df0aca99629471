//! What is prefetched while groups of weights are multiplied.

use super::{SharedPrefetch, WeightPrefetch};
use oss_quant::CodeFormat;
use oss_simd::{PrefetchPolicy, Simd};

/// What is prefetched while a group is read, see [`Source`](super::codes::Source).
pub(super) trait Prefetcher: Copy {
    fn for_rows(self, first: usize, n: usize) -> Self;
    fn prefetch<S, F, const T: usize, const N: usize>(
        self,
        s: S,
        group: &[u8],
        block: usize,
        j: usize,
    ) where
        S: Simd,
        F: CodeFormat;
}

/// What comes a while after in the same group, or in that after it.
#[derive(Clone, Copy)]
pub(super) struct PrefetchAhead {
    /// Up to the end of the matrix, counted from the group's first byte.
    weights: WeightPrefetch,
    /// How memory is read fastest.
    policy: PrefetchPolicy,
}

impl PrefetchAhead {
    /// Where so many bytes are left from the group's first to the end of the matrix.
    #[inline(always)]
    pub(super) fn new(policy: PrefetchPolicy, left: usize) -> Self {
        Self { weights: WeightPrefetch::new(policy, left), policy }
    }
}

impl Prefetcher for PrefetchAhead {
    #[inline(always)]
    fn for_rows(self, _: usize, _: usize) -> Self {
        self
    }
    #[inline(always)]
    fn prefetch<S, F, const T: usize, const N: usize>(
        self,
        s: S,
        group: &[u8],
        block: usize,
        j: usize,
    ) where
        S: Simd,
        F: CodeFormat,
    {
        let Self { weights, policy } = self;
        // As many lines as a block touches where its first byte begins one.
        let lines = F::BLOCK_BYTES.div_ceil(64);
        let (from, to) = (j * lines / 4, (j + 1) * lines / 4);
        let bytes = const { T == 1 && F::MAX_CODE >= 128 };
        let distance = match const { takes_as_long::<S, F>(T) } {
            true => policy.distance_balanced,
            false if bytes => policy.distance_8bit,
            false => policy.distance,
        };
        let at = block * F::BLOCK_BYTES + distance / N;
        // After the end of a group comes the one that is read after those beside it.
        let beside = if at < group.len() { 0 } else { (N - 1) * group.len() };
        let (at, after) = (at + beside, 64 * from..64 * to);
        // The comparison with the end of the matrix is a branch that the compiler moves no products
        // over: it would begin those of a whole block, with more sums than registers hold, and end
        // up at half the speed.
        // The less there is to do with a block, the more its products wait for what was dropped.
        let again = const {
            match F::BLOCK_BYTES / (80 * T) {
                n @ 0..2 => n,
                _ => 2,
            }
        };
        // Codes of 8 bits are read 1 to 5 % faster prefetched twice, and so are two streams.
        if bytes {
            weights.prefetch::<S, T, 2>(s, group, at, after, again);
        } else {
            weights.prefetch::<S, T, N>(s, group, at, after, again);
        }
    }
}

/// Whether so many rows' products of a block take about as long as reading it: Zen 5 with two
/// threads, which reads 10 to 20 bytes in the time of two products of vectors.
const fn takes_as_long<S: Simd, F: CodeFormat>(rows: usize) -> bool {
    S::REGISTERS >= 32 && 50 * rows <= F::BLOCK_BYTES && F::BLOCK_BYTES <= 100 * rows
}

impl Prefetcher for SharedPrefetch<'_> {
    #[inline(always)]
    fn for_rows(self, first: usize, n: usize) -> Self {
        self.for_rows(first, n)
    }
    #[inline(always)]
    fn prefetch<S, F, const T: usize, const N: usize>(self, s: S, _: &[u8], block: usize, j: usize)
    where
        S: Simd,
        F: CodeFormat,
    {
        self.prefetch(s, 4 * block + j);
    }
}
