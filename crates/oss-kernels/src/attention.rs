//! Attention over paged keys and values: a few neighbouring tokens, and all query heads of a
//! key/value head, at once, so that what is read of a page serves them all.
//!
//! Positions are visited in tiles of [`TILE`] with the online softmax (Milakov and Gimelshein,
//! 2018; Dao et al., 2022), tiles form splits of [`SPLIT`], and splits are combined in ascending
//! order. Both start at absolute positions, so the result depends only on the token, its position
//! and what the pages hold: not on how the prompt was cut or on who else is in the batch.
//!
//! A query may see some tiles alone, those that [`select_blocks`] found for it
//! ([`SparseAttention`]). Tiles that no query of a call sees are not read; one that does not see a
//! tile is left as it is.

use crate::prefetch::prefetch_to;
use oss_quant::kv::{KvCodec, KvFormat, KvVisitor, Pairs, Products};
use oss_simd::{CacheLevel, Extension, Isa, Kernel, PrefetchPolicy, Simd};
use std::{marker::PhantomData, ops::Range};

mod running;
mod softmax_tile;
mod sparse;

use running::{Done, Running};
use softmax_tile::softmax_tile;
pub use sparse::{ParseSparseAttentionError, SparseAttention, select_blocks};

/// Positions in a page.
pub const PAGE: usize = oss_quant::kv::PAGE_TOKENS;
/// Positions in a tile of the online softmax.
pub const TILE: usize = 64;
/// Positions whose tiles are summed before they join the rest.
pub const SPLIT: usize = 1024;
/// Partial sums of a head's softmax.
const LANES: usize = 16;
/// Tiles of a split.
const TILES: usize = SPLIT / TILE;
/// Tokens that a call should bring together.
pub const QUERIES: usize = 8;

/// The slots of a tile's pages; one that is not there is empty.
pub type TileSlots<'a> = [&'a [u8]; TILE / PAGE];

/// What is the same for every token of a layer.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// How keys and values are stored.
    pub format: KvFormat,
    /// Numbers in a head.
    pub head_dim: usize,
    /// What scores are multiplied with, usually 1 / sqrt(head_dim).
    pub scale: f32,
}

impl Shape {
    /// Numbers of scratch that [`attend`] needs for `n_heads` query heads of all tokens together.
    #[must_use]
    pub const fn scratch_len(&self, n_heads: usize) -> usize {
        n_heads * (TILE + self.even_head_dim()) + 2 * self.partial_len(n_heads)
    }

    /// Numbers in what [`attend_split`] finds of a split for so many query heads.
    #[must_use]
    pub const fn partial_len(&self, n_heads: usize) -> usize {
        n_heads * (self.padded_head_dim() + LANES + 1)
    }

    const fn even_head_dim(&self) -> usize {
        self.head_dim.next_multiple_of(2)
    }

    const fn padded_head_dim(&self) -> usize {
        self.head_dim.next_multiple_of(16)
    }
}

/// One token's query heads that share a key/value head.
#[derive(Clone, Copy, Debug)]
pub struct Query<'a> {
    /// `[n_heads, head_dim]`, rotated.
    pub heads: &'a [f32],
    /// One logit per head that takes part in the softmax but has no value, or none.
    pub sinks: Option<&'a [f32]>,
    /// First visible position.
    pub start: usize,
    /// One past the last visible position: the token's own position + 1.
    pub end: usize,
    /// The tiles of [`TILE`] positions that are visible of these, ascending; none: all.
    pub blocks: Option<&'a [u32]>,
}

impl Query<'_> {
    /// The first tile at or after `tile` of which it sees anything.
    #[inline(always)]
    fn tile_from(&self, tile: usize) -> Option<usize> {
        let tile = tile.max(self.start / TILE);
        let tile = match self.blocks {
            None => tile,
            Some(blocks) => {
                let at = blocks.partition_point(|block| (*block as usize) < tile);
                *blocks.get(at)? as usize
            }
        };
        (tile * TILE < self.end).then_some(tile)
    }

    /// Whether it sees anything of a tile.
    #[inline(always)]
    fn sees_tile(&self, tile: usize) -> bool {
        self.tile_from(tile) == Some(tile)
    }

    /// What it sees of a tile, as positions counted from the tile's beginning.
    #[inline(always)]
    fn within(&self, tile: usize) -> (usize, usize) {
        if !self.sees_tile(tile) {
            return (0, 0);
        }
        let counted = |position: usize| position.saturating_sub(tile * TILE).min(TILE);
        (counted(self.start), counted(self.end))
    }

    /// Whether it sees anything of a split.
    #[must_use]
    pub fn sees(&self, split: usize) -> bool {
        self.tile_from(split * TILES).is_some_and(|tile| tile < (split + 1) * TILES)
    }
}

