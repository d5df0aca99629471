//! Any bytes as a packed file, with the right seals and checksums put over them: an error or a
//! reader whose every section can be read.
//!
//! `RUSTC_BOOTSTRAP=1 cargo fuzz run --fuzz-dir fuzz/weights packed -- -max_total_time=600`
#![no_main]

use libfuzzer_sys::fuzz_target;
use oss_weights::Container;
use oss_weights::packed::Reader;

#[path = "../../../crates/oss-weights/tests/support/reseal.rs"]
mod reseal;

const HEADER: usize = 128;

fuzz_target!(|bytes: &[u8]| {
    let mut file = bytes.to_vec();
    if file.len() >= HEADER {
        file[..8].copy_from_slice(b"\x89OSS\r\n\x1a\n");
        file[8..16].copy_from_slice(&[1, 0, 0, 0, 128, 0, 0, 0]);
        let length = file.len() as u64;
        file[16..24].copy_from_slice(&length.to_le_bytes());
        file[64..120].fill(0);
        reseal::reseal(&mut file);
    }
    let Ok(reader) = Reader::from_bytes("fuzz", file.clone()) else { return };
    for section in reader.sections() {
        let bytes = reader.section(&section.name).expect("listed");
        assert_eq!(bytes.len() as u64, section.length);
    }
    let _damaged_or_not = reader.verify(|_, _| ());
    if let Ok(container) = Container::from_bytes("fuzz", file, Vec::new()) {
        for tensor in container.tensors() {
            assert!(container.find(&tensor.name).is_some());
        }
        container.fingerprint();
    }
});
