//! Codes times codes: exact integer sums per block of 32 columns, one fused multiply-add a block.
//!
//! A tile is one group of 16 weight rows, or a few, times T input rows. For a few input rows it
//! reads the packed weights themselves ([`Group`]), for many groups unpacked once
//! ([`super::panel`]).

#![expect(clippy::needless_range_loop, reason = "with iterators tiles compile half as long again")]

use super::prefetch::{PrefetchAhead, Prefetcher};
use super::{Gemm, SharedPrefetch};
use crate::input::{CodeBlock, FINE_BITS, MAX_PLANES};
use oss_quant::{CodeFormat, Matrix, RUN_BLOCKS, RecordBytes};
use oss_simd::{CacheLevel, Extension, Kernel, PrefetchPolicy, Simd, array_of};
use std::array;
use std::marker::PhantomData;

/// One group of 16 weight rows, as a tile reads it: `weight = scale · (code - zero) - min`.
pub(super) trait Source: Copy {
    /// How many calls of [`Simd::dot`] add up exactly: all 8 of a block, the 4 of half its vectors,
    /// or 0 where it takes [`Simd::dot_signed`].
    const CALLS: usize;
    /// Whether columns 0..16 and 16..32 of a block have scales and minima of their own.
    const HALVES: bool;
    /// Whether a minimum is subtracted.
    const HAS_MIN: bool;
    /// Whether a run of blocks is found sooner than each of them.
    const HAS_RUNS: bool;
    /// Blocks in a record, at most.
    const RECORD: usize;
    /// Neighbouring blocks, whose bounds are checked together.
    type Record: Copy;
    /// What is read of a block.
    type Block: Copy;
    /// The code of zero.
    fn zero<S: Simd>(self) -> u8;
    /// The record that begins with the block `first`.
    fn record(self, first: usize) -> Self::Record;
    /// A block of a record.
    fn block(record: Self::Record, index: usize) -> Self::Block;
    /// The blocks from `first` on, a multiple of their number.
    #[inline(always)]
    fn run(self, first: usize) -> [Self::Block; RUN_BLOCKS] {
        let record = self.record(first);
        array_of(|index| Self::block(record, index))
    }
    /// The same for a tile of some input rows, which prefetches their share of what comes next.
    fn for_rows(self, first: usize, n: usize) -> Self;
    /// Prefetches the j-th fourth of what is due with a block, where T rows meet N groups that are
    /// read at the same time. Evenly over a block: memory is slower when much is fetched at once.
    fn prefetch<S: Simd, const T: usize, const N: usize>(self, s: S, block: usize, j: usize);
    /// The codes of columns `4 j..` and `16 + 4 j..` of a block, four columns a lane.
    fn pair<S: Simd>(s: S, block: Self::Block, j: usize) -> (S::U8, S::U8);
    /// The scales of a block's halves.
    fn scales<S: Simd>(s: S, block: Self::Block) -> (S::F32, S::F32);
    /// The minima of a block's halves.
    fn mins<S: Simd>(s: S, block: Self::Block) -> (S::F32, S::F32);
}

/// The groups of a packed matrix.
#[derive(Clone, Copy)]
pub(super) struct Groups<'a> {
    bytes: &'a [u8],
    group_bytes: usize,
    n_blocks: usize,
    policy: PrefetchPolicy,
}

impl<'a> Groups<'a> {
    pub(super) fn new(gemm: &Gemm<'a, '_>) -> Self {
        let Matrix { packing, bytes } = gemm.product.matrix;
        let (group_bytes, n_blocks) = (packing.group_bytes(), packing.n_blocks());
        Self { bytes, group_bytes, n_blocks, policy: gemm.policy }
    }

