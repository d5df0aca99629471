//! Attention of one token over paged keys and values, all query heads of a key/value head at once.
//!
//! Positions are visited in tiles of [`TILE`] with the online softmax (Milakov and Gimelshein,
//! 2018; Dao et al., 2022), tiles form splits of [`SPLIT`], and splits are combined in ascending
//! order. Both start at absolute positions, so the result depends only on the token, its position
//! and what the pages hold: not on how the prompt was cut or on who else is in the batch.

use oss_quant::kv::{KvCodec, KvFormat, KvVisitor};
use oss_simd::{Isa, Kernel, Simd, math};
use std::{marker::PhantomData, ops::Range};

/// Positions in a page.
pub const PAGE: usize = 16;
/// Positions in a tile of the online softmax.
pub const TILE: usize = 64;
/// Positions whose tiles are summed before they join the rest.
pub const SPLIT: usize = 1024;

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
    /// Numbers of scratch that [`attend`] needs for `n_heads` query heads.
    #[must_use]
    pub const fn scratch_len(&self, n_heads: usize) -> usize {
        n_heads * (TILE + 2 * self.padded_head_dim() + 4)
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
}

/// Writes the attention of `query` over positions `start..end` to `out` (`[n_heads, head_dim]`).
/// `slot(page)` gives the bytes of a page for this layer and key/value head.
///
/// # Panics
/// When no position is visible or lengths do not fit.
pub fn attend<'a>(
    isa: Isa,
    shape: Shape,
    query: Query<'_>,
    slot: impl Fn(usize) -> &'a [u8],
    scratch: &mut [f32],
    out: &mut [f32],
) {
    let n_heads = query.heads.len() / shape.head_dim;
    assert!(query.start < query.end, "positions {}..{}", query.start, query.end);
    assert_eq!(query.heads.len(), n_heads * shape.head_dim, "query");
    assert_eq!(out.len(), query.heads.len(), "output");
    assert!(query.sinks.is_none_or(|sinks| sinks.len() == n_heads), "one sink per head");
    let scratch = &mut scratch[..shape.scratch_len(n_heads)];
    shape.format.visit(Call { isa, shape, query, slot, scratch, out });
}

struct Call<'b, F> {
    isa: Isa,
    shape: Shape,
    query: Query<'b>,
    slot: F,
    scratch: &'b mut [f32],
    out: &'b mut [f32],
}

impl<'a, F: Fn(usize) -> &'a [u8]> KvVisitor for Call<'_, F> {
    type Output = ();

    fn visit<C: KvCodec>(self) {
        let isa = self.isa;
        isa.run(Attend::<C, F> { call: self, codec: PhantomData });
    }
}

struct Attend<'b, C, F> {
    call: Call<'b, F>,
    codec: PhantomData<C>,
}

/// The running softmax of some heads: maximum, sum, and weighted values.
struct Running<'b> {
    max: &'b mut [f32],
    sum: &'b mut [f32],
    /// `[n_heads, padded_head_dim]`.
    values: &'b mut [f32],
}

impl Running<'_> {
    fn clear(&mut self) {
        self.max.fill(f32::NEG_INFINITY);
        self.sum.fill(0.0);
        self.values.fill(0.0);
    }

    /// Takes another running softmax in.
    #[inline(always)]
    fn join<S: Simd>(&mut self, s: S, other: &Running<'_>) {
        let n_heads = self.max.len();
        let dim = self.values.len() / n_heads;
        for h in 0..n_heads {
            let max = self.max[h].max(other.max[h]);
            let ours = exp_of(s, self.max[h] - max);
            let theirs = exp_of(s, other.max[h] - max);
            self.max[h] = max;
            self.sum[h] = self.sum[h] * ours + other.sum[h] * theirs;
            let (to, _) = self.values[h * dim..(h + 1) * dim].as_chunks_mut::<16>();
            let (from, _) = other.values[h * dim..(h + 1) * dim].as_chunks::<16>();
            for (to, from) in to.iter_mut().zip(from) {
                let kept = s.mul(s.load(to), s.splat(ours));
                s.store(s.fma(s.load(from), s.splat(theirs), kept), to);
            }
        }
    }
}

#[inline(always)]
fn exp_of<S: Simd>(s: S, x: f32) -> f32 {
    let mut all = [0.0; 16];
    s.store(math::exp(s, s.splat(x)), &mut all);
    all[0]
}

