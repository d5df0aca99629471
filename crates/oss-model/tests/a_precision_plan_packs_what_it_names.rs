//! Matrices that a precision plan names are packed as if the file had them in that type: in a
//! packed file, and again and again in memory.

#[path = "support/runner.rs"]
mod common;

use common::{Runner, Setting, data};
use oss_model::{Precision, Site, describe, pack_to_file, site_bytes};
use oss_quant::Dtype;
use oss_simd::Isa;
use oss_weights::{Container, Encoded, TensorPlan, gguf};
use std::path::Path;

/// Writes the GGUF file with the tensors that the plan names converted.
fn write_converted(container: &Container, precision: &Precision, path: &Path) {
    let metadata: Vec<_> =
        container.metadata().iter().map(|(key, value)| (key.to_owned(), value.clone())).collect();
    let converted: Vec<(TensorPlan, Vec<u8>)> = container
        .tensors()
        .map(|info| {
            let Encoded::Plain(bytes) = container.tensor(&info.name).unwrap().data else {
                panic!("GGUF has no planes apart")
            };
            let (name, shape) = (info.name.clone(), info.shape.clone());
            let Some(dtype) = precision.get(&name) else {
                return (TensorPlan { name, dtype: info.dtype, shape }, bytes.to_vec());
            };
            let cols = *shape.last().unwrap();
            let mut out = Vec::new();
            for row in bytes.chunks_exact(info.dtype.row_bytes(cols).unwrap()) {
                let mut numbers = vec![0.0; cols];
                info.dtype.dequantise_row(Isa::scalar(), row, &mut numbers).unwrap();
                let mut encoded = vec![0; dtype.row_bytes(cols).unwrap()];
                dtype.quantise_row(&numbers, &mut encoded).unwrap();
                out.extend(encoded);
            }
            (TensorPlan { name, dtype, shape }, out)
        })
        .collect();
    let plans: Vec<TensorPlan> = converted.iter().map(|(plan, _)| plan.clone()).collect();
    let mut writer = gguf::Writer::create(path, &metadata, &plans).unwrap();
    for (_, bytes) in &converted {
        writer.tensor_bytes(bytes).unwrap();
    }
    writer.finish().unwrap();
}

/// A type for each place, not the same for neighbours.
fn mixed(container: &Container) -> Precision {
    let (config, plan) = describe(container).unwrap();
    let types = [Dtype::Q8_0, Dtype::Q4_1, Dtype::F16, Dtype::Q5_0, Dtype::Q4_0];
    let mut precision = Precision::default();
    for (index, site) in plan.sites().into_iter().enumerate() {
        if index % 6 != 5 {
            precision.extend(&plan.precision(&config, site, types[index % types.len()]));
        }
    }
    precision
}

fn ids() -> Vec<u32> {
    (0..60).map(|i| i * i * 7 % 300).collect()
}

#[test]
fn a_packed_file_is_that_of_a_converted_model() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["demo.gguf", "edge/edge.gguf"] {
        let container = Container::open(&data(name)).unwrap();
        let precision = mixed(&container);
        let (planned, converted) = (folder.path().join("a.oss"), folder.path().join("b.gguf"));
        pack_to_file(&container, &precision, &planned, None).unwrap();
        write_converted(&container, &precision, &converted);
        let converted = Container::open(&converted).unwrap();
        let direct = folder.path().join("b.oss");
        pack_to_file(&converted, &Precision::default(), &direct, None).unwrap();

        let (planned_file, direct_file) =
            (Container::open(&planned).unwrap(), Container::open(&direct).unwrap());
        let matrices = |container: &Container| -> Vec<Vec<u8>> {
            let packed = container.packed().unwrap();
            let sections = packed.sections().filter(|section| section.kind == "matrices");
            sections.map(|section| packed.bytes_of(section).to_vec()).collect()
        };
        let (got, expected) = (matrices(&planned_file), matrices(&direct_file));
        assert!(!got.is_empty() && got == expected, "{name}");

        assert_eq!(Precision::of(&planned_file).unwrap(), precision);
        assert!(Precision::of(&direct_file).unwrap().is_empty());
        let original = Container::open(&data(name)).unwrap();
        assert_ne!(planned_file.fingerprint(), direct_file.fingerprint());
        let logits = Runner::new(&planned, Setting::fast()).logits(&ids(), 60);
        assert!(logits == Runner::new(&direct, Setting::fast()).logits(&ids(), 60), "{name}");
        let unchanged = Runner::new(original.path(), Setting::fast()).logits(&ids(), 60);
        assert!(logits != unchanged, "{name}");
        std::fs::remove_file(planned).unwrap();
        std::fs::remove_file(direct).unwrap();
    }
}

