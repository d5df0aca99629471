//! What is kept in files is found again by `NUMERICS_VERSION`: other bits need another number.

#[path = "support/runner.rs"]
mod common;

use common::{Runner, Setting, data};
use oss_kernels::Activation;
use oss_model::{NUMERICS_VERSION, Precision, describe, pack_to_file};
use oss_quant::Dtype;
use oss_quant::kv::KvFormat;
use oss_simd::Isa;
use oss_weights::Container;
use std::path::Path;
use xxhash_rust::xxh3::Xxh3;

/// Writes the demo model with 8-bit codes for all matrices, most of which are floats in its file.
fn write_codes(path: &Path) {
    let container = Container::open(&data("demo.gguf")).unwrap();
    let (config, plan) = describe(&container).unwrap();
    let mut precision = Precision::default();
    for site in plan.sites() {
        precision.extend(&plan.precision(&config, site, Dtype::Q8_0));
    }
    pack_to_file(&container, &precision, path, None).unwrap();
}

#[test]
fn the_numerics_version_stands_for_these_bits() {
    let modes = [
        (Activation::F32, KvFormat::F32),
        (Activation::Bf16, KvFormat::Bf16),
        (Activation::Int8, KvFormat::Int8),
        (Activation::Int16, KvFormat::Bf16),
    ];
    let ids: Vec<u32> = (0..150).map(|i| (i * i * 31 + i * 3 + 3) % 300).collect();
    let folder = tempfile::tempdir().unwrap();
    let codes = folder.path().join("codes.oss");
    write_codes(&codes);
    let mut hash = Xxh3::new();
    for path in [data("demo.gguf"), data("edge/edge.gguf"), codes] {
        for (activation, kv_format) in modes {
            let setting = Setting { activation, kv_format, ..Setting::exact() };
            for logit in Runner::new(&path, setting).logits(&ids, 64) {
                hash.update(&logit.to_bits().to_le_bytes());
            }
        }
    }
    for format in KvFormat::ALL {
        let numbers: Vec<f32> = (0..64).map(|i| ((i * 37 % 64) as f32 - 31.3) / 9.7).collect();
        let mut slot = vec![0; format.slot_bytes(64)];
        for position in [3, 8] {
            format.write_key(Isa::scalar(), &mut slot, position, &numbers);
            format.write_value(Isa::scalar(), &mut slot, position, &numbers);
        }
        hash.update(&slot);
    }
    let known = (11, 3_565_866_569_104_563_936);
    assert_eq!(
        (NUMERICS_VERSION, hash.digest()),
        known,
        "results have changed: raise NUMERICS_VERSION and write both numbers here"
    );
}
