//! The mean of a page's keys, which lies behind its slot where attention chooses among pages.
//!
//! ```text
//! mean    [lanes] f32           lanes past `head_dim` are zero
//! ```

use super::{KvCodec, KvFormat, KvVisitor, PAGE_TOKENS, Products, lanes};
use crate::bytes::array;
use oss_simd::{Isa, Kernel, Simd};

/// Bytes of the mean of a page's keys.
#[must_use]
pub const fn mean_bytes(head_dim: usize) -> usize {
    lanes(head_dim) * size_of::<f32>()
}

/// Dimensions `4 d4 .. 4 d4 + 4` of a mean.
#[inline(always)]
#[must_use]
pub fn mean_quad(mean: &[u8], d4: usize) -> [f32; 4] {
    bytemuck::cast(*array::<16>(mean, 16 * d4))
}

impl KvFormat {
    /// Writes the mean of the keys of all sixteen positions, as the slot has them.
    ///
    /// # Panics
    /// When the slot has not the size for this `head_dim`, or the mean not [`mean_bytes`].
    pub fn write_mean(self, isa: Isa, slot: &[u8], head_dim: usize, mean: &mut [u8]) {
        self.check(slot.len(), PAGE_TOKENS, head_dim);
        let expected = mean_bytes(head_dim);
        assert_eq!(mean.len(), expected, "bytes of the mean (left), of head_dim {head_dim}");
        isa.run(Mean { format: self, slot, head_dim, mean });
    }
}

struct Mean<'a> {
    format: KvFormat,
    slot: &'a [u8],
    head_dim: usize,
    mean: &'a mut [u8],
}

impl Kernel for Mean<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        self.format.visit(MeanWith(s, self));
    }
}

struct MeanWith<'a, S>(S, Mean<'a>);

impl<S: Simd> KvVisitor for MeanWith<'_, S> {
    type Output = ();

    #[inline(always)]
    fn visit<C: KvCodec>(self) {
        let MeanWith(s, Mean { slot, head_dim, mean, .. }) = self;
        let (numbers, _) = mean.as_chunks_mut::<{ size_of::<f32>() }>();
        let (used, rest) = numbers.split_at_mut(head_dim);
        for (d2, pair) in used.chunks_mut(2).enumerate() {
            let columns = C::Products::numbers(s, C::key_columns(s, slot, head_dim, d2));
            for (keys, mean) in columns.into_iter().zip(pair) {
                *mean = (s.reduce_add(keys) / PAGE_TOKENS as f32).to_le_bytes();
            }
        }
        rest.fill([0; 4]);
    }
}