    #[inline(always)]
    fn bytes(self, index: usize) -> &'a [u8] {
        &self.bytes[index * self.group_bytes..][..self.group_bytes]
    }

    /// A group.
    #[inline(always)]
    fn whole<F>(self, index: usize) -> Group<'a, F, PrefetchAhead> {
        let Self { bytes, group_bytes, policy, .. } = self;
        let left = bytes.len() - index * group_bytes;
        self.part(index, 0, PrefetchAhead::new(policy, left))
    }

    /// The blocks of a group from `first` on.
    #[inline(always)]
    pub(super) fn part<F, A>(self, index: usize, first: usize, prefetcher: A) -> Group<'a, F, A> {
        let (bytes, n_blocks) = (self.bytes(index), self.n_blocks);
        Group { bytes, n_blocks, first, prefetcher, format: PhantomData }
    }

    /// Some blocks of a group.
    #[inline(always)]
    pub(super) fn blocks<F: CodeFormat>(
        self,
        index: usize,
        (begin, end): (usize, usize),
    ) -> &'a [u8] {
        &self.bytes(index)[begin * F::BLOCK_BYTES..end * F::BLOCK_BYTES]
    }

    /// The next [`BLOCKS`] after those of a group up to `end`: its own, or those of the group
    /// [`GROUPS`] further on.
    #[inline(always)]
    pub(super) fn next<F: CodeFormat>(self, index: usize, end: usize) -> &'a [u8] {
        let at = match end * F::BLOCK_BYTES {
            at if at < self.group_bytes => index * self.group_bytes + at,
            _ => (index + GROUPS) * self.group_bytes,
        };
        let next = self.bytes.get(at..).unwrap_or_default();
        &next[..next.len().min(BLOCKS * F::BLOCK_BYTES)]
    }
}

/// A group as it is packed, or its blocks from `first` on.
pub(super) struct Group<'a, F, A> {
    bytes: &'a [u8],
    /// Of the whole group.
    n_blocks: usize,
    first: usize,
    prefetcher: A,
    format: PhantomData<F>,
}

impl<F, A: Copy> Clone for Group<'_, F, A> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<F, A: Copy> Copy for Group<'_, F, A> {}

impl<'a, F: CodeFormat, A> Group<'a, F, A> {
    /// A block.
    #[inline(always)]
    pub(super) fn at(&self, block: usize) -> oss_quant::Block<'a> {
        F::block(self.bytes, self.n_blocks, self.first + block)
    }
}

impl<'a, F: CodeFormat, A: Prefetcher> Source for Group<'a, F, A> {
    const CALLS: usize = calls::<F>();
    const HALVES: bool = F::HALVES;
    const HAS_MIN: bool = F::HAS_MIN;
    const HAS_RUNS: bool = F::RECORD.has_runs();
    const RECORD: usize = F::RECORD.blocks();
    type Record = RecordBytes<'a>;
    type Block = oss_quant::Block<'a>;

    #[inline(always)]
    fn zero<S: Simd>(self) -> u8 {
        F::zero::<S>() as u8
    }
    #[inline(always)]
    fn record(self, first: usize) -> RecordBytes<'a> {
        F::record(self.bytes, self.n_blocks, self.first + first)
    }
    #[inline(always)]
    fn block(record: RecordBytes<'a>, index: usize) -> Self::Block {
        F::block_of(record, index)
    }
    #[inline(always)]
    fn run(self, first: usize) -> [Self::Block; RUN_BLOCKS] {
        F::run(self.bytes, self.first + first)
    }
    #[inline(always)]
    fn for_rows(self, first: usize, n: usize) -> Self {
        Self { prefetcher: self.prefetcher.for_rows(first, n), ..self }
    }
    #[inline(always)]
    fn prefetch<S: Simd, const T: usize, const N: usize>(self, s: S, block: usize, j: usize) {
        self.prefetcher.prefetch::<S, F, T, N>(s, self.bytes, block, j);
    }
    #[inline(always)]
    fn pair<S: Simd>(s: S, block: Self::Block, j: usize) -> (S::U8, S::U8) {
        F::pair(s, block, j)
    }
    #[inline(always)]
    fn scales<S: Simd>(s: S, block: Self::Block) -> (S::F32, S::F32) {
        F::scales(s, block)
    }
    #[inline(always)]
    fn mins<S: Simd>(s: S, block: Self::Block) -> (S::F32, S::F32) {
        F::mins(s, block)
    }
}

/// Products with packed groups.
pub(super) struct Codes<'w, 'a, 'b, F> {
    gemm: &'w mut Gemm<'a, 'b>,
    format: PhantomData<F>,
}

