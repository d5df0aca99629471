//! safetensors: round trips against the format's own crate, shards, MXFP4 pairs, and every way a
//! file can lie.

use std::path::{Path, PathBuf};

use oss_weights::{Container, Dtype, Encoded, Error, Kind, TensorPlan, safetensors};
use proptest::prelude::*;

/// A file of this header and so many bytes.
fn file(header: &str, data: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.extend((0..data).map(|i| i as u8));
    bytes
}

fn open(header: &str, data: usize) -> Result<Container, Error> {
    Container::from_bytes("f.safetensors", file(header, data), Vec::new())
}

fn assert_refused(header: &str, data: usize, expected: &str) {
    let error = open(header, data).unwrap_err().to_string();
    assert!(error.starts_with("f.safetensors: "), "{error}");
    assert!(error.contains(expected), "{error}\ninstead of\n{expected}");
}

fn tensor(name: &str, dtype: &str, shape: &str, start: u64, end: u64) -> String {
    let offsets = format!("[{start},{end}]");
    format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}"#)
}

fn scratch() -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("model.safetensors");
    (directory, path)
}

fn plan(name: &str, dtype: Dtype, shape: &[usize]) -> TensorPlan {
    TensorPlan { name: name.to_string(), dtype, shape: shape.to_vec() }
}

/// Writes a file of byte tensors, each filled with one value.
fn write(path: &Path, tensors: &[(&str, &[usize], u8)]) {
    let plans: Vec<_> = tensors.iter().map(|(n, shape, _)| plan(n, Dtype::U8, shape)).collect();
    let notes = [("format".to_string(), "pt".to_string())];
    let mut writer = safetensors::Writer::create(path, &notes, &plans).unwrap();
    for (_, shape, value) in tensors {
        writer.tensor_bytes(&vec![*value; shape.iter().product()]).unwrap();
    }
    writer.finish().unwrap();
}

#[test]
fn a_hand_made_file_opens() {
    let header = format!(
        r#"{{"__metadata__":{{"format":"pt"}},{},{}}}"#,
        tensor("b", "BF16", "[2,2]", 4, 12),
        tensor("a", "F32", "[]", 0, 4)
    );
    let container = open(&header, 12).unwrap();
    assert_eq!(container.kind(), Kind::Safetensors);
    assert_eq!(container.tensor("a").unwrap().data, Encoded::Plain(&[0, 1, 2, 3]));
    assert_eq!(container.tensor("b").unwrap().info.shape, [2, 2]);
    assert!(container.find("__metadata__").is_none());
}

/// The list is refused as it grows too long: its sixty million numbers would take 512 MB of memory.
#[test]
fn a_shape_of_more_dimensions_than_are_told_is_refused() {
    let shape = |n: usize| format!("[{}]", vec!["0"; n].join(","));
    open(&format!("{{{}}}", tensor("a", "F32", &shape(16), 0, 0)), 0).unwrap();
    let expected = "tensor a: more than 16 dimensions";
    assert_refused(&format!("{{{}}}", tensor("a", "F32", &shape(17), 0, 0)), 0, expected);
    let endless = format!("{{{}", tensor("a", "F32", &shape(17), 0, 0)).replace("]", ",no number");
    assert_refused(&endless, 0, expected);
}

const POINTER: &str = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 12\n";

#[test]
fn a_file_that_git_lfs_has_not_fetched_is_told() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let expected =
        "got a Git LFS pointer (run `git lfs pull`), expected the file that it points to";
    for name in ["model.safetensors", "model.gguf", "model.oss", "shard.safetensors"] {
        std::fs::write(path(name), POINTER).unwrap();
        let error = Container::open(&path(name)).unwrap_err();
        assert!(matches!(error, Error::NotAModel { .. }), "{error:?}");
        assert_eq!(error.to_string(), format!("{}: not a model: {expected}", path(name).display()));
    }
    std::fs::remove_file(path("model.safetensors")).unwrap();
    let index = r#"{"weight_map":{"a":"shard.safetensors"}}"#;
    std::fs::write(path("model.safetensors.index.json"), index).unwrap();
    let error = Container::open(directory.path()).unwrap_err().to_string();
    assert!(error.contains("shard.safetensors: not a model: got a Git LFS pointer"), "{error}");
    let bytes = Container::from_bytes("m.gguf", POINTER.as_bytes(), Vec::new());
    let error = bytes.unwrap_err().to_string();
    assert_eq!(error, format!("m.gguf: not a model: {expected}"));
}

