//! A packed matrix of made-up numbers.

use oss_quant::{Dtype, Encoded, Packing};

pub(crate) fn numbers(n: usize) -> Vec<f32> {
    (0..n).map(|i| (i as f32 * 0.7).sin()).collect()
}

/// How `rows` like rows of `cols` numbers are packed, and their bytes.
pub(crate) fn packed(dtype: Dtype, rows: usize, cols: usize) -> (Packing, Vec<u8>) {
    let mut row = vec![0; dtype.row_bytes(cols).expect("whole blocks")];
    dtype.quantise_row(&numbers(cols), &mut row).expect("finite values");
    let packing = Packing::for_dtype(dtype, rows, cols).expect("whole blocks");
    let mut bytes = vec![0; packing.bytes()];
    for (group, out) in bytes.chunks_exact_mut(packing.group_bytes()).enumerate() {
        packing.pack_group(group, |_| Encoded::Plain(&row), out).expect("rows of the right length");
    }
    (packing, bytes)
}
