//! Tensors that lie otherwise than a model's, or have numbers that none can have: errors name the
//! tensor and its row, however rows are packed together.

#[path = "support/runner.rs"]
mod common;

use common::data;
use oss_model::{Precision, pack_to_file, packed_bytes};
use oss_quant::Dtype;
use oss_weights::{Container, Encoded, TensorPlan, gguf};

/// The edge model with one tensor changed.
fn changed(tensor: &str, change: impl Fn(&mut TensorPlan, &mut Vec<u8>)) -> Container {
    let edge = Container::open(&data("edge/edge.gguf")).unwrap();
    let metadata: Vec<_> =
        edge.metadata().iter().map(|(key, value)| (key.to_owned(), value.clone())).collect();
    let mut tensors: Vec<(TensorPlan, Vec<u8>)> = Vec::new();
    for info in edge.tensors() {
        let Encoded::Plain(bytes) = edge.tensor(&info.name).unwrap().data else {
            panic!("GGUF has no planes apart")
        };
        let (name, shape) = (info.name.clone(), info.shape.clone());
        tensors.push((TensorPlan { name, dtype: info.dtype, shape }, bytes.to_vec()));
    }
    let (plan, bytes) = tensors.iter_mut().find(|(plan, _)| plan.name == tensor).unwrap();
    change(plan, bytes);
    let plans: Vec<TensorPlan> = tensors.iter().map(|(plan, _)| plan.clone()).collect();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("edge.gguf");
    let mut writer = gguf::Writer::create(&path, &metadata, &plans).unwrap();
    for (_, bytes) in &tensors {
        writer.tensor_bytes(bytes).unwrap();
    }
    writer.finish().unwrap();
    Container::from_bytes("edge.gguf", std::fs::read(&path).unwrap(), Vec::new()).unwrap()
}

/// What packing a model says, and why.
fn refused(container: &Container, precision: &Precision) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("edge.oss");
    pack_to_file(container, precision, &path, None).unwrap_err().to_string()
}

#[test]
fn matrices_have_the_shape_of_the_model_and_no_other_of_as_many_rows() {
    let (down, query) = ("blk.0.ffn_down_exps.weight", "blk.0.attn_q.weight");
    for (tensor, shape, expected) in [
        (down, vec![6, 96, 64], "[5, 96, 64]"),
        (down, vec![6, 80, 64], "[5, 96, 64]"),
        (down, vec![480, 64], "[5, 96, 64]"),
        (query, vec![6, 64, 96], "[384, 96]"),
    ] {
        let container = changed(tensor, |plan, bytes| {
            let cols = *shape.last().unwrap();
            let rows = shape.iter().product::<usize>() / cols;
            bytes.resize(rows * plan.dtype.row_bytes(cols).unwrap(), 0);
            plan.shape.clone_from(&shape);
        });
        let error = packed_bytes(&container).unwrap_err().to_string();
        let words = format!("tensor {tensor}: got {shape:?}, expected {expected}");
        assert!(error.contains(&words), "{error}");
    }
}

/// Row 17 of the third expert lies in another place, between gates, when it is packed.
#[test]
fn a_damaged_scale_is_told_by_its_own_tensor_and_row() {
    const ROW: usize = 2 * 64 + 17;
    let tensor = "blk.1.ffn_up_exps.weight";
    let container = changed(tensor, |plan, bytes| {
        assert_eq!((plan.dtype, plan.shape.as_slice()), (Dtype::Mxfp4, &[5, 64, 96][..]));
        bytes[ROW * 3 * 17 + 17] = 255;
    });
    let error = refused(&container, &Precision::default());
    let words = format!("edge.gguf: tensor {tensor}: a scale of block 1 in row {ROW} is 0xff");
    assert!(error.contains(&words), "{error}");
}

#[test]
fn a_precision_plan_makes_nothing_that_is_not_finite() {
    const AT: usize = 2 * (7 * 96 + 5);
    let tensor = "blk.0.attn_q.weight";
    let (not_a_number, large) = (0x7fc0_u16, 0x7e96_u16);
    for (bits, dtype, got) in [
        (not_a_number, Dtype::Q8_0, "NaN"),
        (not_a_number, Dtype::F32, "NaN"),
        // Beyond what 16 bits hold of another kind.
        (large, Dtype::F16, "inf"),
    ] {
        let container = changed(tensor, |plan, bytes| {
            assert_eq!((plan.dtype, plan.shape.as_slice()), (Dtype::Bf16, &[384, 96][..]));
            bytes[AT..AT + 2].copy_from_slice(&bits.to_le_bytes());
        });
        let mut precision = Precision::default();
        precision.set(tensor, dtype);
        let error = refused(&container, &precision);
        let words = format!("tensor {tensor}: got {got} in row 7, column 5, expected finite");
        assert!(error.contains(&words) && error.contains(dtype.name()), "{error}");
    }
}
