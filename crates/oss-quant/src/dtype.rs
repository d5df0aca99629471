//! The element types of model files: one row each.

use std::fmt;

use crate::error::{Error, Result};
use crate::formats;
use oss_simd::Isa;

/// What one element, or one block of elements, of a file's tensor is stored as.
///
/// Integers occur in files but never as weights; [`Dtype::dequantise_row`] refuses them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Dtype {
    /// IEEE single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper half of a single-precision number.
    Bf16,
    /// IEEE double precision.
    F64,
    /// Signed byte.
    I8,
    /// Signed 16-bit integer.
    I16,
    /// Signed 32-bit integer.
    I32,
    /// Signed 64-bit integer.
    I64,
    /// Unsigned byte.
    U8,
    /// Unsigned 16-bit integer.
    U16,
    /// Unsigned 32-bit integer.
    U32,
    /// Unsigned 64-bit integer.
    U64,
    /// One byte, 0 or 1.
    Bool,
    /// OCP microscaling: 32 e2m1 codes under one e8m0 scale.
    Mxfp4,
    /// 32 4-bit codes, f16 scale.
    Q4_0,
    /// 32 4-bit codes, f16 scale and minimum.
    Q4_1,
    /// 32 5-bit codes, f16 scale.
    Q5_0,
    /// 32 5-bit codes, f16 scale and minimum.
    Q5_1,
    /// 32 8-bit codes, f16 scale.
    Q8_0,
    /// 256 2-bit codes, 4-bit scales and minima per 16.
    Q2K,
    /// 256 3-bit codes, 6-bit scales per 16.
    Q3K,
    /// 256 4-bit codes, 6-bit scales and minima per 32.
    Q4K,
    /// 256 5-bit codes, 6-bit scales and minima per 32.
    Q5K,
    /// 256 6-bit codes, 8-bit scales per 16.
    Q6K,
    /// 32 4-bit codes into a fixed non-linear table, f16 scale.
    Iq4Nl,
}

/// What the table says about one type.
struct Entry {
    dtype: Dtype,
    /// As GGUF and safetensors spell it.
    name: &'static str,
    /// Elements in a block.
    block_len: usize,
    /// Bytes of a block.
    block_bytes: usize,
    /// How its blocks are read and written; `None` for what is never a weight.
    codec: Option<Codec>,
}

/// The two directions of a format, over one row of whole blocks whose lengths have been checked.
pub(crate) struct Codec {
    pub(crate) dequantise: fn(Isa, &[u8], &mut [f32]),
    pub(crate) quantise: fn(&[f32], &mut [u8]),
}

/// A row of [`TABLE`] for a type that holds weights.
const fn weight(
    dtype: Dtype,
    name: &'static str,
    block_len: usize,
    block_bytes: usize,
    codec: Codec,
) -> Entry {
    Entry { dtype, name, block_len, block_bytes, codec: Some(codec) }
}

/// A row of [`TABLE`] for a type that never does.
const fn plain(dtype: Dtype, name: &'static str, block_bytes: usize) -> Entry {
    Entry { dtype, name, block_len: 1, block_bytes, codec: None }
}

/// One row for each type, in the order of the enum.
const TABLE: [Entry; 25] = [
    weight(Dtype::F32, "F32", 1, 4, formats::f32::CODEC),
    weight(Dtype::F16, "F16", 1, 2, formats::f16::CODEC),
    weight(Dtype::Bf16, "BF16", 1, 2, formats::bf16::CODEC),
    plain(Dtype::F64, "F64", 8),
    plain(Dtype::I8, "I8", 1),
    plain(Dtype::I16, "I16", 2),
    plain(Dtype::I32, "I32", 4),
    plain(Dtype::I64, "I64", 8),
    plain(Dtype::U8, "U8", 1),
    plain(Dtype::U16, "U16", 2),
    plain(Dtype::U32, "U32", 4),
    plain(Dtype::U64, "U64", 8),
    plain(Dtype::Bool, "BOOL", 1),
    weight(Dtype::Mxfp4, "MXFP4", 32, 17, formats::mxfp4::CODEC),
    weight(Dtype::Q4_0, "Q4_0", 32, 18, formats::q4_0::CODEC),
    weight(Dtype::Q4_1, "Q4_1", 32, 20, formats::q4_1::CODEC),
    weight(Dtype::Q5_0, "Q5_0", 32, 22, formats::q5_0::CODEC),
    weight(Dtype::Q5_1, "Q5_1", 32, 24, formats::q5_1::CODEC),
    weight(Dtype::Q8_0, "Q8_0", 32, 34, formats::q8_0::CODEC),
    weight(Dtype::Q2K, "Q2_K", 256, 84, formats::q2_k::CODEC),
    weight(Dtype::Q3K, "Q3_K", 256, 110, formats::q3_k::CODEC),
    weight(Dtype::Q4K, "Q4_K", 256, 144, formats::q4_k::CODEC),
    weight(Dtype::Q5K, "Q5_K", 256, 176, formats::q5_k::CODEC),
    weight(Dtype::Q6K, "Q6_K", 256, 210, formats::q6_k::CODEC),
    weight(Dtype::Iq4Nl, "IQ4_NL", 32, 18, formats::iq4_nl::CODEC),
];

impl Dtype {
    /// What weights are usually quantised to: codes of 8, 6, 5 and 4 bits, those of 5 and the first
    /// of 4 with minima.
    pub const QUANTISED: [Dtype; 5] =
        [Dtype::Q8_0, Dtype::Q6K, Dtype::Q5_1, Dtype::Q4_1, Dtype::Q4_0];

