//! The online softmax of some heads, from tile to tile and from split to split.

use super::{LANES, Query, Shape};
use oss_simd::{Simd, math};
use std::ops::Range;

/// The running softmax of some heads: maximum, sum, and weighted values.
pub(super) struct Running<'b> {
    pub(super) max: &'b mut [f32],
    /// `[n_heads]`: positions `16 n + i` of each tile add to lane `i`.
    pub(super) sum: &'b mut [[f32; LANES]],
    /// `[n_heads, padded_head_dim]`.
    pub(super) values: &'b mut [f32],
}

impl<'b> Running<'b> {
    /// In [`Shape::partial_len`] numbers.
    pub(super) fn new(numbers: &'b mut [f32], n_heads: usize) -> Self {
        let (max, rest) = numbers.split_at_mut(n_heads);
        let (sum, values) = rest.split_at_mut(n_heads * LANES);
        Self { max, sum: sum.as_chunks_mut().0, values }
    }

    pub(super) fn clear(&mut self) {
        self.max.fill(f32::NEG_INFINITY);
        self.sum.fill([0.0; LANES]);
        self.values.fill(0.0);
    }

    /// Merges the running softmax of some heads of another.
    #[inline(always)]
    fn merge<S: Simd>(&mut self, s: S, other: Done<'_>, heads: Range<usize>) {
        let dim = self.values.len() / self.max.len();
        for h in heads {
            let (to, _) = self.values[h * dim..(h + 1) * dim].as_chunks_mut::<16>();
            let (from, _) = other.values[h * dim..(h + 1) * dim].as_chunks::<16>();
            // The first split's factor is one, and that of the nothing before it zero. A split that
            // is no number has no maximum either, but is not nothing.
            let nothing = self.sum[h].iter().all(|lane| *lane == 0.0);
            if nothing && self.max[h] == f32::NEG_INFINITY {
                self.max[h] = other.max[h];
                s.store(s.add(s.load(&other.sum[h]), s.zero()), &mut self.sum[h]);
                for (to, from) in to.iter_mut().zip(from) {
                    s.store(s.add(s.load(from), s.zero()), to);
                }
                continue;
            }
            let max = self.max[h].max(other.max[h]);
            let ours = exp_of(s, self.max[h] - max);
            let theirs = exp_of(s, other.max[h] - max);
            self.max[h] = max;
            let (ours, theirs) = (s.splat(ours), s.splat(theirs));
            let sum = s.mul(s.load(&self.sum[h]), ours);
            s.store(s.fma(s.load(&other.sum[h]), theirs, sum), &mut self.sum[h]);
            for (to, from) in to.iter_mut().zip(from) {
                let kept = s.mul(s.load(to), ours);
                s.store(s.fma(s.load(from), theirs, kept), to);
            }
        }
    }

    /// Merges a split, for the queries that see any of it.
    #[inline(always)]
    pub(super) fn merge_split<S: Simd>(
        &mut self,
        s: S,
        found: Done<'_>,
        queries: &[Query<'_>],
        split: usize,
    ) {
        let n_heads = self.max.len() / queries.len();
        for (t, query) in queries.iter().enumerate() {
            if query.sees(split) {
                self.merge(s, found, t * n_heads..(t + 1) * n_heads);
            }
        }
    }

    /// What the values of up to sixteen heads are to be multiplied with in the end.
    #[inline(always)]
    fn factors<S: Simd>(&self, s: S, heads: Range<usize>, sinks: Option<&[f32]>) -> [f32; 16] {
        let (mut max, mut sink, mut sum) = ([0.0; 16], [f32::NEG_INFINITY; 16], [1.0; 16]);
        max[..heads.len()].copy_from_slice(&self.max[heads.clone()]);
        if let Some(sinks) = sinks {
            sink[..sinks.len()].copy_from_slice(sinks);
        }
        for (sum, lanes) in sum.iter_mut().zip(&self.sum[heads]) {
            *sum = s.reduce_add(s.load(lanes));
        }
        let (max, sink) = (s.load(&max), s.load(&sink));
        let most = s.max(max, sink);
        let factor = math::exp(s, s.sub(max, most));
        let sum = s.add(s.mul(s.load(&sum), factor), math::exp(s, s.sub(sink, most)));
        let mut factors = [0.0; 16];
        s.store(s.div(factor, sum), &mut factors);
        factors
    }

    /// Gives what each query gets, by way of scratch for its heads.
    #[inline(always)]
    pub(super) fn finish<S: Simd>(
        &self,
        s: S,
        shape: Shape,
        queries: &[Query<'_>],
        heads: &mut [f32],
        give: &mut dyn FnMut(usize, &[f32]),
    ) {
        let (dim, padded) = (shape.head_dim, shape.padded_head_dim());
        let n_heads = self.max.len() / queries.len();
        for (t, query) in queries.iter().enumerate() {
            let out = &mut heads[..n_heads * dim];
            for (some, out) in out.chunks_mut(16 * dim).enumerate() {
                let n = out.len() / dim;
                let sinks = query.sinks.map(|sinks| &sinks[some * 16..][..n]);
                let first = t * n_heads + some * 16;
                let factors = self.factors(s, first..first + n, sinks);
                for (h, out) in out.chunks_exact_mut(dim).enumerate() {
                    let factor = s.splat(factors[h]);
                    let values = &self.values[(first + h) * padded..][..padded];
                    for (value, out) in values.as_chunks::<16>().0.iter().zip(out.chunks_mut(16)) {
                        s.store_partial(s.mul(s.load(value), factor), out);
                    }
                }
            }
            give(t, out);
        }
    }
}

/// The same when it is done.
#[derive(Clone, Copy)]
pub(super) struct Done<'b> {
    max: &'b [f32],
    sum: &'b [[f32; LANES]],
    values: &'b [f32],
}

impl<'b> Done<'b> {
    /// The numbers that a [`Running`] wrote.
    pub(super) fn new(numbers: &'b [f32], n_heads: usize) -> Self {
        let (max, rest) = numbers.split_at(n_heads);
        let (sum, values) = rest.split_at(n_heads * LANES);
        Self { max, sum: sum.as_chunks().0, values }
    }
}

#[inline(always)]
fn exp_of<S: Simd>(s: S, x: f32) -> f32 {
    let mut all = [0.0; 16];
    s.store(math::exp(s, s.splat(x)), &mut all);
    all[0]
}
