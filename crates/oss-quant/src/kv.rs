//! How one attention head's keys and values of one page lie in memory.
//!
//! A *slot* is one page of one head: sixteen positions, first the keys, then the values.
//!
//! ```text
//! keys    [head_dim][16 positions]      one load gives sixteen positions of one dimension
//! values  [16 positions][lanes]         one load gives sixteen dimensions of one position
//! ```
//!
//! `lanes` is `head_dim` rounded up to the format's step. The integer formats put their scales
//! behind each of the two tiles. In bf16, two dimensions of a key and two positions of a value
//! share 32 bits, see [`Bf16`]. A slot's bytes need no alignment. The mean of a page's keys may lie
//! behind its slot, see [`KvFormat::write_mean`].

use std::str::FromStr;

use oss_simd::{Isa, Kernel, Simd};

mod bf16;
mod float;
mod int4;
mod int8;
mod mean;
mod products;
mod rows;

pub use bf16::Bf16;
pub use float::{F16, F32};
pub use int4::Int4;
pub use int8::Int8;
pub use mean::{mean_bytes, mean_quad};
pub use products::{OfBf16, OfF32, Products};
pub use rows::Rows;

/// Positions in a page.
pub const PAGE_TOKENS: usize = 16;
/// The most numbers of a head that a page can hold.
pub const MAX_HEAD_DIM: usize = 1 << 20;

/// How keys and values are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum KvFormat {
    /// Single precision.
    F32,
    /// Half precision: relative error up to 2⁻¹¹, overflow above 65,504.
    F16,
    /// The upper half of single precision: relative error up to 2⁻⁸; what is below 2⁻⁵⁰ is zero.
    Bf16,
    /// Signed bytes, one f32 scale per position: error up to 1/254 of the largest value.
    Int8,
    /// 4-bit codes, one f16 scale per 32 dimensions of a position.
    Int4,
}

/// Something to do with a format known at compile time, see [`KvFormat::visit`].
pub trait KvVisitor {
    /// What it returns.
    type Output;
    /// Does it for the format `C`.
    fn visit<C: KvCodec>(self) -> Self::Output;
}

/// Sixteen pairs of a format's numbers.
pub type Pairs<C, S> = <<C as KvCodec>::Products as Products>::Pairs<S>;

