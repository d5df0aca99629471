//! What a container says about one tensor, and the checks every format shares.

use std::path::Path;

use oss_quant::{Dtype, Encoded};

use crate::error::{Error, Result};

/// The most dimensions of a tensor, so that an error can name them all.
pub(crate) const MOST_DIMENSIONS: usize = 16;

/// One logical tensor of a container.
#[derive(Clone, Debug)]
pub struct TensorInfo {
    /// The name as the file spells it (a merged gpt-oss pair without `_blocks`).
    pub name: String,
    /// The element type.
    pub dtype: Dtype,
    /// Dimensions, outermost first; the last one is contiguous. Empty for a scalar.
    pub shape: Vec<usize>,
    pub(crate) data: Span,
    pub(crate) scales: Option<Span>,
}

impl TensorInfo {
    /// The number of elements: the product of the shape, known not to overflow.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// The number of bytes that the tensor takes in its file, scales included.
    pub fn bytes(&self) -> usize {
        self.data.len() + self.scales.map_or(0, Span::len)
    }
}

/// A tensor that is going to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorPlan {
    /// The name.
    pub name: String,
    /// The element type.
    pub dtype: Dtype,
    /// Dimensions, outermost first; the last one is contiguous.
    pub shape: Vec<usize>,
}

/// One tensor with its bytes, borrowed from the container's map.
#[derive(Clone, Copy, Debug)]
pub struct Tensor<'a> {
    /// Name, element type, shape.
    pub info: &'a TensorInfo,
    /// The bytes.
    pub data: Encoded<'a>,
}

/// Where bytes lie: a file of the container and a range in it, checked when the file was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) file: usize,
    pub(crate) start: usize,
    pub(crate) end: usize,
}

impl Span {
    pub(crate) fn len(self) -> usize {
        self.end - self.start
    }
}

/// The bytes that a tensor of this type and shape (outermost first) takes, or why there is none.
///
/// Dimensions of zero are allowed; the product of the others must stay below 2⁶³ bytes all the
/// same, so that no later product over a part of the shape can overflow.
pub(crate) fn stored_bytes(file: &Path, name: &str, dtype: Dtype, shape: &[u64]) -> Result<u64> {
    if shape.len() > MOST_DIMENSIONS {
        let expected = format!("at most {MOST_DIMENSIONS}");
        return Err(Error::tensor(file, name, "number of dimensions", shape.len(), expected));
    }
    let block_len = dtype.block_len() as u64;
    let columns = shape.last().copied().unwrap_or(1);
    if !columns.is_multiple_of(block_len) {
        let what = format!("innermost dimension of {shape:?}");
        let expected = format!("a multiple of {block_len}, the block of {dtype}");
        return Err(Error::tensor(file, name, what, columns, expected));
    }
    let product = |least: u64| {
        let mut elements = 1u64;
        for &dimension in shape {
            elements = elements.checked_mul(dimension.max(least))?;
        }
        elements.div_ceil(block_len).checked_mul(dtype.block_bytes() as u64)
    };
    match (product(1), product(0)) {
        (Some(largest), Some(bytes)) if largest <= i64::MAX as u64 => Ok(bytes),
        _ => {
            let expected = "a product that fits in 63 bits";
            Err(Error::tensor(file, name, "shape", format!("{shape:?}"), expected))
        }
    }
}

/// Refuses tensors whose bytes overlap. Spans of no bytes overlap nothing.
pub(crate) fn check_disjoint(file: &Path, spans: &mut Vec<(Span, &str)>) -> Result<()> {
    spans.retain(|(span, _)| span.len() > 0);
    spans.sort_unstable_by_key(|(span, _)| (span.file, span.start));
    for pair in spans.windows(2) {
        let [(before, other), (span, name)] = pair else { continue };
        if before.file == span.file && span.start < before.end {
            let got = format!("bytes {}..{}", span.start, span.end);
            let expected = format!(
                "no overlap with {} at {}..{}",
                crate::error::shown(other),
                before.start,
                before.end
            );
            return Err(Error::tensor(file, name, "offset", got, expected));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(dtype: Dtype, shape: &[u64]) -> Result<u64> {
        stored_bytes(Path::new("file"), "t", dtype, shape)
    }

    #[test]
    fn bytes_follow_from_type_and_shape() {
        assert_eq!(bytes(Dtype::F32, &[]).unwrap(), 4);
        assert_eq!(bytes(Dtype::Bf16, &[3, 5]).unwrap(), 30);
        assert_eq!(bytes(Dtype::Mxfp4, &[2, 3, 64]).unwrap(), 2 * 3 * 2 * 17);
        assert_eq!(bytes(Dtype::Q6K, &[7, 0]).unwrap(), 0);
    }

    #[test]
    fn a_row_that_is_no_multiple_of_the_block_is_refused() {
        let error = bytes(Dtype::Q4_0, &[2, 48]).unwrap_err().to_string();
        let expected = "file: tensor t: innermost dimension of [2, 48]: got 48, \
                        expected a multiple of 32, the block of Q4_0";
        assert_eq!(error, expected);
        bytes(Dtype::Q4_0, &[]).unwrap_err();
    }

    #[test]
    fn a_product_that_overflows_is_refused_even_beside_a_zero() {
        for shape in [&[1 << 32, 1 << 32][..], &[0, 1 << 32, 1 << 31], &[1 << 62, 0]] {
            let error = bytes(Dtype::F32, shape).unwrap_err().to_string();
            assert!(error.contains("expected a product that fits in 63 bits"), "{error}");
        }
    }
}