/// The splits in which a token sees positions `start..end`.
#[must_use]
pub const fn splits(start: usize, end: usize) -> Range<usize> {
    start / SPLIT..end.div_ceil(SPLIT)
}

/// The attention of some tokens of one sequence. `slot(page)` gives the bytes of a page for this
/// layer and key/value head; `after` are those that the caller wants next, which are prefetched
/// when the last tile begins; `give(t, heads)` gets the result of the t-th query,
/// `[n_heads, head_dim]`. What a token gets does not depend on which others are in the call.
///
/// # Panics
/// When a query sees no position, queries differ in their heads, or lengths do not fit.
pub fn attend<'a>(
    isa: Isa,
    shape: Shape,
    queries: &[Query<'_>],
    (slot, after): (impl Fn(usize) -> &'a [u8], TileSlots<'a>),
    scratch: &mut [f32],
    mut give: impl FnMut(usize, &[f32]),
) {
    let to = To::Result(&mut give);
    run(Call { isa, shape, queries, slot: &slot, after, scratch, to });
}

/// What the tokens of [`attend`] get of one split of positions alone, for [`merge_splits`]: splits
/// are independent of each other, so that several workers can share one long sequence. It lies in
/// `scratch`, in [`Shape::partial_len`] numbers.
///
/// # Panics
/// As [`attend`], and when no query sees a position of the split.
pub fn attend_split<'a, 's>(
    isa: Isa,
    shape: Shape,
    queries: &[Query<'_>],
    split: usize,
    slot: impl Fn(usize) -> &'a [u8],
    scratch: &'s mut [f32],
) -> &'s [f32] {
    let Some(n_heads) = check(shape, queries) else { return &[] };
    let seen = queries.iter().any(|query| query.sees(split));
    assert!(seen, "split {split} is seen by no query");
    let after = TileSlots::default();
    run(Call { isa, shape, queries, slot: &slot, after, scratch, to: To::Split(split) });
    let all = queries.len() * n_heads;
    &scratch[all * (TILE + shape.even_head_dim())..][..shape.partial_len(all)]
}

/// The attention of some tokens out of what [`attend_split`] found of each split that any of them
/// sees: the same, to the bit, as [`attend`] gives at once.
///
/// # Panics
/// As [`attend`].
pub fn merge_splits<'a>(
    isa: Isa,
    shape: Shape,
    queries: &[Query<'_>],
    partial: impl Fn(usize) -> &'a [f32],
    scratch: &mut [f32],
    mut give: impl FnMut(usize, &[f32]),
) {
    let Some(n_heads) = check(shape, queries) else { return };
    let scratch = &mut scratch[..shape.scratch_len(queries.len() * n_heads)];
    isa.run(Merge { shape, queries, partial: &partial, scratch, give: &mut give });
}

/// How many heads a query has, where there is one.
fn check(shape: Shape, queries: &[Query<'_>]) -> Option<usize> {
    let n_heads = queries.first()?.heads.len() / shape.head_dim;
    for query in queries {
        assert!(query.start < query.end, "positions {}..{}", query.start, query.end);
        assert_eq!(query.heads.len(), n_heads * shape.head_dim, "query");
        assert!(query.sinks.is_none_or(|sinks| sinks.len() == n_heads), "one sink per head");
    }
    Some(n_heads)
}

fn run(mut call: Call<'_, '_>) {
    let Some(n_heads) = check(call.shape, call.queries) else { return };
    let all = call.queries.len() * n_heads;
    call.scratch = &mut call.scratch[..call.shape.scratch_len(all)];
    call.shape.format.visit(call);
}

/// What becomes of the splits.
enum To<'b> {
    /// They are merged, and each query's result is given.
    Result(&'b mut dyn FnMut(usize, &[f32])),
    /// One of them stays in scratch.
    Split(usize),
}

struct Call<'a, 'b> {
    isa: Isa,
    shape: Shape,
    queries: &'b [Query<'b>],
    slot: &'b dyn Fn(usize) -> &'a [u8],
    after: TileSlots<'a>,
    scratch: &'b mut [f32],
    to: To<'b>,
}

