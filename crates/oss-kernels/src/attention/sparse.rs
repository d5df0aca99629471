//! Which blocks of positions a token sees where its context is long.

use super::{PAGE, Query, TILE, together, wide};
use crate::prefetch::prefetch;
use oss_quant::kv::{mean_bytes, mean_quad};
use oss_simd::{Isa, Kernel, Simd};
use std::num::ParseIntError;
use std::str::FromStr;
use std::{error, fmt, ops::Range};

/// Pages of a block.
const PAGES: usize = TILE / PAGE;
/// Blocks whose pages are one vector.
const BLOCKS: usize = 16 / PAGES;

/// What a token of a long context sees instead of all positions before it: the first ones, the last
/// ones, and between them the blocks of [`TILE`] positions that suit it best. The first and the
/// last ones are rounded up to whole blocks; where there are no more between than it may choose, it
/// sees all.
///
/// A page suits a token by the largest product of the token's query heads, of those that share the
/// key/value head, with the mean of the page's keys, all turned by their positions; a block as well
/// as its best page. Of equal blocks the lower one is better. So the choice, one for each key/value
/// head, depends on nothing but the token, its position and what the pages hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SparseAttention {
    /// How many of the first positions are seen.
    pub first: usize,
    /// How many of the last positions are seen, the token's own included; at least 1.
    pub window: usize,
    /// How many blocks of the others are seen.
    pub blocks: usize,
}

impl SparseAttention {
    /// The blocks among which a token that is the last of `end` positions chooses; none where it
    /// sees all.
    const fn choice(&self, end: usize) -> Option<Range<usize>> {
        let first = self.first.div_ceil(TILE);
        let window = end.saturating_sub(self.window) / TILE;
        if window.saturating_sub(first) > self.blocks { Some(first..window) } else { None }
    }

    /// How many blocks a token sees that is the last of `end` positions; none where it sees all.
    #[must_use]
    pub const fn n_blocks(&self, end: usize) -> Option<usize> {
        match self.choice(end) {
            Some(choice) => Some(choice.start + self.blocks + end.div_ceil(TILE) - choice.end),
            None => None,
        }
    }

    /// Numbers of scratch that [`select_blocks`] needs for so many queries, any of which chooses.
    #[must_use]
    pub const fn scratch_len(&self, head_dim: usize, queries: usize) -> usize {
        head_dim.next_multiple_of(4) * 16 + queries * self.blocks
    }
}

impl fmt::Display for SparseAttention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{},{},{}", self.first, self.window, self.blocks)
    }
}

impl FromStr for SparseAttention {
    type Err = ParseSparseAttentionError;

    /// Reads three numbers as they are displayed: `first`, `window` and `blocks`.
    fn from_str(text: &str) -> Result<Self, ParseSparseAttentionError> {
        use ParseSparseAttentionError::{Number, Parts, Window};
        let (mut numbers, mut parts) = ([0; 3], text.split(','));
        for (part, number) in numbers.iter_mut().enumerate() {
            let text = parts.next().ok_or(Parts { got: part })?;
            *number = text.parse().map_err(|source| Number { part, source })?;
        }
        match (numbers, parts.count()) {
            ([_, 0, _], 0) => Err(Window),
            ([first, window, blocks], 0) => Ok(Self { first, window, blocks }),
            (_, more) => Err(Parts { got: 3 + more }),
        }
    }
}

/// Why a text is no [`SparseAttention`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ParseSparseAttentionError {
    /// It has other than three parts between commas.
    Parts {
        /// How many.
        got: usize,
    },
    /// A part is no number.
    Number {
        /// Which, from 0.
        part: usize,
        /// What is wrong with it.
        source: ParseIntError,
    },
    /// Not even a token itself would be among the last positions.
    Window,
}