impl<'w, 'a, 'b, F: CodeFormat> Codes<'w, 'a, 'b, F> {
    pub(super) fn new(gemm: &'w mut Gemm<'a, 'b>) -> Self {
        Self { gemm, format: PhantomData }
    }
}

impl<F: CodeFormat> Kernel for Codes<'_, '_, '_, F> {
    type Output = ();
    const EXTENSION: Extension = Extension::Bytes;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let gemm = self.gemm;
        let (groups, all) = (Groups::new(gemm), gemm.groups.clone());
        let (n, blocks) = (gemm.code_rows(), (0, groups.n_blocks));
        let many = n > MOST_ROWS && gemm.policy.level == CacheLevel::First;
        // Some processors read memory fastest as two streams, as long as registers hold the sums of
        // both.
        let pays = S::REGISTERS >= 32 || (S::REGISTERS >= 8 && n <= 2);
        let streams = pays && gemm.policy.streams == 2;
        let in_parts = const { by_parts::<S, F>() } && many;
        let passes = if in_parts || streams { all.len() / GROUPS } else { 0 };
        let pairs = TileRange { group: all.start, passes, first: 0, n, blocks };
        let pair = |group| [groups.whole::<F>(group), groups.whole(group + 1)];
        // By constants, which keep what is never called from being compiled.
        if const { by_parts::<S, F>() } && many {
            pair_by_parts::<S, F>(s, groups, gemm, pairs);
        } else if const { S::REGISTERS >= 32 } {
            tiles::<S, _, GROUPS, MOST_ROWS>(s, pair, gemm, pairs);
        } else if const { S::REGISTERS >= 8 } {
            tiles::<S, _, GROUPS, 2>(s, pair, gemm, pairs);
        }
        let rest = all.start + GROUPS * passes..all.end;
        let ones = TileRange { group: rest.start, passes: rest.len(), ..pairs };
        tiles::<S, _, 1, MOST_ROWS>(s, |group| [groups.whole::<F>(group)], gemm, ones);
    }
}

/// Whether more rows than one tile takes meet two groups part by part, each number of theirs loaded
/// once for both, where parts are prefetched to the first-level cache. Codes of less than 8 bits
/// are unpacked by each tile, which takes longer.
const fn by_parts<S: Simd, F: CodeFormat>() -> bool {
    S::REGISTERS >= 32 && S::DOT_IS_EXACT && F::MAX_CODE >= 128
}

/// Products of a range's pairs of groups, in parts that all of its tiles meet in turn.
#[inline(always)]
fn pair_by_parts<S: Simd, F: CodeFormat>(
    s: S,
    groups: Groups<'_>,
    gemm: &mut Gemm<'_, '_>,
    all: TileRange,
) {
    for group in (all.group..).step_by(GROUPS).take(all.passes) {
        for (first, end) in parts(groups.n_blocks, F::RECORD.blocks()) {
            let pair = [group, group + 1].map(|group| {
                let next =
                    SharedPrefetch::new(groups.next::<F>(group, end), all.n, 4 * (end - first));
                groups.part::<F, _>(group, first, next)
            });
            let range = TileRange { group, passes: 1, blocks: (first, end), ..all };
            tiles::<S, _, GROUPS, 4>(s, |_| pair, gemm, range);
        }
    }
}

/// Groups that are read or multiplied together, where registers allow.
pub(super) const GROUPS: usize = 2;

/// The most blocks of each group that several tiles meet, one after the other: they, and the blocks
/// of a tile's rows of activations that they meet, stay in a first-level cache: of 48 KiB, and of
/// 32 where neither halves nor minima take more.
pub(super) const BLOCKS: usize = 22;

/// So many blocks in parts of [`BLOCKS`] at most, all about as long: a short one takes a tile's
/// beginning and end as well. Each begins at a multiple of `unit`, which divides [`BLOCKS`]. Gives
/// the first of each, and its end.
pub(super) fn parts(n_blocks: usize, unit: usize) -> impl Iterator<Item = (usize, usize)> {
    assert!(BLOCKS.is_multiple_of(unit), "parts of {BLOCKS} blocks, in units of {unit}");
    let len = n_blocks.div_ceil(n_blocks.div_ceil(BLOCKS).max(1)).next_multiple_of(unit).max(1);
    (0..n_blocks).step_by(len).map(move |first| (first, n_blocks.min(first + len)))
}

