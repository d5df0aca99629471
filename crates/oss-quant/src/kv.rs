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
//! share 32 bits, see [`Bf16`]. A slot's bytes need no alignment.

use oss_simd::{Isa, Kernel, Simd};

mod bf16;
mod float;
mod int4;
mod int8;

pub use bf16::Bf16;
pub use float::{F16, F32};
pub use int4::Int4;
pub use int8::Int8;

/// Positions in a page.
pub const PAGE_TOKENS: usize = 16;

/// How keys and values are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum KvFormat {
    /// Single precision.
    F32,
    /// Half precision: relative error up to 2⁻¹¹, overflow above 65,504.
    F16,
    /// The upper half of single precision: relative error up to 2⁻⁸.
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

/// One format of keys and values. `slot` is always a whole slot, [`KvCodec::slot_bytes`] long.
pub trait KvCodec: 'static {
    /// Its name in the enum.
    const FORMAT: KvFormat;
    /// Bits of a number, scales aside.
    const BITS: usize;

    /// Bytes of the keys of a slot; the values begin there.
    fn key_bytes(head_dim: usize) -> usize;
    /// Bytes of the values of a slot.
    fn value_bytes(head_dim: usize) -> usize;
    /// Stores the key of one position; `head_dim` is its length.
    fn write_key<S: Simd>(s: S, slot: &mut [u8], position: usize, key: &[f32]);
    /// Stores the value of one position; lanes past its end become zero.
    fn write_value<S: Simd>(s: S, slot: &mut [u8], position: usize, value: &[f32]);
    /// Reads the key of one position back.
    fn read_key(slot: &[u8], position: usize, key: &mut [f32]);
    /// Reads the value of one position back.
    fn read_value(slot: &[u8], position: usize, value: &mut [f32]);
    /// Dimensions `2 d2` and `2 d2 + 1` of the keys of all sixteen positions. The second means
    /// nothing where it is `head_dim`.
    fn key_columns<S: Simd>(s: S, slot: &[u8], head_dim: usize, d2: usize) -> [S::F32; 2];
    /// Dimensions `16 d16 .. 16 d16 + 16` of the values at positions `2 p2` and `2 p2 + 1`; those
    /// past `head_dim` are 0.
    fn values<S: Simd>(s: S, slot: &[u8], head_dim: usize, p2: usize, d16: usize) -> [S::F32; 2];

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

    /// The format of this name, upper or lower case; `None` when there is none.
    pub fn from_name(name: &str) -> Option<KvFormat> {
        KvFormat::ALL.into_iter().find(|format| format.name().eq_ignore_ascii_case(name))
    }

    /// Bytes of one head's page of `page_tokens` (always [`PAGE_TOKENS`]) positions.
    ///
    /// # Panics
    /// When `page_tokens` is not 16, or the size does not fit in `usize`.
    pub fn slot_bytes(self, page_tokens: usize, head_dim: usize) -> usize {
        assert_eq!(page_tokens, PAGE_TOKENS, "positions in a page (left), the layout's (right)");
        assert!(head_dim <= 1 << 20, "head_dim is {head_dim}, at most {}", 1 << 20);
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
        self.check(slot.len(), position, key.len());
        isa.run(Write { format: self, what: What::Key, slot, position, vector: key });
    }

    /// Stores the value of one position (0..16) of a slot; its length is `head_dim`.
    ///
    /// # Panics
    /// As [`KvFormat::write_key`].
    pub fn write_value(self, isa: Isa, slot: &mut [u8], position: usize, value: &[f32]) {
        self.check(slot.len(), position, value.len());
        isa.run(Write { format: self, what: What::Value, slot, position, vector: value });
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
        self.check(slot.len(), position, key.len());
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
        self.check(slot.len(), position, value.len());
        self.visit(Read(slot, position, value));
    }

    fn check(self, slot: usize, position: usize, head_dim: usize) {
        let expected = self.slot_bytes(PAGE_TOKENS, head_dim);
        assert_eq!(slot, expected, "bytes of the slot (left), of head_dim {head_dim} (right)");
        assert!(position < PAGE_TOKENS, "position {position} in a page of {PAGE_TOKENS}");
    }
}

/// What one position has two of.
#[derive(Clone, Copy)]
enum What {
    Key,
    Value,
}

/// A vector to be stored in a slot.
struct Write<'a> {
    format: KvFormat,
    what: What,
    slot: &'a mut [u8],
    position: usize,
    vector: &'a [f32],
}

impl Kernel for Write<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        self.format.visit(WriteWith(s, self));
    }
}

struct WriteWith<'a, S>(S, Write<'a>);

impl<S: Simd> KvVisitor for WriteWith<'_, S> {
    type Output = ();

    #[inline(always)]
    fn visit<C: KvCodec>(self) {
        let WriteWith(s, Write { what, slot, position, vector, .. }) = self;
        match what {
            What::Key => C::write_key(s, slot, position, vector),
            What::Value => C::write_value(s, slot, position, vector),
        }
    }
}

impl std::fmt::Display for KvFormat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Lanes of a value row: `head_dim` rounded up to whole vectors.
#[inline(always)]
fn lanes(head_dim: usize) -> usize {
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
