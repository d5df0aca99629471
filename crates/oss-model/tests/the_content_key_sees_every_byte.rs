//! Keys and values that outlive the process are found again by a model's content: all of it, in
//! whatever form it comes.

#[path = "support/runner.rs"]
mod common;

use common::data;
use oss_model::{LoadOptions, Model, Precision, pack_to_file, packed_name};
use oss_simd::Isa;
use oss_weights::{Container, Encoded};
use std::sync::Arc;

fn load(container: Container) -> Model {
    Model::load(Arc::new(container), LoadOptions::new(Isa::scalar())).unwrap()
}

fn key_of(bytes: &[u8]) -> u64 {
    load(Container::from_bytes("model", bytes.to_vec(), Vec::new()).unwrap()).content_key()
}

#[test]
fn a_bit_of_any_tensor_gives_another_key() {
    let whole: &[u8] = std::fs::read(data("demo.gguf")).unwrap().leak();
    let container = Container::from_bytes("model", whole, Vec::new()).unwrap();
    let mut keys = vec![key_of(whole)];
    for info in container.tensors() {
        let Encoded::Plain(bytes) = container.find(&info.name).unwrap().data else {
            panic!("{}: two parts", info.name);
        };
        // A byte that no sample of a large tensor holds.
        let at = bytes.as_ptr().addr() - whole.as_ptr().addr() + bytes.len() / 6;
        let mut changed = whole.to_vec();
        changed[at] ^= 1;
        let key = key_of(&changed);
        assert!(!keys.contains(&key), "{}: the key of another model", info.name);
        keys.push(key);
    }
    assert_eq!(key_of(whole), keys[0]);
    assert!(keys.len() > 50, "{} tensors", keys.len());
}

/// Where only names in the code have changed, files of keys and values that were kept before are
/// not to be lost: the configuration's are a part of the key.
#[test]
fn the_demo_models_key_is_this_one() {
    let key = key_of(&std::fs::read(data("demo.gguf")).unwrap());
    assert_eq!(
        key, 0xa07a_1072_486d_804e,
        "{key:#x}: kept keys and values are lost; the changelog has to say so"
    );
}

#[test]
fn an_embedding_of_another_type_gives_another_key() {
    let whole = std::fs::read(data("demo.gguf")).unwrap();
    let name = b"token_embd.weight";
    let found = whole.windows(name.len()).position(|bytes| bytes == name);
    // Behind the name: how many dimensions, each of them, the type.
    let dims = found.unwrap() + name.len();
    let at = dims + 4 + 8 * usize::from(whole[dims]);
    let (half, brain) = (1_u32.to_le_bytes(), 30_u32.to_le_bytes());
    let mut changed = whole.clone();
    changed[at..at + 4].copy_from_slice(if whole[at..at + 4] == half { &brain } else { &half });
    assert_ne!(key_of(&whole), key_of(&changed));
}

#[test]
fn the_key_is_that_of_the_numbers_and_not_of_their_file() {
    let directory = tempfile::tempdir().unwrap();
    for name in ["demo.gguf", "edge/edge.gguf"] {
        let path = directory.path().join("model.oss");
        let container = Container::open(&data(name)).unwrap();
        pack_to_file(&container, &Precision::default(), &path, None).unwrap();
        let (in_memory, mut packed) = (load(container), load(Container::open(&path).unwrap()));
        assert_eq!(in_memory.content_key(), packed.content_key(), "{name}");
        packed.weights.keep_experts_in_slots(3, &Default::default(), &[]).unwrap();
        assert_eq!(in_memory.content_key(), packed.content_key(), "{name}, in slots");
    }
}

#[test]
fn a_file_that_is_written_again_has_another_name_when_packed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("model.gguf");
    let bytes = std::fs::read(data("demo.gguf")).unwrap();
    std::fs::write(&path, &bytes).unwrap();
    let name = || packed_name(&Container::open(&path).unwrap()).unwrap();
    let before = name();
    assert_eq!(name(), before);
    std::thread::sleep(std::time::Duration::from_millis(50));
    std::fs::write(&path, &bytes).unwrap();
    assert_ne!(name(), before);
}
