//! Models of random weights, as GGUF files. Tests of other crates read them too.

use oss_testing::Seeded;
use oss_weights::{TensorPlan, Value, gguf};
use std::path::Path;

/// Writes a file of these tensors, whose numbers are nearly normal with a deviation of 0.1.
pub(crate) fn write_gguf(
    path: &Path,
    metadata: &[(String, Value)],
    plans: &[TensorPlan],
    seed: u64,
) {
    let mut writer = gguf::Writer::create(path, metadata, plans).unwrap();
    let mut seeded = Seeded::new(seed);
    for TensorPlan { dtype, shape, .. } in plans {
        let (cols, rows) = shape.split_last().unwrap();
        let mut row = vec![0; dtype.row_bytes(*cols).unwrap()];
        let mut bytes = Vec::new();
        for _ in 0..rows.iter().product::<usize>() {
            dtype.quantise_row(&seeded.normals(*cols, 0.1), &mut row).unwrap();
            bytes.extend_from_slice(&row);
        }
        writer.tensor_bytes(&bytes).unwrap();
    }
    writer.finish().unwrap();
}