impl KvVisitor for Call<'_, '_> {
    type Output = ();

    fn visit<C: KvCodec>(self) {
        let isa = self.isa;
        isa.run(Attend::<C> { call: self, codec: PhantomData });
    }
}

struct Attend<'a, 'b, C> {
    call: Call<'a, 'b>,
    codec: PhantomData<C>,
}

impl<C: KvCodec> Kernel for Attend<'_, '_, C> {
    type Output = ();
    const EXTENSION: Extension = C::Products::EXTENSION;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Call { shape, queries, slot, after, scratch, to, .. } = self.call;
        // Codes take longer to unpack than to read, and wait for a second-level cache.
        let level = match const { C::BITS < 16 } {
            true => CacheLevel::First,
            false => PrefetchPolicy::detect().level,
        };
        let dim = shape.head_dim;
        let n_heads = queries[0].heads.len() / dim;
        // From here on "heads" are those of all queries, one query after the other.
        let all = queries.len() * n_heads;
        let even = shape.even_head_dim();
        let (heads, rest) = scratch.split_at_mut(all * even);
        // Those that are computed together lie together, two dimensions by two.
        let mut of_all = queries.iter().flat_map(|query| query.heads.chunks_exact(dim));
        for (h, n) in together::<S>(all) {
            let (pairs, _) = heads[h * even..(h + n) * even].as_chunks_mut::<2>();
            for i in 0..n {
                let head = of_all.next().expect("as many heads as queries have");
                interleave_head::<S, C::Products>(s, head, (i, n), pairs);
            }
        }
        let (scores, rest) = rest.split_at_mut(all * TILE);
        let (split, total) = rest.split_at_mut(shape.partial_len(all));
        let mut total = Running::new(total, all);
        total.clear();

        let last = queries.iter().map(|query| query.end).fold(0, usize::max);
        let start = queries.iter().map(|query| query.start).fold(last, usize::min);
        let pages = start / PAGE..last.div_ceil(PAGE);
        let slots = |tile: usize| {
            let mut slots: [&[u8]; TILE / PAGE] = [&[]; TILE / PAGE];
            let first = tile * (TILE / PAGE);
            for page in pages.start.max(first)..pages.end.min(first + TILE / PAGE) {
                slots[page - first] = slot(page);
            }
            slots
        };
        let (begin, end) = match to {
            To::Split(split) => (split * TILES, (split + 1) * TILES),
            To::Result(_) => (0, usize::MAX),
        };
        // The first tile at or after one of which any query sees anything.
        let next = |tile: usize| {
            let tiles = queries.iter().filter_map(|query| query.tile_from(tile));
            tiles.min().filter(|tile| *tile < end)
        };
        let mut coming = next(begin);
        let mut ahead = coming.map_or([&[][..]; TILE / PAGE], slots);
        while let Some(first) = coming {
            let mut running = Running::new(split, all);
            running.clear();
            while let Some(tile) = coming.filter(|tile| tile / TILES == first / TILES) {
                let mut tile = Tile {
                    shape,
                    first: tile * TILE,
                    queries,
                    n_heads,
                    slots: ahead,
                    ahead,
                    level,
                };
                coming = next(tile.first / TILE + 1);
                if let Some(coming) = coming {
                    ahead = slots(coming);
                    for (next, ahead) in tile.ahead.iter_mut().zip(ahead) {
                        if !ahead.is_empty() {
                            *next = ahead;
                        }
                    }
                } else {
                    after.iter().for_each(|slot| prefetch_to(s, level, slot, 0, slot.len()));
                }
                tile.add::<S, C>(s, heads, scores, &mut running);
            }
            if let To::Result(_) = to {
                total.merge_split(s, Done::new(split, all), queries, first / TILES);
            }
        }
        if let To::Result(give) = to {
            total.finish(s, shape, queries, heads, give);
        }
    }
}