#[test]
fn packing_places_again_gives_the_bits_of_the_packed_file_and_back_those_of_the_model() {
    let folder = tempfile::tempdir().unwrap();
    let path = data("demo.gguf");
    let container = Container::open(&path).unwrap();
    let (config, plan) = describe(&container).unwrap();
    let mut runner = Runner::new(&path, Setting::fast());
    let before = runner.logits(&ids(), 60);
    let mut together = Precision::default();
    for dtype in [Dtype::Q4_0, Dtype::Q8_0] {
        for site in plan.sites() {
            let precision = plan.precision(&config, site, dtype);
            runner.model.weights.repack((&config, &plan), site, &precision).unwrap();
            together.extend(&precision);
        }
        let packed = folder.path().join(format!("{dtype}.oss"));
        pack_to_file(&container, &together, &packed, None).unwrap();
        let mut whole = Runner::new(&packed, Setting::fast());
        let expected = whole.logits(&ids(), 60);
        assert!(runner.logits(&ids(), 60) == expected && expected != before, "{dtype}");
        let about = (&config, &plan);
        let sites = plan.sites().into_iter().map(|site| {
            let precision = plan.precision(&config, site, dtype);
            site_bytes(&container, about, site, &precision).unwrap()
        });
        // Routers are no place: they stay as they are, sixteen rows of floats here.
        let routers = config.layers.len() * 16 * config.hidden_dim * 4;
        let bytes = whole.model.weights.bytes_per_token(&config);
        assert_eq!(sites.sum::<usize>(), bytes - routers, "{dtype}");
    }
    for site in plan.sites() {
        runner.model.weights.repack((&config, &plan), site, &Precision::default()).unwrap();
    }
    assert!(runner.logits(&ids(), 60) == before);
}

#[test]
fn what_a_plan_cannot_have_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("model.oss");
    let container = Container::open(&data("demo.gguf")).unwrap();
    let error = |tensor: &str, dtype| {
        let mut precision = Precision::default();
        precision.set(tensor, dtype);
        let error = pack_to_file(&container, &precision, &out, None).unwrap_err();
        assert!(!out.exists());
        error.to_string()
    };
    let nowhere = error("blk.9.attn_q.weight", Dtype::Q8_0);
    assert!(nowhere.contains("precision of blk.9.attn_q.weight: got Q8_0"), "{nowhere}");
    let vector = error("blk.0.attn_norm.weight", Dtype::Q8_0);
    assert!(vector.contains("expected the name of a matrix"), "{vector}");
    let columns = error("blk.0.attn_q.weight", Dtype::Q4K);
    assert!(columns.contains("blk.0.attn_q.weight: a row of 160 columns"), "{columns}");
    let alone = error("blk.0.ffn_gate_exps.weight", Dtype::Q8_0);
    assert!(alone.contains("blk.0.ffn_up_exps.weight"), "{alone}");

    pack_to_file(&container, &Precision::default(), &out, None).unwrap();
    let (config, plan) = describe(&container).unwrap();
    let mut runner = Runner::new(&out, Setting::fast());
    let (site, precision) = (Site::Head, plan.precision(&config, Site::Head, Dtype::Q8_0));
    let error = runner.model.weights.repack((&config, &plan), site, &precision).unwrap_err();
    assert!(error.to_string().contains("got a packed file"), "{error}");
}