/// The most rows of a tile, and the most sums that are begun together.
pub(super) const MOST_ROWS: usize = 8;

/// Whether a tile takes so many rows of codes: MOST at most, and what registers hold a sum and a
/// running dot product for. Two planes have few widths: only narrow models take them.
const fn fits<S: Simd, const MOST: usize, const PLANES: usize>(n: usize) -> bool {
    let held = match S::REGISTERS {
        32.. => MOST_ROWS,
        8.. => 4,
        _ => PLANES,
    };
    n <= MOST && n <= held && (PLANES == 1 || n == PLANES || n == 2 * PLANES)
}

/// The widest of them.
const fn widest<S: Simd, const MOST: usize, const PLANES: usize>() -> usize {
    let mut n = MOST_ROWS;
    while n > PLANES && !fits::<S, MOST, PLANES>(n) {
        n -= 1;
    }
    n
}

/// All rows of a range times `passes` times G groups, which `groups` gives by the first's index.
#[inline(always)]
pub(super) fn tiles<S: Simd, W: Source, const G: usize, const MOST: usize>(
    s: S,
    groups: impl Fn(usize) -> [W; G] + Copy,
    gemm: &mut Gemm<'_, '_>,
    all: TileRange,
) {
    match gemm.planes {
        1 => tiles_of::<S, W, G, MOST, 1>(s, groups, gemm, all),
        _ => tiles_of::<S, W, G, MOST, MAX_PLANES>(s, groups, gemm, all),
    }
}

/// The same in tiles of about the same width, at most MOST rows each: thirteen rows are 7 + 6
/// rather than 8 + 5. All planes of a row are in one tile.
#[inline(always)]
fn tiles_of<S: Simd, W: Source, const G: usize, const MOST: usize, const PLANES: usize>(
    s: S,
    groups: impl Fn(usize) -> [W; G] + Copy,
    gemm: &mut Gemm<'_, '_>,
    all: TileRange,
) {
    let n_rows = all.n / PLANES;
    let n_tiles = n_rows.div_ceil(widest::<S, MOST, PLANES>() / PLANES);
    let (narrow, wider) = (n_rows / n_tiles.max(1), n_rows % n_tiles.max(1));
    // One tile goes on from group to group; several meet each while it is in the cache.
    let passes = if n_tiles == 1 { all.passes } else { 1 };
    for pass in (0..all.passes).step_by(passes.max(1)) {
        let mut first = all.first;
        for tile_index in 0..n_tiles {
            let n = PLANES * (narrow + usize::from(tile_index < wider));
            let range = TileRange { group: all.group + pass * G, passes, first, n, ..all };
            // The constants keep tiles that do not fit from even being compiled.
            match n {
                7.. if const { fits::<S, MOST, PLANES>(8) } => {
                    tile::<S, _, G, 8, PLANES>(s, groups, gemm, range);
                }
                6 if const { fits::<S, MOST, PLANES>(6) } => {
                    tile::<S, _, G, 6, PLANES>(s, groups, gemm, range);
                }
                5 if const { fits::<S, MOST, PLANES>(5) } => {
                    tile::<S, _, G, 5, PLANES>(s, groups, gemm, range);
                }
                4 if const { fits::<S, MOST, PLANES>(4) } => {
                    tile::<S, _, G, 4, PLANES>(s, groups, gemm, range);
                }
                3 if const { fits::<S, MOST, PLANES>(3) } => {
                    tile::<S, _, G, 3, PLANES>(s, groups, gemm, range);
                }
                2 if const { PLANES == 1 && fits::<S, MOST, PLANES>(2) } => {
                    tile::<S, _, G, 2, PLANES>(s, groups, gemm, range);
                }
                _ => tile::<S, _, G, PLANES, PLANES>(s, groups, gemm, range),
            }
            first += n;
        }
    }
}