struct Merge<'a, 'b> {
    shape: Shape,
    queries: &'b [Query<'b>],
    partial: &'b dyn Fn(usize) -> &'a [f32],
    scratch: &'b mut [f32],
    give: &'b mut dyn FnMut(usize, &[f32]),
}

impl Kernel for Merge<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { shape, queries, partial, scratch, give } = self;
        let all = queries.len() * (queries[0].heads.len() / shape.head_dim);
        let (heads, rest) = scratch.split_at_mut(all * shape.even_head_dim());
        let len = shape.partial_len(all);
        let mut total = Running::new(&mut rest[..len], all);
        total.clear();
        let last = queries.iter().map(|query| query.end).fold(0, usize::max);
        let start = queries.iter().map(|query| query.start).fold(last, usize::min);
        for split in splits(start, last) {
            if queries.iter().any(|query| query.sees(split)) {
                total.merge_split(s, Done::new(&partial(split)[..len], all), queries, split);
            }
        }
        total.finish(s, shape, queries, heads, give);
    }
}

/// Whether registers hold two vectors of sums for each of eight heads.
const fn wide<S: Simd>() -> bool {
    S::REGISTERS >= 32
}

/// Which of so many heads are computed together: the first of each few, and how many.
#[inline(always)]
fn together<S: Simd>(n_heads: usize) -> impl Iterator<Item = (usize, usize)> {
    let mut first = 0;
    std::iter::from_fn(move || {
        let n = match n_heads - first {
            0 => return None,
            8.. if const { wide::<S>() } => 8,
            4.. if const { S::REGISTERS >= 8 } => 4,
            2.. if const { S::REGISTERS >= 8 } => 2,
            _ => 1,
        };
        first += n;
        Some((first - n, n))
    })
}

/// Interleaves the i-th of n heads that are computed together with the others, as factors:
/// `[head_dim / 2, n]` pairs.
#[inline(always)]
fn interleave_head<S: Simd, P: Products>(
    s: S,
    head: &[f32],
    (i, n): (usize, usize),
    to: &mut [[f32; 2]],
) {
    let mut factors = [0.0; 16];
    for (sixteen, to) in head.chunks(16).zip(to.chunks_mut(8 * n)) {
        P::store_factors(s, s.load_partial(sixteen), &mut factors);
        for (pair, to) in factors.as_chunks::<2>().0.iter().zip(to.chunks_exact_mut(n)) {
            to[i] = *pair;
        }
    }
}