/// One format of keys and values. `slot` is always a whole slot, [`KvCodec::slot_bytes`] long.
pub trait KvCodec: 'static {
    /// Its name in the enum.
    const FORMAT: KvFormat;
    /// Bits of a number, scales aside.
    const BITS: usize;
    /// How its numbers are multiplied.
    type Products: Products;

    /// Bytes of the keys of a slot; the values begin there.
    fn key_bytes(head_dim: usize) -> usize;
    /// Bytes of the values of a slot.
    fn value_bytes(head_dim: usize) -> usize;
    /// Stores the key of one position; `head_dim` is its length.
    fn write_key<S: Simd>(s: S, slot: &mut [u8], position: usize, key: &[f32]);
    /// Stores the value of one position; lanes past its end become zero.
    fn write_value<S: Simd>(s: S, slot: &mut [u8], position: usize, value: &[f32]);
    /// Stores the keys of all sixteen positions, of whole blocks of 32 dimensions, to the bytes of
    /// [`KvCodec::write_key`].
    fn write_keys<S: Simd>(s: S, slot: &mut [u8], keys: Rows<'_>);
    /// Stores the values of all sixteen positions, as [`KvCodec::write_keys`] does.
    fn write_values<S: Simd>(s: S, slot: &mut [u8], values: Rows<'_>);
    /// Reads the key of one position back.
    fn read_key(slot: &[u8], position: usize, key: &mut [f32]);
    /// Reads the value of one position back.
    fn read_value(slot: &[u8], position: usize, value: &mut [f32]);
    /// Dimensions `2 d2` and `2 d2 + 1` of the keys of all sixteen positions. The second means
    /// nothing where it is `head_dim`.
    fn key_columns<S: Simd>(s: S, slot: &[u8], head_dim: usize, d2: usize) -> Pairs<Self, S>;
    /// Dimensions `16 d16 .. 16 d16 + 16` of the values at positions `2 p2` and `2 p2 + 1`; those
    /// past `head_dim` are 0.
    fn values<S: Simd>(s: S, slot: &[u8], head_dim: usize, p2: usize, d16: usize)
    -> Pairs<Self, S>;

    /// Bytes of a slot.
    #[inline(always)]
    fn slot_bytes(head_dim: usize) -> usize {
        Self::key_bytes(head_dim) + Self::value_bytes(head_dim)
    }
}

impl KvFormat {
    /// Every format.
    pub const ALL: [KvFormat; 5] =
        [KvFormat::F32, KvFormat::F16, KvFormat::Bf16, KvFormat::Int8, KvFormat::Int4];

    /// Calls the visitor with the format's type.
    #[inline(always)]
    pub fn visit<V: KvVisitor>(self, visitor: V) -> V::Output {
        match self {
            KvFormat::F32 => visitor.visit::<F32>(),
            KvFormat::F16 => visitor.visit::<F16>(),
            KvFormat::Bf16 => visitor.visit::<Bf16>(),
            KvFormat::Int8 => visitor.visit::<Int8>(),
            KvFormat::Int4 => visitor.visit::<Int4>(),
        }
    }

    /// The name, in lower case.
    pub fn name(self) -> &'static str {
        match self {
            KvFormat::F32 => "f32",
            KvFormat::F16 => "f16",
            KvFormat::Bf16 => "bf16",
            KvFormat::Int8 => "int8",
            KvFormat::Int4 => "int4",
        }
    }

    /// Bytes of one head's page of [`PAGE_TOKENS`] positions.
    ///
    /// # Panics
    /// When `head_dim` is above [`MAX_HEAD_DIM`].
    pub fn slot_bytes(self, head_dim: usize) -> usize {
        assert!(head_dim <= MAX_HEAD_DIM, "head_dim is {head_dim}, at most {MAX_HEAD_DIM}");
        struct Bytes(usize);
        impl KvVisitor for Bytes {
            type Output = usize;
            fn visit<C: KvCodec>(self) -> usize {
                C::slot_bytes(self.0)
            }
        }
        self.visit(Bytes(head_dim))
    }

    /// Stores the key of one position (0..16) of a slot; its length is `head_dim`.
    ///
    /// # Panics
    /// When the slot has not the size for this `head_dim`, or the position is not below 16.
    pub fn write_key(self, isa: Isa, slot: &mut [u8], position: usize, key: &[f32]) {
        self.check(slot.len(), position + 1, key.len());
        isa.run(Write { format: self, what: What::Keys, slot, vectors: (position, key) });
    }

    /// Stores the value of one position (0..16) of a slot; its length is `head_dim`.
    ///
    /// # Panics
    /// As [`KvFormat::write_key`].
    pub fn write_value(self, isa: Isa, slot: &mut [u8], position: usize, value: &[f32]) {
        self.check(slot.len(), position + 1, value.len());
        isa.run(Write { format: self, what: What::Values, slot, vectors: (position, value) });
    }

    /// Stores the keys of consecutive positions of a slot, beginning with `first`: the same bytes
    /// as one after the other. A whole page is transposed in vectors where `head_dim` is a multiple
    /// of 32, and takes a third of the time or less.
    ///
    /// # Panics
    /// As [`KvFormat::write_key`], or when there are fewer numbers than the vectors have.
    pub fn write_keys(self, isa: Isa, slot: &mut [u8], first: usize, keys: Rows<'_>) {
        self.check(slot.len(), first + keys.n, keys.dim);
        if keys.fill_page() {
            return isa.run(Write { format: self, what: What::Keys, slot, vectors: keys });
        }
        for i in 0..keys.n {
            self.write_key(isa, slot, first + i, keys.row(i));
        }
    }

    /// Stores the values of consecutive positions of a slot, as [`KvFormat::write_keys`] does.
    ///
    /// # Panics
    /// As [`KvFormat::write_keys`].
    pub fn write_values(self, isa: Isa, slot: &mut [u8], first: usize, values: Rows<'_>) {
        self.check(slot.len(), first + values.n, values.dim);
        if values.fill_page() {
            return isa.run(Write { format: self, what: What::Values, slot, vectors: values });
        }
        for i in 0..values.n {
            self.write_value(isa, slot, first + i, values.row(i));
        }
    }

    /// Reads the key of one position back, as the SIMD readers would.
    ///
    /// # Panics
    /// As [`KvFormat::write_key`].
    pub fn read_key(self, slot: &[u8], position: usize, key: &mut [f32]) {
        struct Read<'a>(&'a [u8], usize, &'a mut [f32]);
        impl KvVisitor for Read<'_> {
            type Output = ();
            fn visit<C: KvCodec>(self) {
                C::read_key(self.0, self.1, self.2);
            }
        }
        self.check(slot.len(), position + 1, key.len());
        self.visit(Read(slot, position, key));
    }

    /// Reads the value of one position back, as the SIMD readers would.
    ///
    /// # Panics
    /// As [`KvFormat::write_key`].
    pub fn read_value(self, slot: &[u8], position: usize, value: &mut [f32]) {
        struct Read<'a>(&'a [u8], usize, &'a mut [f32]);
        impl KvVisitor for Read<'_> {
            type Output = ();
            fn visit<C: KvCodec>(self) {
                C::read_value(self.0, self.1, self.2);
            }
        }
        self.check(slot.len(), position + 1, value.len());
        self.visit(Read(slot, position, value));
    }

    fn check(self, slot: usize, end: usize, head_dim: usize) {
        let expected = self.slot_bytes(head_dim);
        assert_eq!(slot, expected, "bytes of the slot (left), of head_dim {head_dim} (right)");
        assert!(end <= PAGE_TOKENS, "position {} in a page of {PAGE_TOKENS}", end - 1);
    }
}