#[test]
fn a_header_longer_than_the_file_or_the_limit_is_refused() {
    let open = |length: u64| {
        let mut bytes = length.to_le_bytes().to_vec();
        bytes.extend(b"{}        ");
        let container = Container::from_bytes("f.safetensors", bytes, Vec::new());
        container.unwrap_err().to_string()
    };
    let error = open(11);
    assert!(error.contains("header at byte 8 ends early: got 10 bytes, expected 11"), "{error}");
    for length in [100_000_001, u64::MAX] {
        let expected = format!("header length: got {length}, expected at most 100000000");
        assert!(open(length).contains(&expected), "{}", open(length));
    }
    let short = Container::from_bytes("f.safetensors", vec![1, 2, 3], Vec::new()).unwrap_err();
    assert!(short.to_string().contains("header length at byte 0 ends early: got 3 bytes"));
}

#[test]
fn headers_that_are_no_such_json_are_refused() {
    assert_refused("[]", 0, "header: got invalid type: sequence, expected an object");
    assert_refused("{", 0, "header: got EOF while parsing");
    assert_refused(r#"{"a":1}"#, 0, "header: got tensor a: invalid type: integer `1`");
    assert_refused(r#"{"a":{"dtype":"U8","shape":[]}}"#, 0, "a: missing field `data_offsets`");
    let negative = tensor("a", "U8", "[-1]", 0, 1);
    assert_refused(&format!("{{{negative}}}"), 1, "a: invalid value: integer `-1`");
    let bomb = format!(r#"{{"__metadata__":{}"#, "[".repeat(100_000));
    assert_refused(&bomb, 0, "header: got EOF while parsing a list");
    let bomb = format!(r#"{{"a":{{"dtype":"U8","shape":{}"#, "[".repeat(100_000));
    assert_refused(&bomb, 0, "header: got tensor a: invalid type: sequence");
    let mut bytes = file(r#"{"abcd":1}"#, 0);
    bytes[12] = 0xff;
    let error = Container::from_bytes("f.safetensors", bytes, Vec::new()).unwrap_err();
    assert!(error.to_string().contains("header: got other bytes after 4, expected UTF-8"));
}

#[test]
fn a_tensor_that_comes_twice_is_refused() {
    let twice = tensor("w", "U8", "[4]", 0, 4);
    assert_refused(&format!("{{{twice},{twice}}}"), 4, "header: got tensor w comes twice");
}

#[test]
fn offsets_that_lie_are_refused() {
    let one = |start, end, data| {
        let header = format!("{{{}}}", tensor("w", "U8", "[4]", start, end));
        open(&header, data).unwrap_err().to_string()
    };
    let within = "expected a range within the 4 bytes after the header";
    for (start, end) in [(1, 5), (4, 0), (u64::MAX, 3), (u64::MAX - 3, u64::MAX)] {
        let expected = format!("tensor w: data_offsets: got {start}..{end}, {within}");
        assert!(one(start, end, 4).contains(&expected), "{}", one(start, end, 4));
    }
    let error = one(0, 3, 4);
    assert!(error.contains("tensor w: bytes of 0..3: got 3, expected 4 for U8 [4]"), "{error}");
    let overlap = [tensor("a", "U8", "[4]", 0, 4), tensor("b", "U8", "[4]", 2, 6)].join(",");
    let header = format!("{{{overlap}}}");
    assert_refused(&header, 6, "tensor b: offset: got bytes ");
    assert_refused(&header, 6, "expected no overlap with a at ");
}

#[test]
fn bytes_of_no_tensor_are_refused() {
    let header = format!("{{{}}}", tensor("w", "U8", "[4]", 0, 4));
    assert_refused(&header, 5, "bytes after the header: got 5, expected the 4 of all tensors");
    let hole = [tensor("a", "U8", "[2]", 0, 2), tensor("b", "U8", "[2]", 4, 6)].join(",");
    assert_refused(&format!("{{{hole}}}"), 6, "bytes after the header: got 6, expected the 4");
}

#[test]
fn every_truncation_is_refused() {
    let (_directory, path) = scratch();
    write(&path, &[("a", &[3, 5], 1), ("b", &[7], 2)]);
    let bytes = std::fs::read(&path).unwrap();
    for length in 0..bytes.len() {
        let cut = bytes[..length].to_vec();
        let error = Container::from_bytes("f.safetensors", cut, Vec::new()).unwrap_err();
        assert!(error.to_string().starts_with("f.safetensors: "), "{error}");
    }
}

#[test]
fn shapes_that_overflow_are_refused() {
    for shape in ["[4294967296,4294967296]", "[18446744073709551615,2]", "[0,9223372036854775807]"]
    {
        let header = format!("{{{}}}", tensor("w", "F32", shape, 0, 0));
        assert_refused(&header, 0, "tensor w: shape: got [");
    }
    let too_big = format!("{{{}}}", tensor("w", "F32", "[18446744073709551616]", 0, 0));
    assert_refused(&too_big, 0, "header: got tensor w: invalid type: floating point");
}

#[test]
fn element_types_that_are_not_supported_are_named() {
    for dtype in ["F8_E4M3", "C64", "bf16", "Q4_0", "\\u001b[2J"] {
        let header = format!("{{{}}}", tensor("w", dtype, "[1]", 0, 1));
        let error = open(&header, 1).unwrap_err();
        assert!(matches!(error, Error::UnsupportedType { .. }), "{error}");
        assert!(!error.to_string().contains('\u{1b}'));
    }
    let header = format!("{{{}}}", tensor("w", "F8_E5M2", "[1]", 0, 1));
    assert_refused(&header, 1, "tensor w: element type F8_E5M2 is not supported");
}

#[test]
fn a_pair_of_other_shapes_is_refused_and_a_half_alone_stays() {
    let pair = |blocks: &[usize], scales: &[usize]| {
        let (_directory, path) = scratch();
        write(&path, &[("x_blocks", blocks, 1), ("x_scales", scales, 2)]);
        Container::open(&path)
    };
    let container = pair(&[2, 3, 4, 16], &[2, 3, 4]).unwrap();
    let tensor = container.tensor("x").unwrap();
    assert_eq!((tensor.info.dtype, &tensor.info.shape), (Dtype::Mxfp4, &vec![2, 3, 128]));
    let expected = Encoded::Split { codes: &[1; 2 * 3 * 4 * 16], scales: &[2; 24] };
    assert_eq!(tensor.data, expected);

    for (blocks, scales) in [(&[2, 3, 16][..], &[2, 4][..]), (&[2, 3, 8], &[2, 3]), (&[16], &[])] {
        let error = pair(blocks, scales).unwrap_err().to_string();
        let got = format!("tensor x_blocks: shape: got {blocks:?} beside scales {scales:?}");
        assert!(error.contains(&got), "{error}");
    }
    let (_directory, path) = scratch();
    write(&path, &[("x_blocks", &[2, 16], 1), ("y_scales", &[2], 2)]);
    let container = Container::open(&path).unwrap();
    assert_eq!(container.tensor("x_blocks").unwrap().info.dtype, Dtype::U8);
    assert_eq!(container.tensor("y_scales").unwrap().info.dtype, Dtype::U8);
}

#[test]
fn a_pair_whose_name_is_taken_is_refused() {
    let (_directory, path) = scratch();
    write(&path, &[("x_blocks", &[2, 16], 1), ("x_scales", &[2], 2), ("x", &[2], 3)]);
    let error = Container::open(&path).unwrap_err().to_string();
    assert!(error.contains("tensor x: name: got a second one"), "{error}");
}

fn shards(index: &str) -> (tempfile::TempDir, Result<Container, Error>) {
    let directory = tempfile::tempdir().unwrap();
    write(&directory.path().join("one.safetensors"), &[("a", &[3], 1), ("x_blocks", &[2, 16], 4)]);
    write(&directory.path().join("two.safetensors"), &[("b", &[3], 2), ("x_scales", &[2], 5)]);
    let path = directory.path().join("model.safetensors.index.json");
    std::fs::write(path, index).unwrap();
    std::fs::write(directory.path().join("config.json"), "{}").unwrap();
    let container = Container::open(directory.path());
    (directory, container)
}

#[test]
fn shards_open_as_one_with_pairs_across_them() {
    let index = r#"{"metadata":{"total_size":40},"weight_map":{"a":"one.safetensors",
        "x_blocks":"one.safetensors","x_scales":"two.safetensors","b":"two.safetensors"}}"#;
    let (directory, container) = shards(index);
    let container = container.unwrap();
    let names: Vec<&str> = container.tensors().map(|t| t.name.as_str()).collect();
    assert_eq!(names, ["a", "x", "b"]);
    let expected = Encoded::Split { codes: &[4; 32], scales: &[5; 2] };
    assert_eq!(container.tensor("x").unwrap().data, expected);
    assert_eq!(container.files().count(), 2);
    assert_eq!(container.side_file("config.json").unwrap(), Some(b"{}".to_vec()));
    let by_index = directory.path().join("model.safetensors.index.json");
    let by_index = Container::open(&by_index).unwrap();
    assert_eq!(by_index.fingerprint(), container.fingerprint());
    assert_eq!(by_index.side_file("config.json").unwrap(), Some(b"{}".to_vec()));
}

#[test]
fn an_index_that_lies_is_refused() {
    let refused = |index: &str, expected: &str| {
        let error = shards(index).1.unwrap_err().to_string();
        assert!(error.contains("model.safetensors.index.json: "), "{error}");
        assert!(error.contains(expected), "{error}\ninstead of\n{expected}");
    };
    refused(
        r#"{"weight_map":{"a":"one.safetensors","c":"two.safetensors"}}"#,
        "tensor c: shard: got no such tensor in any shard, expected two.safetensors, as the index",
    );
    refused(
        r#"{"weight_map":{"a":"two.safetensors","b":"one.safetensors"}}"#,
        "safetensors, as the index says",
    );
    for shard in ["../one.safetensors", "/etc/passwd", "a/../one.safetensors", "..", "", "./a"] {
        let index = format!(r#"{{"weight_map":{{"a":"{shard}"}}}}"#);
        refused(&index, "expected the name of a file beside the index");
    }
    refused(r#"{"weight_map":{}}"#, "weight_map: got no shards, expected at least one");
    refused(r#"{"weight_map":{"a":1}}"#, "index: got tensor a: invalid type: integer");
    let twice = r#"{"weight_map":{"a":"one.safetensors","a":"two.safetensors"}}"#;
    refused(twice, "index: got tensor a comes twice");
    refused("{}", "missing field `weight_map`");
}

#[test]
fn a_missing_shard_is_named() {
    let error = shards(r#"{"weight_map":{"a":"gone.safetensors"}}"#).1.unwrap_err().to_string();
    assert!(error.contains("gone.safetensors"), "{error}");
}

#[test]
fn a_tensor_in_two_shards_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    for shard in ["one.safetensors", "two.safetensors"] {
        write(&directory.path().join(shard), &[("a", &[3], 1), (shard, &[1], 1)]);
    }
    let index = r#"{"weight_map":{"one.safetensors":"one.safetensors",
        "two.safetensors":"two.safetensors"}}"#;
    std::fs::write(directory.path().join("model.safetensors.index.json"), index).unwrap();
    let error = Container::open(directory.path()).unwrap_err().to_string();
    assert!(error.contains("two.safetensors: tensor a: name: got a second one"), "{error}");
}

#[test]
fn the_writer_refuses_what_the_format_cannot_hold() {
    let (directory, path) = scratch();
    let create = |plans: &[TensorPlan]| {
        safetensors::Writer::create(&path, &[], plans).err().unwrap().to_string()
    };
    for dtype in [Dtype::Mxfp4, Dtype::Q4_0] {
        let error = create(&[plan("w", dtype, &[32])]);
        assert!(error.contains("expected ones that safetensors can hold"), "{error}");
    }
    let error = create(&[plan("__metadata__", Dtype::U8, &[1])]);
    assert!(error.contains("expected ones that safetensors can hold"), "{error}");
    let mut writer =
        safetensors::Writer::create(&path, &[], &[plan("w", Dtype::F32, &[2])]).unwrap();
    writer.tensor_bytes(&[0; 4]).unwrap();
    let error = writer.finish().unwrap_err().to_string();
    assert!(error.contains("tensor w: writing: got the end of the file after 4 bytes"), "{error}");
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0, "something is left");
}

#[test]
#[should_panic(expected = "expected a file name")]
fn a_side_file_is_never_outside_the_folder() {
    let container = open("{}", 0).unwrap();
    let _never = container.side_file("../secret");
}

const TYPES: [Dtype; 13] = [
    Dtype::Bool,
    Dtype::U8,
    Dtype::I8,
    Dtype::U16,
    Dtype::I16,
    Dtype::F16,
    Dtype::Bf16,
    Dtype::U32,
    Dtype::I32,
    Dtype::F32,
    Dtype::U64,
    Dtype::I64,
    Dtype::F64,
];

fn tensors() -> impl Strategy<Value = Vec<(Dtype, Vec<usize>)>> {
    let shape = prop::collection::vec(0usize..5, 0..4);
    prop::collection::vec((prop::sample::select(TYPES.to_vec()), shape), 0..6)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn what_is_written_is_read_back_here_and_by_the_reference(
        tensors in tensors(),
        piece in 1usize..300,
    ) {
        let (_directory, path) = scratch();
        let plans: Vec<TensorPlan> = tensors.iter().enumerate()
            .map(|(i, (dtype, shape))| plan(&format!("t.{i}\n\"ü"), *dtype, shape)).collect();
        let contents: Vec<Vec<u8>> = plans.iter().enumerate().map(|(i, plan)| {
            vec![i as u8; plan.shape.iter().product::<usize>() * plan.dtype.block_bytes()]
        }).collect();
        let notes = [("format".to_string(), "pt".to_string())];
        let mut writer = safetensors::Writer::create(&path, &notes, &plans).unwrap();
        for piece in contents.iter().flat_map(|content| content.chunks(piece)) {
            writer.tensor_bytes(piece).unwrap();
        }
        writer.finish().unwrap();

        let container = Container::open(&path).unwrap();
        prop_assert_eq!(container.tensors().count(), plans.len());
        let bytes = std::fs::read(&path).unwrap();
        let reference = ::safetensors::SafeTensors::deserialize(&bytes).unwrap();
        prop_assert_eq!(reference.len(), plans.len());
        for (plan, content) in plans.iter().zip(&contents) {
            let ours = container.tensor(&plan.name).unwrap();
            prop_assert_eq!((ours.info.dtype, &ours.info.shape), (plan.dtype, &plan.shape));
            prop_assert_eq!(ours.data, Encoded::Plain(content));
            let theirs = reference.tensor(&plan.name).unwrap();
            prop_assert_eq!(theirs.shape(), &plan.shape);
            prop_assert_eq!(theirs.data(), content);
            prop_assert_eq!(theirs.dtype().to_string(), plan.dtype.name());
        }
    }

    #[test]
    fn what_the_reference_writes_is_read(tensors in tensors()) {
        let named = tensors.iter().enumerate();
        let contents: Vec<(String, Vec<u8>)> = named.map(|(i, (dtype, shape))| {
            let bytes = shape.iter().product::<usize>() * dtype.block_bytes();
            (format!("t{i}"), vec![i as u8; bytes])
        }).collect();
        let views = contents.iter().zip(&tensors).map(|((name, bytes), (dtype, shape))| {
            let quoted = format!("\"{}\"", dtype.name());
            let dtype: ::safetensors::Dtype = serde_json::from_str(&quoted).unwrap();
            let view = ::safetensors::tensor::TensorView::new(dtype, shape.clone(), bytes).unwrap();
            (name.clone(), view)
        });
        let bytes = ::safetensors::serialize(views, None).unwrap();
        let container = Container::from_bytes("theirs", bytes, Vec::new()).unwrap();
        for ((name, content), (dtype, shape)) in contents.iter().zip(&tensors) {
            let tensor = container.tensor(name).unwrap();
            prop_assert_eq!((tensor.info.dtype, &tensor.info.shape), (*dtype, shape));
            prop_assert_eq!(tensor.data, Encoded::Plain(content));
        }
    }

    #[test]
    fn random_changes_to_a_real_file_never_panic(
        changes in prop::collection::vec((0usize..4272, any::<u8>()), 1..8),
        cut in prop::option::of(0usize..4272),
    ) {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/edge/model.safetensors");
        let mut bytes = std::fs::read(path).unwrap();
        for (at, value) in changes {
            bytes[at] = value;
        }
        bytes.truncate(cut.unwrap_or(bytes.len()));
        if let Ok(container) = Container::from_bytes("x.safetensors", bytes, Vec::new()) {
            for tensor in container.tensors() {
                prop_assert_eq!(container.find(&tensor.name).unwrap().info.bytes(), tensor.bytes());
            }
            container.fingerprint();
        }
    }
}
