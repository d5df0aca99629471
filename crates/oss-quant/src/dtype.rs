//! The element types of model files: one row each.

use crate::formats;

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