/// What a tile computes: the groups from `group` on, as often as `passes` says the next ones, times
/// the `n` rows of codes from `first`, over the blocks `blocks.0..blocks.1`. What lies in `out` is
/// the sum over the blocks before.
#[derive(Clone, Copy)]
pub(super) struct TileRange {
    pub(super) group: usize,
    pub(super) passes: usize,
    pub(super) first: usize,
    pub(super) n: usize,
    pub(super) blocks: (usize, usize),
}

#[inline(always)]
fn tile<S: Simd, W: Source, const G: usize, const T: usize, const PLANES: usize>(
    s: S,
    groups: impl Fn(usize) -> [W; G],
    gemm: &mut Gemm<'_, '_>,
    range: TileRange,
) {
    s.outline(Tile::<_, G, T, PLANES> { groups, gemm, range });
}

/// G neighbouring groups at a time times at most T rows of codes; what of T is left over repeats
/// the last row and is not stored.
struct Tile<'w, 'a, 'b, F, const G: usize, const T: usize, const PLANES: usize> {
    groups: F,
    gemm: &'w mut Gemm<'a, 'b>,
    range: TileRange,
}

impl<W, F, const G: usize, const T: usize, const PLANES: usize> Kernel
    for Tile<'_, '_, '_, F, G, T, PLANES>
where
    W: Source,
    F: Fn(usize) -> [W; G],
{
    type Output = ();
    const EXTENSION: Extension = Extension::Bytes;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { groups, gemm, range } = self;
        let TileRange { first, blocks: (begin, end), .. } = range;
        // The compiler knows how many rows are stored, but for the widest tiles.
        let n = if T == MOST_ROWS { range.n } else { T };
        let rows: [&[CodeBlock]; T] =
            array_of(|t| &gemm.code_row(first + t.min(n - 1))[begin..end]);
        let (first_out, stored) = (first / PLANES, n / PLANES);
        for pass in 0..range.passes {
            let group = range.group + pass * G;
            let groups = groups(group);
            let groups: [W; G] = array_of(|g| groups[g].for_rows(first, n));
            let mut acc = [[s.zero(); T]; G];
            for t in 0..T {
                if t < stored && begin > 0 {
                    let sums = gemm.out::<G>(group, first_out + t);
                    for g in 0..G {
                        acc[g][t] = s.load(&sums[g]);
                    }
                }
            }
            // A single row has so little to do with a block that memory waits wherever a branch is
            // guessed wrong, and the end of a group is guessed only where few branches lie before
            // it. So there is one for a run, whose blocks are written out, where registers hold it.
            let has_runs = const { G == 1 && T == 1 && S::REGISTERS >= 32 && W::HAS_RUNS };
            let runs = if has_runs { (end - begin) / RUN_BLOCKS } else { 0 };
            for run in 0..runs {
                let run = Run::<W, T, PLANES>::of(groups[0], &rows, run * RUN_BLOCKS);
                run.add(s, 0, &mut acc[0]);
                run.add(s, 1, &mut acc[0]);
                run.add(s, 2, &mut acc[0]);
                run.add(s, 3, &mut acc[0]);
            }
            let left = end - begin - runs * RUN_BLOCKS;
            // Known to the compiler where there is but one: a loop over it costs panels 3 %.
            let n_records = if W::RECORD >= BLOCKS { 1 } else { left.div_ceil(W::RECORD) };
            for record in 0..n_records {
                let first = runs * RUN_BLOCKS + record * W::RECORD;
                // Not a constant: of blocks written out, the compiler begins all sums at once.
                let n = if W::RECORD >= BLOCKS { left } else { W::RECORD.min(end - begin - first) };
                let records: [_; G] = array_of(|g| groups[g].record(first));
                let rows: [_; T] = array_of(|t| &rows[t][first..][..n]);
                for index in 0..n {
                    let a = Rows::<T, PLANES>(array_of(|t| &rows[t][index]));
                    let block = first + index;
                    if const { T > 1 && G * T <= MOST_ROWS } {
                        let at = At::of(groups, records, (block, index));
                        add_block::<S, W, G, T, G, PLANES>(s, &at, a, &mut acc);
                    } else {
                        // Groups that share no row's numbers, or have more sums than registers
                        // hold.
                        for g in 0..G {
                            let at = At::of([groups[g]], [records[g]], (block, index));
                            let acc = array::from_mut(&mut acc[g]);
                            add_block::<S, W, 1, T, G, PLANES>(s, &at, a, acc);
                        }
                    }
                }
            }
            for t in 0..T {
                if t < stored {
                    let sums = gemm.out::<G>(group, first_out + t);
                    for g in 0..G {
                        s.store(acc[g][t], &mut sums[g]);
                    }
                }
            }
        }
    }
}

