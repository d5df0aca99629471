//! Vectors and single rows, read as numbers.

use crate::config_reader::ConfigReader;
use crate::error::{Error, Result};
use crate::plan::{Numbers, Rows, VectorPlan};
use oss_memory::try_zeroed;
use oss_quant::GROUP_ROWS;
use oss_simd::Isa;
use oss_weights::{Container, Encoded, Tensor};

/// All numbers of a tensor.
pub(crate) fn numbers(reader: &ConfigReader<'_>, tensor: &Tensor<'_>) -> Result<Vec<f32>> {
    all(reader.container, tensor)
}

fn all(container: &Container, tensor: &Tensor<'_>) -> Result<Vec<f32>> {
    let wrong = |cause| Error::Packing {
        path: container.path().to_owned(),
        tensor: tensor.info.name.clone(),
        cause,
    };
    let Encoded::Plain(bytes) = tensor.data else {
        return Err(shape_error(container, tensor, "a vector of numbers"));
    };
    let mut out: Vec<f32> = try_zeroed(tensor.info.shape.iter().product())?;
    tensor.info.dtype.dequantise_row(Isa::scalar(), bytes, &mut out).map_err(wrong)?;
    Ok(out)
}

fn shape_error(container: &Container, tensor: &Tensor<'_>, expected: &str) -> Error {
    Error::Shape {
        path: container.path().to_owned(),
        tensor: tensor.info.name.clone(),
        got: format!("{:?} of {}", tensor.info.shape, tensor.info.dtype.name()),
        expected: expected.to_owned(),
    }
}

fn of_tensor(container: &Container, rows: &Rows) -> Result<Vec<f32>> {
    let tensor = container.tensor(&rows.tensor)?;
    let expected = rows.step * rows.count;
    if tensor.info.shape.iter().product::<usize>() != expected {
        return Err(shape_error(container, &tensor, &format!("{expected} numbers")));
    }
    let all = all(container, &tensor)?;
    Ok((0..rows.count).map(|i| all[rows.source(i)]).collect())
}

fn of_part(container: &Container, part: &Numbers) -> Result<Vec<f32>> {
    match part {
        Numbers::Of(rows) => of_tensor(container, rows),
        Numbers::Zeros(n) => Ok(try_zeroed(*n)?),
    }
}

/// The numbers of a planned vector.
pub(super) fn read(container: &Container, plan: &VectorPlan) -> Result<Vec<f32>> {
    match plan {
        VectorPlan::Stacked(parts) => {
            let mut out = Vec::new();
            for part in parts {
                out.extend(of_part(container, part)?);
            }
            Ok(out)
        }
        VectorPlan::Paired { gate, up, repeat } => {
            let (gate, up) = (of_part(container, gate)?, of_part(container, up)?);
            let each = gate.len() / repeat;
            let networks = gate.chunks_exact(each).zip(up.chunks_exact(each));
            let pairs =
                networks.flat_map(|(gate, up)| gate.chunks(GROUP_ROWS).zip(up.chunks(GROUP_ROWS)));
            Ok(pairs.flat_map(|(gate, up)| gate.iter().chain(up)).copied().collect())
        }
    }
}

/// Refuses an embedding of another shape, or of a type without numbers.
pub(super) fn check_embedding(
    container: &Container,
    name: &str,
    (rows, cols): (usize, usize),
) -> Result<()> {
    let tensor = container.tensor(name)?;
    let plain = matches!(tensor.data, Encoded::Plain(_)) && tensor.info.dtype.is_weight();
    if tensor.info.shape != [rows, cols] || !plain {
        return Err(shape_error(container, &tensor, &format!("[{rows}, {cols}] of numbers")));
    }
    Ok(())
}

/// One row of the embedding.
pub(super) fn embedding_row(
    isa: Isa,
    container: &Container,
    (name, row): (&str, usize),
    out: &mut [f32],
) -> Result<()> {
    let tensor = container.tensor(name)?;
    let Encoded::Plain(bytes) = tensor.data else {
        return Err(shape_error(container, &tensor, "a plain matrix"));
    };
    let row_bytes = bytes.len() / tensor.info.shape[0];
    let bytes = &bytes[row * row_bytes..][..row_bytes];
    tensor.info.dtype.dequantise_row(isa, bytes, out).map_err(|cause| Error::Packing {
        path: container.path().to_owned(),
        tensor: name.to_owned(),
        cause,
    })
}