impl<'a, C: KvCodec, F: Fn(usize) -> &'a [u8]> Kernel for Attend<'_, C, F> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Call { shape, query, slot, scratch, out, .. } = self.call;
        let (dim, padded) = (shape.head_dim, shape.padded_head_dim());
        let n_heads = query.heads.len() / dim;
        let (scores, rest) = scratch.split_at_mut(n_heads * TILE);
        let (max, rest) = rest.split_at_mut(n_heads);
        let (sum, rest) = rest.split_at_mut(n_heads);
        let (values, rest) = rest.split_at_mut(n_heads * padded);
        let mut split = Running { max, sum, values };
        let (max, rest) = rest.split_at_mut(n_heads);
        let (sum, values) = rest.split_at_mut(n_heads);
        let mut total = Running { max, sum, values };
        total.clear();

        let mut start = query.start;
        while start < query.end {
            let end = ((start / SPLIT + 1) * SPLIT).min(query.end);
            split.clear();
            let mut from = start;
            while from < end {
                let to = ((from / TILE + 1) * TILE).min(end);
                let tile = Tile::new(shape, from..to, &slot);
                tile.add::<S, C>(s, query.heads, scores, &mut split);
                from = to;
            }
            total.join(s, &split);
            start = end;
        }
        for h in 0..n_heads {
            let sink = query.sinks.map_or(f32::NEG_INFINITY, |sinks| sinks[h]);
            let max = total.max[h].max(sink);
            let factor = exp_of(s, total.max[h] - max);
            let sum = total.sum[h] * factor + exp_of(s, sink - max);
            let factor = s.splat(factor / sum);
            let values = &total.values[h * padded..(h + 1) * padded];
            let out = &mut out[h * dim..(h + 1) * dim];
            for (value, out) in values.as_chunks::<16>().0.iter().zip(out.chunks_mut(16)) {
                s.store_partial(s.mul(s.load(value), factor), out);
            }
        }
    }
}

/// The positions of one tile that a query sees.
struct Tile<F> {
    shape: Shape,
    /// The page in which the tile begins.
    first_page: usize,
    /// Visible positions, counted from the tile's beginning.
    visible: Range<usize>,
    slot: F,
}

impl<'a, F: Fn(usize) -> &'a [u8]> Tile<F> {
    #[inline(always)]
    fn new(shape: Shape, range: Range<usize>, slot: F) -> Self {
        let first_page = range.start / TILE * (TILE / PAGE);
        let visible = range.start - first_page * PAGE..range.end - first_page * PAGE;
        Self { shape, first_page, visible, slot }
    }

    /// The visible pages, counted from the tile's beginning.
    #[inline(always)]
    fn pages(&self) -> Range<usize> {
        self.visible.start / PAGE..self.visible.end.div_ceil(PAGE)
    }

