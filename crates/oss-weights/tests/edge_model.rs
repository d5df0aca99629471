//! The edge model in both formats: the same tensors, the same metadata.

use std::path::{Path, PathBuf};

use oss_weights::{Container, Dtype, Encoded, Error, Kind};

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/edge").join(name)
}

fn plain<'a>(container: &'a Container, name: &str) -> &'a [u8] {
    match container.tensor(name).unwrap().data {
        Encoded::Plain(bytes) => bytes,
        Encoded::Split { .. } => panic!("{name} is split"),
    }
}

#[test]
fn the_gguf_file_opens_with_its_metadata_and_tensors() {
    let container = Container::open(&data("edge.gguf")).unwrap();
    assert_eq!(container.kind(), Kind::Gguf);
    let metadata = container.metadata();
    assert_eq!(metadata.len(), 24);
    assert_eq!(metadata.string("general.architecture").unwrap(), Some("gpt-oss"));
    assert_eq!(metadata.u64("gpt-oss.attention.sliding_window").unwrap(), Some(16));
    assert_eq!(metadata.f64("gpt-oss.rope.scaling.factor").unwrap(), Some(32.0));
    assert_eq!(container.tensors().count(), 41);
    let up = container.tensor("blk.1.ffn_up_exps.weight").unwrap().info;
    assert_eq!((up.dtype, up.shape.as_slice()), (Dtype::Mxfp4, &[5, 64, 96][..]));
    assert_eq!(up.bytes(), 5 * 64 * 3 * 17);
    assert_eq!(container.file_bytes(), 630_624);
    assert_eq!(container.side_file("config.json").unwrap(), None, "GGUF has no side files");
}

#[test]
fn the_safetensors_file_opens_with_blocks_and_scales_as_one_tensor() {
    let container = Container::open(&data("model.safetensors")).unwrap();
    assert_eq!(container.kind(), Kind::Safetensors);
    assert!(container.metadata().is_empty());
    let name = "model.layers.0.mlp.experts.gate_up_proj";
    let tensor = container.tensor(name).unwrap();
    assert_eq!(
        (tensor.info.dtype, tensor.info.shape.as_slice()),
        (Dtype::Mxfp4, &[5, 128, 96][..])
    );
    let Encoded::Split { codes, scales } = tensor.data else { panic!("not split") };
    assert_eq!((codes.len(), scales.len()), (5 * 128 * 3 * 16, 5 * 128 * 3));
    assert_eq!(tensor.info.bytes(), codes.len() + scales.len());
    for half in ["_blocks", "_scales"] {
        assert!(container.find(&format!("{name}{half}")).is_none(), "{half} is still there");
    }
    let config = container.side_file("config.json").unwrap().unwrap();
    assert!(config.starts_with(b"{"));
    assert_eq!(container.side_file("tokenizer.json").unwrap(), None);
}

#[test]
fn a_directory_opens_as_the_file_in_it() {
    let directory = Container::open(&data("")).unwrap();
    let file = Container::open(&data("model.safetensors")).unwrap();
    let names = |c: &Container| c.tensors().map(|t| t.name.clone()).collect::<Vec<_>>();
    assert_eq!(names(&directory), names(&file));
    assert_eq!(directory.fingerprint(), file.fingerprint());
    let gguf = Container::open(&data("edge.gguf")).unwrap();
    assert_ne!(directory.fingerprint(), gguf.fingerprint());
}

#[test]
fn both_formats_hold_the_same_bytes() {
    let gguf = Container::open(&data("edge.gguf")).unwrap();
    let safetensors = Container::open(&data("model.safetensors")).unwrap();
    let pairs = [
        ("token_embd.weight", "model.embed_tokens.weight"),
        ("output.weight", "lm_head.weight"),
        ("blk.0.attn_q.weight", "model.layers.0.self_attn.q_proj.weight"),
        ("blk.1.attn_output.weight", "model.layers.1.self_attn.o_proj.weight"),
    ];
    for (in_gguf, in_safetensors) in pairs {
        assert!(plain(&gguf, in_gguf) == plain(&safetensors, in_safetensors), "{in_gguf}");
    }
    // One block: scale and codes are the same, the order of the nibbles is each format's own.
    let down = "blk.0.ffn_down_exps.weight";
    let split = safetensors.tensor("model.layers.0.mlp.experts.down_proj").unwrap();
    let Encoded::Split { codes, scales } = split.data else { panic!("not split") };
    let element = |bytes: &[u8], at: usize| bytes[at / 2] >> (4 * (at % 2)) & 15;
    for (block, bytes) in plain(&gguf, down).chunks(17).enumerate() {
        assert_eq!(bytes[0], scales[block]);
        for at in 0..16 {
            assert_eq!(bytes[1 + at] & 15, element(&codes[16 * block..], at));
            assert_eq!(bytes[1 + at] >> 4, element(&codes[16 * block..], at + 16));
        }
    }
}

#[test]
fn a_missing_tensor_is_named_with_its_file() {
    let container = Container::open(&data("edge.gguf")).unwrap();
    let error = container.tensor("blk.9.attn_q.weight").unwrap_err();
    assert!(matches!(error, Error::MissingTensor { count: 41, .. }));
    let text = error.to_string();
    assert!(text.ends_with("edge.gguf: no tensor blk.9.attn_q.weight among 41"), "{text}");
}

#[test]
fn released_tensors_are_read_again_from_the_file() {
    let container = Container::open(&data("edge.gguf")).unwrap();
    let before = plain(&container, "token_embd.weight").to_vec();
    container.release("token_embd.weight");
    container.release("no such tensor");
    assert!(plain(&container, "token_embd.weight") == before);
}

#[test]
fn a_model_in_memory_opens_with_its_side_files() {
    let bytes = std::fs::read(data("model.safetensors")).unwrap();
    let side = vec![("config.json".to_string(), b"{}".to_vec())];
    let container = Container::from_bytes("built in", bytes, side).unwrap();
    assert_eq!(container.side_file("config.json").unwrap(), Some(b"{}".to_vec()));
    let error = container.tensor("x").unwrap_err().to_string();
    assert!(error.starts_with("built in: no tensor x"), "{error}");
}

#[test]
fn other_files_are_told_what_they_are() {
    let error = Container::open(&data("config.json")).unwrap_err().to_string();
    let expected = "config.json: not a model: got a file that starts with 7b 0a 20 20";
    assert!(error.contains(expected), "{error}");
    let empty = tempfile::tempdir().unwrap();
    let error = Container::open(empty.path()).unwrap_err().to_string();
    assert!(
        error.ends_with("expected model.safetensors or model.safetensors.index.json"),
        "{error}"
    );
    let error = Container::open(&empty.path().join("absent.gguf")).unwrap_err().to_string();
    assert!(error.contains("absent.gguf"), "{error}");
}