    /// Every type, in the order of the table.
    pub fn all() -> impl Iterator<Item = Dtype> {
        TABLE.iter().map(|entry| entry.dtype)
    }

    fn entry(self) -> &'static Entry {
        &TABLE[self as usize]
    }

    /// The name that GGUF and safetensors use, such as `BF16` or `Q4_K`.
    pub fn name(self) -> &'static str {
        self.entry().name
    }

    /// The type of this name, upper or lower case.
    ///
    /// # Errors
    /// [`Error::UnknownName`] when no row of the table bears it.
    pub fn from_name(name: &str) -> Result<Dtype> {
        Dtype::all()
            .find(|dtype| dtype.name().eq_ignore_ascii_case(name))
            .ok_or_else(|| Error::UnknownName { got: name.to_owned() })
    }

    /// Elements in a block: 1, 32 or 256.
    pub fn block_len(self) -> usize {
        self.entry().block_len
    }

    /// Bytes of a block.
    pub fn block_bytes(self) -> usize {
        self.entry().block_bytes
    }

    /// Bytes of a row of `cols` elements; `None` when they are not whole blocks or do not fit.
    pub fn row_bytes(self, cols: usize) -> Option<usize> {
        let Entry { block_len, block_bytes, .. } = *self.entry();
        cols.is_multiple_of(block_len).then_some(cols / block_len)?.checked_mul(block_bytes)
    }

    /// Whether tensors of this type can be weights: all but integers, bools and doubles.
    pub fn is_weight(self) -> bool {
        self.entry().codec.is_some()
    }

    /// Decodes one row of file bytes (for MXFP4, GGUF's 17-byte blocks) into `out`.
    ///
    /// The arithmetic is the format's definition; every other decoder of this crate gives the
    /// same bits, and all do on every instruction set.
    ///
    /// # Errors
    /// [`Error::NotAWeight`]; [`Error::Columns`] when `out` is not whole blocks; [`Error::Bytes`]
    /// when `bytes` has not the length of that row.
    pub fn dequantise_row(self, isa: Isa, bytes: &[u8], out: &mut [f32]) -> Result<()> {
        let codec = self.checked(out.len(), bytes.len())?;
        (codec.dequantise)(isa, bytes, out);
        Ok(())
    }

    /// Encodes one row into file bytes: the inverse of [`Dtype::dequantise_row`], up to rounding.
    ///
    /// # Errors
    /// As [`Dtype::dequantise_row`], and [`Error::NotFinite`] for a value that a block format
    /// cannot hold (the float formats take any).
    pub fn quantise_row(self, values: &[f32], out: &mut [u8]) -> Result<()> {
        let codec = self.checked(values.len(), out.len())?;
        if self.block_len() > 1
            && let Some(index) = values.iter().position(|v| !v.is_finite())
        {
            return Err(Error::NotFinite { index, got: values[index] });
        }
        (codec.quantise)(values, out);
        Ok(())
    }

    fn checked(self, cols: usize, bytes: usize) -> Result<&'static Codec> {
        let entry = self.entry();
        let codec = entry.codec.as_ref().ok_or(Error::NotAWeight { got: self })?;
        let expected = self.row_bytes(cols).ok_or(Error::Columns {
            dtype: self,
            got: cols,
            expected: entry.block_len,
        })?;
        if bytes != expected {
            return Err(Error::Bytes { what: "the row", got: bytes, expected });
        }
        Ok(codec)
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_of_the_table_stands_at_its_own_place() {
        for (index, entry) in TABLE.iter().enumerate() {
            assert_eq!(entry.dtype as usize, index, "{}", entry.name);
            assert_eq!(Dtype::from_name(entry.name).unwrap(), entry.dtype);
            assert_eq!(Dtype::from_name(&entry.name.to_lowercase()).unwrap(), entry.dtype);
        }
    }

    #[test]
    fn an_unknown_name_is_an_error_that_lists_the_known_ones() {
        let error = Dtype::from_name("Q9").unwrap_err().to_string();
        assert!(error.starts_with("unknown element type \"Q9\", expected one of F32, "), "{error}");
        assert!(TABLE.iter().all(|entry| error.contains(entry.name)), "{error}");
    }

    #[test]
    fn row_bytes_refuses_part_blocks_and_overflow() {
        assert_eq!(Dtype::Mxfp4.row_bytes(2880), Some(1530));
        assert_eq!(Dtype::Q4K.row_bytes(512), Some(288));
        assert_eq!(Dtype::Q4K.row_bytes(288), None);
        assert_eq!(Dtype::F32.row_bytes(0), Some(0));
        assert_eq!(Dtype::F64.row_bytes(usize::MAX), None);
    }

    #[test]
    fn what_cannot_be_decoded_says_why() {
        let (isa, mut out) = (Isa::scalar(), [0.0; 32]);
        let error = Dtype::I32.dequantise_row(isa, &[0; 128], &mut out).unwrap_err();
        assert_eq!(error.to_string(), "element type I32 cannot hold weights");
        let error = Dtype::Q8_0.dequantise_row(isa, &[0; 33], &mut out).unwrap_err();
        assert_eq!(error.to_string(), "the row has 33 bytes, expected 34");
        let error = Dtype::Q8_0.dequantise_row(isa, &[0; 34], &mut out[..31]).unwrap_err();
        assert_eq!(error.to_string(), "a row of 31 columns is not whole Q8_0 blocks of 32");
        out[7] = f32::NAN;
        let error = Dtype::Q8_0.quantise_row(&out, &mut [0; 34]).unwrap_err();
        assert_eq!(error.to_string(), "value 7 to be quantised is NaN, expected a finite number");
    }
}
