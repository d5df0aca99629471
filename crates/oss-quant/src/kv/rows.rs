//! Vectors of consecutive positions, and what they are with positions as lanes.

use super::PAGE_TOKENS;
use oss_simd::Simd;

/// The keys or the values of consecutive positions.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    /// The first position's vector, and all to come.
    pub numbers: &'a [f32],
    /// How far it is from one position's vector to the next one's.
    pub stride: usize,
    /// The length of a vector.
    pub dim: usize,
    /// How many positions there are.
    pub n: usize,
}

impl<'a> Rows<'a> {
    /// Whether these are what [`KvCodec::write_keys`](super::KvCodec::write_keys) takes.
    pub(super) const fn fill_page(&self) -> bool {
        self.n == PAGE_TOKENS && self.dim.is_multiple_of(32)
    }

    /// One position's vector.
    #[inline(always)]
    pub(super) fn row(&self, i: usize) -> &'a [f32] {
        &self.numbers[i * self.stride..][..self.dim]
    }

    /// Sixteen dimensions of one position after the other.
    #[inline(always)]
    pub(super) fn chunks(&self, i: usize) -> &'a [[f32; 16]] {
        self.row(i).as_chunks().0
    }

    /// The vectors of sixteen positions, as columns.
    #[inline(always)]
    pub(super) fn columns(&self) -> Columns<'a> {
        Columns(std::array::from_fn(|i| self.row(i).as_chunks().0))
    }
}

/// Sixteen positions' vectors, in fours.
#[derive(Clone, Copy)]
pub(super) struct Columns<'a>([&'a [[f32; 4]]; PAGE_TOKENS]);

impl Columns<'_> {
    /// How many fours of dimensions there are.
    #[inline(always)]
    pub(super) const fn len(&self) -> usize {
        self.0[0].len()
    }

    /// Dimensions `4 d4 .. 4 d4 + 4`: positions are the lanes.
    #[inline(always)]
    pub(super) fn at<S: Simd>(&self, s: S, d4: usize) -> [S::F32; 4] {
        let mut quads = [s.zero(); 4];
        for (i, quad) in quads.iter_mut().enumerate() {
            let [a, b, c, d] = [self.0[i], self.0[4 + i], self.0[8 + i], self.0[12 + i]];
            *quad = s.load_quads([&a[d4], &b[d4], &c[d4], &d[d4]]);
        }
        s.transpose_quads(quads)
    }
}