/// What positions have two of.
#[derive(Clone, Copy)]
enum What {
    Keys,
    Values,
}

/// The vector of one position, or those of a page.
trait Vectors {
    fn store<S: Simd, C: KvCodec>(self, s: S, what: What, slot: &mut [u8]);
}

impl Vectors for (usize, &[f32]) {
    #[inline(always)]
    fn store<S: Simd, C: KvCodec>(self, s: S, what: What, slot: &mut [u8]) {
        match what {
            What::Keys => C::write_key(s, slot, self.0, self.1),
            What::Values => C::write_value(s, slot, self.0, self.1),
        }
    }
}

impl Vectors for Rows<'_> {
    #[inline(always)]
    fn store<S: Simd, C: KvCodec>(self, s: S, what: What, slot: &mut [u8]) {
        match what {
            What::Keys => C::write_keys(s, slot, self),
            What::Values => C::write_values(s, slot, self),
        }
    }
}

/// Vectors to be stored in a slot.
struct Write<'a, T> {
    format: KvFormat,
    what: What,
    slot: &'a mut [u8],
    vectors: T,
}

impl<T: Vectors> Kernel for Write<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        self.format.visit(WriteWith(s, self));
    }
}

struct WriteWith<'a, S, T>(S, Write<'a, T>);

impl<S: Simd, T: Vectors> KvVisitor for WriteWith<'_, S, T> {
    type Output = ();

    #[inline(always)]
    fn visit<C: KvCodec>(self) {
        let WriteWith(s, Write { what, slot, vectors, .. }) = self;
        vectors.store::<S, C>(s, what, slot);
    }
}

impl std::fmt::Display for KvFormat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for KvFormat {
    type Err = ParseKvFormatError;

    fn from_str(text: &str) -> Result<KvFormat, ParseKvFormatError> {
        let found = KvFormat::ALL.into_iter().find(|format| format.name() == text);
        found.ok_or_else(|| ParseKvFormatError { got: text.to_owned() })
    }
}

/// A text is no [`KvFormat`]'s name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("got the format of keys and values {got}, expected f32, f16, bf16, int8 or int4")]
#[non_exhaustive]
pub struct ParseKvFormatError {
    /// The text.
    pub got: String,
}

/// Lanes of a value row: `head_dim` rounded up to whole vectors.
#[inline(always)]
const fn lanes(head_dim: usize) -> usize {
    head_dim.next_multiple_of(16)
}

/// Up to sixteen numbers, the rest zero.
#[inline(always)]
fn load<S: Simd>(s: S, chunk: &[f32]) -> S::F32 {
    match chunk.try_into() {
        Ok(all) => s.load(all),
        Err(_) => s.load_partial(chunk),
    }
}

#[cfg(test)]
mod tests;