/// A block of T rows of codes, the planes of each row side by side.
#[derive(Clone, Copy)]
struct Rows<'a, const T: usize, const PLANES: usize>([&'a CodeBlock; T]);

impl<'a, const T: usize, const PLANES: usize> Rows<'a, T, PLANES> {
    /// What a row's finest plane holds: its scale, and what all of its planes have once.
    #[inline(always)]
    fn finest(&self, row: usize) -> &'a CodeBlock {
        self.0[PLANES * row + PLANES - 1]
    }

    /// The sum of a row's planes in units of the finest.
    #[inline(always)]
    fn sum<S: Simd>(s: S, sums: &[S::I32; T], row: usize) -> S::I32 {
        let mut sum = sums[PLANES * row];
        for plane in 1..PLANES {
            sum = s.add_i32(s.shl_i32::<FINE_BITS>(sum), sums[PLANES * row + plane]);
        }
        sum
    }
}

/// A block of G groups.
struct At<W: Source, const G: usize> {
    groups: [W; G],
    blocks: [W::Block; G],
    block: usize,
}

impl<W: Source, const G: usize> At<W, G> {
    /// The block `block`, which is the `index`-th of a record of each group.
    #[inline(always)]
    fn of(groups: [W; G], records: [W::Record; G], (block, index): (usize, usize)) -> Self {
        Self { groups, blocks: array_of(|g| W::block(records[g], index)), block }
    }
}

/// A run of a group, from the block `first` on, and what it meets.
struct Run<'a, W: Source, const T: usize, const PLANES: usize> {
    group: W,
    blocks: [W::Block; RUN_BLOCKS],
    rows: [&'a [CodeBlock]; T],
    first: usize,
}