    /// The bytes of a page, counted from the tile's beginning.
    #[inline(always)]
    fn slot(&self, page: usize) -> &'a [u8] {
        (self.slot)(self.first_page + page)
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
        let (dim, padded) = (self.shape.head_dim, self.shape.padded_head_dim());
        let n_heads = heads.len() / dim;
        let mut h = 0;
        while h < n_heads {
            let n = match n_heads - h {
                8.. => 8,
                4..8 => 4,
                2..4 => 2,
                _ => 1,
            };
            let mut some = Running {
                max: &mut running.max[h..h + n],
                sum: &mut running.sum[h..h + n],
                values: &mut running.values[h * padded..(h + n) * padded],
            };
            let heads = &heads[h * dim..(h + n) * dim];
            let scores = &mut scores[h * TILE..(h + n) * TILE];
            match n {
                8 => self.add_heads::<S, C, 8>(s, heads, scores, &mut some),
                4 => self.add_heads::<S, C, 4>(s, heads, scores, &mut some),
                2 => self.add_heads::<S, C, 2>(s, heads, scores, &mut some),
                _ => self.add_heads::<S, C, 1>(s, heads, scores, &mut some),
            }
            h += n;
        }
    }

    #[inline(always)]
    fn add_heads<S: Simd, C: KvCodec, const H: usize>(
        &self,
        s: S,
        heads: &[f32],
        scores: &mut [f32],
        running: &mut Running<'_>,
    ) {
        for page in self.pages() {
            self.page_scores::<S, C, H>(s, heads, page, scores);
        }
        let mut corrections = [0.0; H];
        let (tiles, _) = scores.as_chunks_mut::<TILE>();
        for h in 0..H {
            let (max, sum) = (&mut running.max[h], &mut running.sum[h]);
            corrections[h] = soften(s, &mut tiles[h], &self.visible, max, sum);
        }
        for d16 in 0..self.shape.padded_head_dim() / 16 {
            self.add_values::<S, C, H>(s, (tiles, &corrections), d16, running.values);
        }
    }

    /// The scores of H heads against a page's sixteen keys.
    #[inline(always)]
    fn page_scores<S: Simd, C: KvCodec, const H: usize>(
        &self,
        s: S,
        heads: &[f32],
        page: usize,
        scores: &mut [f32],
    ) {
        let dim = self.shape.head_dim;
        let heads: [&[f32]; H] = std::array::from_fn(|h| &heads[h * dim..(h + 1) * dim]);
        let slot = self.slot(page);
        let mut acc = [s.zero(); H];
        for d in 0..dim {
            let keys = C::key_column(s, slot, dim, d);
            for (acc, head) in acc.iter_mut().zip(heads) {
                *acc = s.fma(s.splat(head[d]), keys, *acc);
            }
        }
        for (h, acc) in acc.into_iter().enumerate() {
            let to = &mut scores[h * TILE + page * PAGE..][..PAGE];
            let scaled = s.mul(acc, s.splat(self.shape.scale));
            s.store(scaled, to.try_into().expect("a page of scores"));
        }
    }

    /// `values = values · correction + Σ weight · value` for sixteen dimensions of H heads.
    #[inline(always)]
    fn add_values<S: Simd, C: KvCodec, const H: usize>(
        &self,
        s: S,
        (weights, corrections): (&[[f32; TILE]], &[f32; H]),
        d16: usize,
        values: &mut [f32],
    ) {
        let padded = self.shape.padded_head_dim();
        let weights: &[[f32; TILE]; H] = weights.try_into().expect("one tile of each head");
        let mut acc = [s.zero(); H];
        for (h, acc) in acc.iter_mut().enumerate() {
            let from = &values[h * padded + 16 * d16..][..16];
            let old = s.load(from.try_into().expect("16 values"));
            *acc = s.mul(old, s.splat(corrections[h]));
        }
        for page in self.pages() {
            let slot = self.slot(page);
            let first = self.visible.start.max(page * PAGE);
            for at in first..self.visible.end.min((page + 1) * PAGE) {
                let value = C::value(s, slot, self.shape.head_dim, at % PAGE, d16);
                for (acc, weights) in acc.iter_mut().zip(weights) {
                    *acc = s.fma(s.splat(weights[at]), value, *acc);
                }
            }
        }
        for (h, acc) in acc.into_iter().enumerate() {
            let to = &mut values[h * padded + 16 * d16..][..16];
            s.store(acc, to.try_into().expect("16 values"));
        }
    }
}

/// Turns a tile's scores into weights relative to the new maximum; returns what the older values
/// and the older sum are to be multiplied with (the sum has been).
#[inline(always)]
fn soften<S: Simd>(
    s: S,
    scores: &mut [f32; TILE],
    visible: &Range<usize>,
    max: &mut f32,
    sum: &mut f32,
) -> f32 {
    scores[..visible.start].fill(f32::NEG_INFINITY);
    scores[visible.end..].fill(f32::NEG_INFINITY);
    let (scores, _) = scores.as_chunks_mut::<16>();
    let v = [s.load(&scores[0]), s.load(&scores[1]), s.load(&scores[2]), s.load(&scores[3])];
    let largest = s.reduce_max(s.max(s.max(v[0], v[1]), s.max(v[2], v[3])));
    let new_max = max.max(largest);
    let correction = exp_of(s, *max - new_max);
    let mut weights = v;
    for (weights, to) in weights.iter_mut().zip(scores) {
        *weights = math::exp(s, s.sub(*weights, s.splat(new_max)));
        s.store(*weights, to);
    }
    let added = s.add(s.add(weights[0], weights[1]), s.add(weights[2], weights[3]));
    *sum = *sum * correction + s.reduce_add(added);
    *max = new_max;
    correction
}