impl fmt::Display for ParseSparseAttentionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const PARTS: [&str; 3] = ["first positions", "last positions", "blocks"];
        match self {
            Self::Parts { got } => write!(f, "got {got} parts, ")?,
            Self::Number { part, source } => write!(f, "{}: {source}, ", PARTS[*part])?,
            Self::Window => f.write_str("got 0 last positions, ")?,
        }
        let [first, last, blocks] = PARTS;
        write!(f, "expected {first}, {last} (at least 1) and {blocks}, such as 64,1024,32")
    }
}

impl error::Error for ParseSparseAttentionError {}

/// Selects blocks for some tokens of one sequence. `mean(page)` gives the mean of the page's keys
/// for this layer and key/value head, as `oss_quant::kv` has it; that of a page is asked for only
/// where all of its block's positions lie before the window. The t-th query's blocks, ascending,
/// are written to the t-th of equal parts of `blocks`, as many as [`SparseAttention::n_blocks`]
/// says; nothing where it sees all. What a token gets does not depend on which others are in the
/// call.
///
/// # Panics
/// When lengths do not fit.
pub fn select_blocks<'a>(
    isa: Isa,
    (head_dim, sparse): (usize, SparseAttention),
    queries: &[Query<'_>],
    mean: impl Fn(usize) -> &'a [u8],
    scratch: &mut [f32],
    blocks: &mut [u32],
) {
    let ends = queries.iter().filter_map(|query| Some(sparse.choice(query.end)?.end));
    let Some(end) = ends.max() else { return };
    let n_heads = queries[0].heads.len() / head_dim;
    for query in queries {
        assert_eq!(query.heads.len(), n_heads * head_dim, "query");
    }
    let room = blocks.len() / queries.len();
    let most = queries.iter().filter_map(|query| sparse.n_blocks(query.end)).fold(0, usize::max);
    assert!(most <= room, "{most} blocks of a query, there is room for {room}");
    let scratch = &mut scratch[..sparse.scratch_len(head_dim, queries.len())];
    isa.run(SelectBlocks { head_dim, sparse, queries, end, mean: &mean, scratch, blocks });
}

struct SelectBlocks<'a, 'b> {
    head_dim: usize,
    sparse: SparseAttention,
    queries: &'b [Query<'b>],
    /// One past the last block among which any query chooses.
    end: usize,
    mean: &'b dyn Fn(usize) -> &'a [u8],
    scratch: &'b mut [f32],
    blocks: &'b mut [u32],
}

impl Kernel for SelectBlocks<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { head_dim: dim, sparse, queries, end, mean, scratch, blocks } = self;
        let first = sparse.first.div_ceil(TILE);
        let (columns, scores) = scratch.split_at_mut(dim.next_multiple_of(4) * 16);
        let (columns, _) = columns.as_chunks_mut::<16>();
        let stride = blocks.len() / queries.len();
        // Beyond the last page it is the last again, in lanes that count for nothing.
        let means = |block: usize| {
            let mut means: [&[u8]; 16] = [&[]; 16];
            for (page, to) in means.iter_mut().enumerate() {
                *to = mean((block * PAGES + page).min(end * PAGES - 1));
            }
            means
        };
        let mut ahead = means(first);
        for block in (first..end).step_by(BLOCKS) {
            let here = ahead;
            if block + BLOCKS < end {
                ahead = means(block + BLOCKS);
            }
            for (d4, columns) in columns.as_chunks_mut::<4>().0.iter_mut().enumerate() {
                for (column, x) in columns.iter_mut().zip(mean_columns(s, &here, d4)) {
                    s.store(x, column);
                }
            }
            ahead.iter().for_each(|mean| prefetch(s, mean, 0, mean_bytes(dim)));
            for (t, query) in queries.iter().enumerate() {
                let Some(choice) = sparse.choice(query.end) else { continue };
                let mut pages = [0.0; 16];
                s.store(page_scores(s, query.heads, &columns[..dim]), &mut pages);
                let best = Best {
                    scores: &mut scores[t * sparse.blocks..][..sparse.blocks],
                    blocks: &mut blocks[t * stride + first..][..sparse.blocks],
                };
                best.take(&pages, block, choice);
            }
        }
        for (query, blocks) in queries.iter().zip(blocks.chunks_exact_mut(stride)) {
            let Some(choice) = sparse.choice(query.end) else { continue };
            let (firsts, rest) = blocks.split_at_mut(first);
            let (best, window) = rest.split_at_mut(sparse.blocks);
            firsts.iter_mut().zip(0..).for_each(|(to, block)| *to = block);
            best.sort_unstable();
            let seen = choice.end..query.end.div_ceil(TILE);
            window.iter_mut().zip(seen).for_each(|(to, block)| *to = block as u32);
        }
    }
}

