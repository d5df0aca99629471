//! The published gpt-oss layout: MXFP4 as two tensors of bytes, presented as one.

use std::collections::{HashMap, HashSet};

use oss_quant::Dtype;

use crate::error::{Error, Result};
use crate::source::Source;
use crate::tensor::{TensorInfo, stored_bytes};

const BLOCKS: &str = "_blocks";
const SCALES: &str = "_scales";
/// Bytes of codes in a block of 32 elements.
const BLOCK_BYTES: usize = 16;

/// Replaces each pair `X_blocks` [.., rows, n_blocks, 16] and `X_scales` [.., rows, n_blocks] of
/// bytes by one tensor `X` [.., rows, n_blocks × 32] of type MXFP4, in the place of the blocks.
///
/// The two may lie in different shards. Names alone decide nothing: without a partner, or with
/// another element type, a tensor stays what it is.
pub(crate) fn merge(sources: &[Source], tensors: Vec<TensorInfo>) -> Result<Vec<TensorInfo>> {
    let by_name = |t: &TensorInfo, ending| {
        let stem = t.name.strip_suffix(ending).filter(|_| t.dtype == Dtype::U8)?;
        Some(stem.to_string())
    };
    let mut scales: HashMap<String, TensorInfo> = HashMap::new();
    let mut blocks = HashSet::new();
    for tensor in &tensors {
        if let Some(stem) = by_name(tensor, SCALES) {
            scales.insert(stem, tensor.clone());
        } else if let Some(stem) = by_name(tensor, BLOCKS) {
            blocks.insert(stem);
        }
    }
    let mut merged = Vec::with_capacity(tensors.len());
    for tensor in tensors {
        if let Some(scales) = by_name(&tensor, BLOCKS).and_then(|stem| scales.get(&stem)) {
            merged.push(pair(sources, &tensor, scales)?);
        } else if !by_name(&tensor, SCALES).is_some_and(|stem| blocks.contains(&stem)) {
            merged.push(tensor);
        }
    }
    Ok(merged)
}

/// One logical tensor from the two.
fn pair(sources: &[Source], blocks: &TensorInfo, scales: &TensorInfo) -> Result<TensorInfo> {
    let shape = match blocks.shape.split_last() {
        Some((&BLOCK_BYTES, outer)) if outer == scales.shape && !outer.is_empty() => outer,
        _ => {
            let file = sources[blocks.data.file].path();
            let got = format!("{:?} beside scales {:?}", blocks.shape, scales.shape);
            let expected = format!("[.., rows, n_blocks, {BLOCK_BYTES}] and [.., rows, n_blocks]");
            return Err(Error::tensor(file, &blocks.name, "shape", got, expected));
        }
    };
    let mut shape = shape.to_vec();
    if let Some(columns) = shape.last_mut() {
        *columns = columns.saturating_mul(Dtype::Mxfp4.block_len());
    }
    let name = blocks.name.strip_suffix(BLOCKS).unwrap_or(&blocks.name).to_string();
    let dimensions: Vec<u64> = shape.iter().map(|&dimension| dimension as u64).collect();
    stored_bytes(sources[blocks.data.file].path(), &name, Dtype::Mxfp4, &dimensions)?;
    let (data, scales) = (blocks.data, Some(scales.data));
    Ok(TensorInfo { name, dtype: Dtype::Mxfp4, shape, data, scales })
}
