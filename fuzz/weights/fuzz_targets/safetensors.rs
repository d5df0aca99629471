//! Any bytes as a safetensors file: an error or a container whose every part can be read.
//!
//! `RUSTC_BOOTSTRAP=1 cargo fuzz run --fuzz-dir fuzz/weights safetensors -- -max_total_time=600`
#![no_main]

use libfuzzer_sys::fuzz_target;
use oss_weights::{Container, Encoded};

fuzz_target!(|bytes: &[u8]| {
    // The name makes it safetensors whatever its bytes are.
    let Ok(container) = Container::from_bytes("fuzz.safetensors", bytes.to_vec(), Vec::new())
    else {
        return;
    };
    for tensor in container.tensors() {
        let length = match container.tensor(&tensor.name).expect("listed").data {
            Encoded::Plain(bytes) => bytes.len(),
            Encoded::Split { codes, scales } => codes.len() + scales.len(),
        };
        assert_eq!(length, tensor.bytes());
        assert!(tensor.elements() as u128 <= 1 << 64);
    }
    container.fingerprint();
});