/// One tile of positions, and the queries that meet it.
struct Tile<'a, 'q> {
    shape: Shape,
    /// The tile's first position.
    first: usize,
    queries: &'q [Query<'q>],
    n_heads: usize,
    /// The bytes of its pages, as far as any query sees them.
    slots: [&'a [u8]; TILE / PAGE],
    /// Those of the next tile, which are prefetched meanwhile; its own where there is no other.
    ahead: [&'a [u8]; TILE / PAGE],
    /// Where to.
    level: CacheLevel,
}

/// What each of H heads sees of a tile, as positions counted from the tile's beginning.
#[derive(Clone, Copy)]
struct Visible<const H: usize> {
    begin: [usize; H],
    end: [usize; H],
    /// What at least one head sees.
    any: (usize, usize),
    /// What all heads see; where there is nothing, the end of what any sees.
    all: (usize, usize),
}

impl<const H: usize> Visible<H> {
    #[inline(always)]
    fn new(begin: [usize; H], end: [usize; H]) -> Self {
        let (mut any, mut all) = ((TILE, 0), (0, TILE));
        for h in 0..H {
            if begin[h] < end[h] {
                any = (any.0.min(begin[h]), any.1.max(end[h]));
            }
            all = (all.0.max(begin[h]), all.1.min(end[h]));
        }
        if all.0 >= all.1 {
            all = (any.1, any.1);
        }
        Self { begin, end, any, all }
    }

    /// Whether a head sees anything.
    #[inline(always)]
    fn sees(&self, h: usize) -> bool {
        self.begin[h] < self.end[h]
    }
}

impl Tile<'_, '_> {
    /// What H heads from head `h` see.
    #[inline(always)]
    fn visible<const H: usize>(&self, h: usize) -> Visible<H> {
        let (mut begin, mut end) = ([0; H], [0; H]);
        let (mut t, mut next) = (h / self.n_heads, 0);
        let mut seen = (0, 0);
        for i in 0..H {
            if i == next {
                seen = self.queries[t].within(self.first / TILE);
                t += 1;
                next = t * self.n_heads - h;
            }
            (begin[i], end[i]) = seen;
        }
        Visible::new(begin, end)
    }

    /// Adds the tile to the running softmax of all heads, a few heads at a time.
    #[inline(always)]
    fn add<S: Simd, C: KvCodec>(
        &self,
        s: S,
        heads: &[f32],
        scores: &mut [f32],
        running: &mut Running<'_>,
    ) {
        let (even, padded) = (self.shape.even_head_dim(), self.shape.padded_head_dim());
        let sees = |query: &Query<'_>| query.sees_tile(self.first / TILE);
        let last = self.queries.iter().rposition(sees).map_or(0, |t| (t + 1) * self.n_heads - 1);
        for (h, n) in together::<S>(heads.len() / even) {
            // The last heads that see the tile are enough to prefetch the next one.
            let prefetches = (h..h + n).contains(&last);
            let some = Running {
                max: &mut running.max[h..h + n],
                sum: &mut running.sum[h..h + n],
                values: &mut running.values[h * padded..(h + n) * padded],
            };
            let (heads, _) = heads[h * even..(h + n) * even].as_chunks::<2>();
            let scores = &mut scores[h * TILE..(h + n) * TILE];
            match n {
                8 if const { wide::<S>() } => {
                    self.add_heads::<S, C, 8>(s, (h, prefetches, heads), scores, some);
                }
                4 if const { S::REGISTERS >= 8 } => {
                    self.add_heads::<S, C, 4>(s, (h, prefetches, heads), scores, some);
                }
                2 if const { S::REGISTERS >= 8 } => {
                    self.add_heads::<S, C, 2>(s, (h, prefetches, heads), scores, some);
                }
                _ => self.add_heads::<S, C, 1>(s, (h, prefetches, heads), scores, some),
            }
        }
    }

    #[inline(always)]
    fn add_heads<S: Simd, C: KvCodec, const H: usize>(
        &self,
        s: S,
        (h, prefetches, heads): (usize, bool, &[[f32; 2]]),
        scores: &mut [f32],
        running: Running<'_>,
    ) {
        let (visible, codec) = (self.visible(h), PhantomData::<C>);
        let heads: &[[[f32; 2]; H]] = heads.as_chunks().0;
        s.outline(SomeHeads { tile: self, visible, prefetches, heads, scores, running, codec });
    }

    /// The scores of H heads against the keys of P pages, prefetching meanwhile the next tile's
    /// keys of every other page; returns P.
    #[inline(always)]
    fn page_scores<S: Simd, C: KvCodec, const H: usize, const P: usize>(
        &self,
        s: S,
        heads: &[[[f32; 2]; H]],
        (page, ahead): (usize, &[&[u8]; TILE / PAGE]),
        scores: &mut [[f32; TILE]],
    ) -> usize {
        let slots: &[&[u8]; P] = self.slots[page..].first_chunk().expect("P pages");
        let next = ahead[page.next_multiple_of(2).min(page + P - 1)];
        let dim = self.shape.head_dim;
        let mut acc = [[s.zero(); H]; P];
        let (whole, odd) = heads.split_at(dim / 2);
        for (d2, heads) in whole.iter().enumerate() {
            let mut keys = [C::Products::zero(s); P];
            for p in 0..P {
                keys[p] = C::key_columns(s, slots[p], dim, d2);
            }
            if P > 1 || page.is_multiple_of(2) {
                let bytes = const { 2 * PAGE * C::BITS / 8 };
                prefetch_to(s, self.level, next, d2 * bytes, bytes);
            }
            for step in 0..C::Products::steps::<S>() {
                for h in 0..H {
                    let head = C::Products::splat(s, &heads[h], step);
                    for p in 0..P {
                        acc[p][h] = C::Products::add(s, step, head, keys[p], acc[p][h]);
                    }
                }
            }
        }
        if let [heads] = odd {
            for p in 0..P {
                let keys = C::key_columns(s, slots[p], dim, dim / 2);
                for h in 0..H {
                    acc[p][h] = C::Products::add_half(s, 0, &heads[h], keys, acc[p][h]);
                }
            }
        }
        let scale = s.splat(self.shape.scale);
        for (p, acc) in acc.into_iter().enumerate() {
            for (acc, scores) in acc.into_iter().zip(&mut *scores) {
                let to = &mut scores[(page + p) * PAGE..][..PAGE];
                s.store(s.mul(acc, scale), to.try_into().expect("a page of scores"));
            }
        }
        P
    }

    /// `values = values · correction + Σ weight · value` for N times sixteen dimensions of H heads;
    /// returns N.
    #[inline(always)]
    fn add_values<S: Simd, C: KvCodec, const H: usize, const N: usize>(
        &self,
        s: S,
        (weights, corrections): (&[[f32; TILE]], &[f32; H]),
        (d16, visible, ahead): (usize, &Visible<H>, &[&[u8]; TILE / PAGE]),
        values: &mut [f32],
    ) -> usize {
        let (dim, padded) = (self.shape.head_dim, self.shape.padded_head_dim());
        let begin = C::key_bytes(dim) + d16 * 16 * PAGE * C::BITS / 8;
        let weights: &[[[f32; 2]; TILE / 2]; H] =
            bytemuck::cast_slice(weights).try_into().expect("one tile of each head");
        let (values, _) = values.as_chunks_mut::<16>();
        let pages = visible.any.0 / PAGE..visible.any.1.div_ceil(PAGE);
        let whole = visible.all.0.div_ceil(PAGE)..visible.all.1 / PAGE;
        let mut factors = *corrections;
        if pages.start < whole.start {
            for h in 0..H {
                for sum in &mut values[h * padded / 16 + d16..][..N] {
                    s.store(scaled::<S, C::Products>(s, s.load(sum), factors[h]), sum);
                }
            }
            factors = [1.0; H];
        }
        for page in pages.start..whole.start.min(pages.end) {
            self.add_values_masked::<S, C, H, N>(s, weights, (page, d16, visible), values);
        }
        let mut acc = [[s.zero(); N]; H];
        for h in 0..H {
            for n in 0..N {
                let old = s.load(&values[h * padded / 16 + d16 + n]);
                acc[h][n] = scaled::<S, C::Products>(s, old, factors[h]);
            }
        }
        for page in whole.clone() {
            let (slot, ahead) = (self.slots[page], ahead[page]);
            for p2 in 0..PAGE / 2 {
                let values = values_at::<S, C, N>(s, slot, dim, (p2, d16));
                let bytes = const { 2 * 16 * N * C::BITS / 8 };
                prefetch_to(s, self.level, ahead, begin + p2 * bytes, bytes);
                for step in 0..C::Products::steps::<S>() {
                    for h in 0..H {
                        let pair = &weights[h][page * PAGE / 2 + p2];
                        let weight = C::Products::splat(s, pair, step);
                        for n in 0..N {
                            acc[h][n] = C::Products::add(s, step, weight, values[n], acc[h][n]);
                        }
                    }
                }
            }
        }
        for h in 0..H {
            for n in 0..N {
                s.store(acc[h][n], &mut values[h * padded / 16 + d16 + n]);
            }
        }
        for page in whole.start.max(whole.end)..pages.end {
            self.add_values_masked::<S, C, H, N>(s, weights, (page, d16, visible), values);
        }
        N
    }

    /// The same for a page of which some heads do not see all: sums stay in memory, as what is
    /// added to each is known at run time alone.
    #[inline(always)]
    fn add_values_masked<S: Simd, C: KvCodec, const H: usize, const N: usize>(
        &self,
        s: S,
        weights: &[[[f32; 2]; TILE / 2]; H],
        (page, d16, visible): (usize, usize, &Visible<H>),
        sums: &mut [[f32; 16]],
    ) {
        let stride = self.shape.padded_head_dim() / 16;
        let (begin, end) = visible.any;
        let (begin, end) = (begin.max(page * PAGE), end.min((page + 1) * PAGE));
        for pair in begin / 2..end.div_ceil(2) {
            let p2 = pair % (PAGE / 2);
            let values = values_at::<S, C, N>(s, self.slots[page], self.shape.head_dim, (p2, d16));
            for h in 0..H {
                let sees = |at: usize| visible.begin[h] <= at && at < visible.end[h];
                let (first, second) = (sees(2 * pair), sees(2 * pair + 1));
                let weights = &weights[h][pair];
                for (values, to) in values.into_iter().zip(&mut sums[h * stride + d16..]) {
                    let mut sum = s.load(to);
                    if first && second {
                        for step in 0..C::Products::steps::<S>() {
                            let weight = C::Products::splat(s, weights, step);
                            sum = C::Products::add(s, step, weight, values, sum);
                        }
                    } else if first || second {
                        let half = usize::from(second);
                        sum = C::Products::add_half(s, half, weights, values, sum);
                    }
                    s.store(sum, to);
                }
            }
        }
    }
}

/// H heads of a tile, compiled apart from those of other numbers.
struct SomeHeads<'w, 'a, 'q, C, const H: usize> {
    tile: &'w Tile<'a, 'q>,
    visible: Visible<H>,
    /// Whether they prefetch the next tile.
    prefetches: bool,
    heads: &'w [[[f32; 2]; H]],
    scores: &'w mut [f32],
    running: Running<'w>,
    codec: PhantomData<C>,
}