impl<'a, W: Source, const T: usize, const PLANES: usize> Run<'a, W, T, PLANES> {
    #[inline(always)]
    fn of(group: W, rows: &[&'a [CodeBlock]; T], first: usize) -> Self {
        let rows = array_of(|t| &rows[t][first..][..RUN_BLOCKS]);
        Self { group, blocks: group.run(first), rows, first }
    }

    /// Adds the products of a block to a sum for each row.
    #[inline(always)]
    fn add<S: Simd>(&self, s: S, index: usize, acc: &mut [S::F32; T]) {
        let rows = Rows::<T, PLANES>(array_of(|t| &self.rows[t][index]));
        let (groups, blocks) = ([self.group], [self.blocks[index]]);
        let at = At { groups, blocks, block: self.first + index };
        add_block::<S, W, 1, T, 1, PLANES>(s, &at, rows, array::from_mut(acc));
    }
}

/// Adds the products of a block of G groups, out of N that are read at the same time, to a sum for
/// each row.
#[inline(always)]
fn add_block<S, W, const G: usize, const T: usize, const N: usize, const PLANES: usize>(
    s: S,
    at: &At<W, G>,
    rows: Rows<'_, T, PLANES>,
    acc: &mut [[S::F32; T]; G],
) where
    S: Simd,
    W: Source,
{
    let blocks = at.blocks;
    for half in 0..if W::HALVES { 2 } else { 1 } {
        let sums = match (W::HALVES, half) {
            (false, _) => block_sums::<S, W, G, T, N>(s, at, rows.0),
            (true, half) => half_sums::<S, W, G, T, N>(s, at, half, rows.0),
        };
        for g in 0..G {
            let (low, high) = W::scales(s, blocks[g]);
            let scale = if half == 0 { low } else { high };
            for t in 0..T / PLANES {
                let scale = s.mul(scale, s.splat(rows.finest(t).scale));
                let sum = Rows::<T, PLANES>::sum(s, &sums[g], t);
                acc[g][t] = s.fma(s.i32_to_f32(sum), scale, acc[g][t]);
            }
        }
    }
    for g in 0..if W::HAS_MIN { G } else { 0 } {
        let (min_low, min_high) = W::mins(s, blocks[g]);
        for t in 0..T / PLANES {
            let [low, high, both] = rows.finest(t).neg_sums;
            if W::HALVES {
                acc[g][t] = s.fma(min_low, s.splat(low), acc[g][t]);
                acc[g][t] = s.fma(min_high, s.splat(high), acc[g][t]);
            } else {
                acc[g][t] = s.fma(min_low, s.splat(both), acc[g][t]);
            }
        }
    }
}

/// [`Source::CALLS`] of a format.
pub(super) const fn calls<F: CodeFormat>() -> usize {
    let above = F::MAX_CODE - F::ZERO;
    let reach = if above > F::ZERO { above } else { F::ZERO };
    let calls = match (F::MAX_CODE, 32_767 / (254 * reach)) {
        (128.., _) => 0,
        (_, 8..) if !F::HALVES => 8,
        (_, 4..) => 4,
        _ => panic!("a format of codes between 7 and 8 bits"),
    };
    // A sum's start stands for all its calls, so all have to be in it.
    assert!(calls == 8 || F::HALVES || F::ZERO == 0 || calls == 0, "a start for half a block");
    assert!(calls > 0 || !F::HALVES && !F::HAS_MIN, "halves or minima of wide codes");
    calls
}

/// `Σ (code - zero) · a` over the columns of a block, exactly.
#[inline(always)]
fn block_sums<S: Simd, W: Source, const G: usize, const T: usize, const N: usize>(
    s: S,
    at: &At<W, G>,
    a: [&CodeBlock; T],
) -> [[S::I32; T]; G] {
    let mut sums = [[s.zero_i32(); T]; G];
    if W::CALLS == 0 && !S::DOT_IS_EXACT {
        add_signed::<S, W, G, T, N>(s, at, 0, a, &mut sums);
        add_signed::<S, W, G, T, N>(s, at, 1, a, &mut sums);
        add_signed::<S, W, G, T, N>(s, at, 2, a, &mut sums);
        add_signed::<S, W, G, T, N>(s, at, 3, a, &mut sums);
        return sums;
    }
    let mut dots = [[s.dot_start(0, 0); G]; T];
    if S::DOT_IS_EXACT || W::CALLS == 8 {
        for t in 0..T {
            let zero = at.groups[0].zero::<S>();
            let start = if S::DOT_IS_EXACT && zero == 128 {
                s.dot_zero_point_128(a[t].zero_point_sum)
            } else {
                s.dot_start(zero, a[t].sums[2])
            };
            dots[t] = [start; G];
        }
    }
    add_pair::<S, W, G, T, N, 0, 4>(s, at, a, &mut dots);
    add_pair::<S, W, G, T, N, 1, 5>(s, at, a, &mut dots);
    if !S::DOT_IS_EXACT && W::CALLS == 4 {
        for g in 0..G {
            for t in 0..T {
                sums[g][t] = s.dot_sum(dots[t][g]);
                dots[t][g] = s.dot_start(0, 0);
            }
        }
    }
    add_pair::<S, W, G, T, N, 2, 6>(s, at, a, &mut dots);
    add_pair::<S, W, G, T, N, 3, 7>(s, at, a, &mut dots);
    for g in 0..G {
        for t in 0..T {
            sums[g][t] = s.add_i32(sums[g][t], s.dot_sum(dots[t][g]));
        }
    }
    sums
}

/// The same over one half of a block's columns.
#[inline(always)]
fn half_sums<S: Simd, W: Source, const G: usize, const T: usize, const N: usize>(
    s: S,
    at: &At<W, G>,
    half: usize,
    a: [&CodeBlock; T],
) -> [[S::I32; T]; G] {
    let mut dots = [[s.dot_start(0, 0); G]; T];
    for t in 0..T {
        dots[t] = [s.dot_start(at.groups[0].zero::<S>(), a[t].sums[half]); G];
    }
    if half == 0 {
        add::<S, G, T, 0>(s, columns::<S, W, G, T, N>(s, at, 0).0, a, &mut dots);
        add::<S, G, T, 1>(s, columns::<S, W, G, T, N>(s, at, 1).0, a, &mut dots);
        add::<S, G, T, 2>(s, columns::<S, W, G, T, N>(s, at, 2).0, a, &mut dots);
        add::<S, G, T, 3>(s, columns::<S, W, G, T, N>(s, at, 3).0, a, &mut dots);
    } else {
        add::<S, G, T, 4>(s, codes::<S, W, G>(s, at, 0).1, a, &mut dots);
        add::<S, G, T, 5>(s, codes::<S, W, G>(s, at, 1).1, a, &mut dots);
        add::<S, G, T, 6>(s, codes::<S, W, G>(s, at, 2).1, a, &mut dots);
        add::<S, G, T, 7>(s, codes::<S, W, G>(s, at, 3).1, a, &mut dots);
    }
    let mut sums = [[s.zero_i32(); T]; G];
    for g in 0..G {
        for t in 0..T {
            sums[g][t] = s.dot_sum(dots[t][g]);
        }
    }
    sums
}

/// The codes of columns `4 j..` and of `16 + 4 j..`.
#[inline(always)]
fn codes<S: Simd, W: Source, const G: usize>(
    s: S,
    at: &At<W, G>,
    j: usize,
) -> ([S::U8; G], [S::U8; G]) {
    let mut bottom = [s.i32_as_u8(s.zero_i32()); G];
    let mut top = bottom;
    for g in 0..G {
        (bottom[g], top[g]) = W::pair(s, at.blocks[g], j);
    }
    (bottom, top)
}

/// The same, prefetching the j-th fourth of what comes a while after.
#[inline(always)]
fn columns<S: Simd, W: Source, const G: usize, const T: usize, const N: usize>(
    s: S,
    at: &At<W, G>,
    j: usize,
) -> ([S::U8; G], [S::U8; G]) {
    let codes = codes(s, at, j);
    for g in 0..G {
        at.groups[g].prefetch::<S, T, N>(s, at.block, j);
    }
    codes
}

/// Adds the products of the J-th four columns of each half, which are the J-th and the K-th of a
/// block, prefetching meanwhile as [`columns`] does.
#[inline(always)]
fn add_pair<
    S: Simd,
    W: Source,
    const G: usize,
    const T: usize,
    const N: usize,
    const J: usize,
    const K: usize,
>(
    s: S,
    at: &At<W, G>,
    a: [&CodeBlock; T],
    dots: &mut [[S::Dot; G]; T],
) {
    let (bottom, top) = columns::<S, W, G, T, N>(s, at, J);
    add::<S, G, T, J>(s, bottom, a, dots);
    add::<S, G, T, K>(s, top, a, dots);
}

/// The same for codes of 8 bits where products of bytes are added in 16, which hold two: by their
/// magnitudes and signs. A call for each `j`, so that the compiler knows it.
#[inline(always)]
fn add_signed<S: Simd, W: Source, const G: usize, const T: usize, const N: usize>(
    s: S,
    at: &At<W, G>,
    j: usize,
    a: [&CodeBlock; T],
    sums: &mut [[S::I32; T]; G],
) {
    let (bottom, top) = columns::<S, W, G, T, N>(s, at, j);
    for g in 0..G {
        let zero = at.groups[g].zero::<S>();
        let (bottom, top) = (s.signed(bottom[g], zero), s.signed(top[g], zero));
        for t in 0..T {
            let quads = a[t].quads();
            sums[g][t] = s.dot_signed(sums[g][t], bottom, i32::from_le_bytes(quads[j]));
            sums[g][t] = s.dot_signed(sums[g][t], top, i32::from_le_bytes(quads[4 + j]));
        }
    }
}

/// Adds the products of the Q-th four columns.
#[inline(always)]
fn add<S: Simd, const G: usize, const T: usize, const Q: usize>(
    s: S,
    codes: [S::U8; G],
    a: [&CodeBlock; T],
    dots: &mut [[S::Dot; G]; T],
) {
    for t in 0..T {
        dots[t] = s.dot_each::<G, Q>(dots[t], codes, a[t].quads());
    }
}
