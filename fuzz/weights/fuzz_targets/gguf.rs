//! Any bytes as a GGUF file: an error or a container whose every part can be read.
//!
//! `RUSTC_BOOTSTRAP=1 cargo fuzz run --fuzz-dir fuzz/weights gguf -- -max_total_time=600`
#![no_main]

use libfuzzer_sys::fuzz_target;
use oss_weights::{Array, Container, Encoded, Value};

/// Decodes an array and the arrays in it; what was checked at open decodes.
fn decode(array: &Array) {
    for value in array.values().expect("checked when the file was opened") {
        if let Value::Array(inner) = &value {
            decode(inner);
        }
    }
}

fuzz_target!(|bytes: &[u8]| {
    let mut file = b"GGUF".to_vec();
    file.extend(bytes);
    let Ok(container) = Container::from_bytes("fuzz", file, Vec::new()) else { return };
    for tensor in container.tensors() {
        let data = container.tensor(&tensor.name).expect("listed").data;
        assert!(matches!(data, Encoded::Plain(bytes) if bytes.len() == tensor.bytes()));
        assert!(tensor.elements() as u128 <= 1 << 64);
    }
    for (key, value) in container.metadata().iter() {
        assert!(container.metadata().get(key).is_some());
        if let Some(array) = value.as_array() {
            decode(array);
        }
    }
    container.fingerprint();
});