/// Dimensions `4 d4 .. 4 d4 + 4` of the means of sixteen pages: pages are the lanes.
#[inline(always)]
fn mean_columns<S: Simd>(s: S, means: &[&[u8]; 16], d4: usize) -> [S::F32; 4] {
    let mut quads = [s.zero(); 4];
    for (i, quad) in quads.iter_mut().enumerate() {
        let [a, b, c, d] = [means[i], means[4 + i], means[8 + i], means[12 + i]];
        let [a, b] = [mean_quad(a, d4), mean_quad(b, d4)];
        *quad = s.load_quads([&a, &b, &mean_quad(c, d4), &mean_quad(d, d4)]);
    }
    s.transpose_quads(quads)
}

/// The largest product of any of a query's heads with the means of sixteen pages.
#[inline(always)]
fn page_scores<S: Simd>(s: S, heads: &[f32], columns: &[[f32; 16]]) -> S::F32 {
    let dim = columns.len();
    let mut best = s.splat(f32::NEG_INFINITY);
    for (h, n) in together::<S>(heads.len() / dim) {
        let heads = &heads[h * dim..(h + n) * dim];
        let some = match n {
            8 if const { wide::<S>() } => head_scores::<S, 8>(s, heads, columns),
            4 if const { S::REGISTERS >= 8 } => head_scores::<S, 4>(s, heads, columns),
            2 if const { S::REGISTERS >= 8 } => head_scores::<S, 2>(s, heads, columns),
            _ => head_scores::<S, 1>(s, heads, columns),
        };
        best = s.max(some, best);
    }
    best
}

/// The same for H heads.
#[inline(always)]
fn head_scores<S: Simd, const H: usize>(s: S, heads: &[f32], columns: &[[f32; 16]]) -> S::F32 {
    let dim = columns.len();
    let mut acc = [s.zero(); H];
    for (d, column) in columns.iter().enumerate() {
        let column = s.load(column);
        for h in 0..H {
            acc[h] = s.fma(s.splat(heads[h * dim + d]), column, acc[h]);
        }
    }
    // A score that is no number counts for nothing, whichever head's it is.
    let mut best = s.splat(f32::NEG_INFINITY);
    for score in &acc {
        best = s.max(*score, best);
    }
    best
}

/// The best blocks so far, the best first, and their scores.
struct Best<'b> {
    scores: &'b mut [f32],
    blocks: &'b mut [u32],
}

impl Best<'_> {
    /// Takes some blocks from `first` on in, whose pages have these scores, as far as they are in
    /// `choice`: all before them were taken in.
    #[inline(always)]
    fn take(self, pages: &[f32; 16], first: usize, choice: Range<usize>) {
        let (pages, _) = pages.as_chunks::<PAGES>();
        for (block, pages) in (first..choice.end).zip(pages) {
            let score = pages.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let known = (block - choice.start).min(self.scores.len());
            let at = self.scores[..known].partition_point(|other| *other >= score);
            if at < self.scores.len() {
                let last = known.min(self.scores.len() - 1);
                self.scores.copy_within(at..last, at + 1);
                self.blocks.copy_within(at..last, at + 1);
                (self.scores[at], self.blocks[at]) = (score, block as u32);
            }
        }
    }
}