impl<C: KvCodec, const H: usize> Kernel for SomeHeads<'_, '_, '_, C, H> {
    type Output = ();
    const EXTENSION: Extension = C::Products::EXTENSION;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { tile, visible, prefetches, heads, scores, mut running, .. } = self;
        if visible.any.0 >= visible.any.1 {
            return;
        }
        let ahead = if prefetches { &tile.ahead } else { &tile.slots };
        let (tiles, _) = scores.as_chunks_mut::<TILE>();
        let (mut page, pages) = (visible.any.0 / PAGE, visible.any.1.div_ceil(PAGE));
        while page < pages {
            page += if const { wide::<S>() } && page + 2 <= pages {
                tile.page_scores::<S, C, H, 2>(s, heads, (page, ahead), tiles)
            } else {
                tile.page_scores::<S, C, H, 1>(s, heads, (page, ahead), tiles)
            };
        }
        let head_dim = tile.shape.head_dim;
        let corrections =
            softmax_tile::<S, C::Products, H>(s, tiles, &visible, &mut running, |share, of| {
                // The keys that the scores did not prefetch.
                if prefetches {
                    let len = C::key_bytes(head_dim) / of;
                    for page in (1..TILE / PAGE).step_by(2) {
                        prefetch_to(s, tile.level, tile.ahead[page], share * len, len);
                    }
                }
            });
        let weights = (&*tiles, &corrections);
        let (mut d16, end) = (0, tile.shape.padded_head_dim() / 16);
        while d16 < end {
            d16 += if const { wide::<S>() } && d16 + 2 <= end {
                tile.add_values::<S, C, H, 2>(s, weights, (d16, &visible, ahead), running.values)
            } else {
                tile.add_values::<S, C, H, 1>(s, weights, (d16, &visible, ahead), running.values)
            };
        }
    }
}

/// A sum times a factor. One leaves it as it is: how often a sum meets it depends on who else is in
/// the call.
#[inline(always)]
fn scaled<S: Simd, P: Products>(s: S, sum: S::F32, factor: f32) -> S::F32 {
    if factor == 1.0 { sum } else { P::scale(s, sum, s.splat(factor)) }
}

/// N times sixteen dimensions, from the `d16`-th sixteen on, of the values at positions `2 p2` and
/// `2 p2 + 1` of a page.
#[inline(always)]
fn values_at<S: Simd, C: KvCodec, const N: usize>(
    s: S,
    slot: &[u8],
    head_dim: usize,
    (p2, d16): (usize, usize),
) -> [Pairs<C, S>; N] {
    let mut values = [C::Products::zero(s); N];
    for (n, values) in values.iter_mut().enumerate() {
        *values = C::values(s, slot, head_dim, p2, d16 + n);
    }
    values
}
