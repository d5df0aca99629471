//! GGUF: round trips, split files, and every way a file can lie.

use std::path::{Path, PathBuf};

use oss_weights::{Array, Container, Dtype, Encoded, Kind, TensorPlan, Value, gguf};
use proptest::prelude::*;

/// A GGUF file made field by field, so that every field can be wrong.
#[derive(Clone)]
struct Raw(Vec<u8>);

impl Raw {
    fn new(n_tensors: u64, n_pairs: u64) -> Raw {
        Raw(b"GGUF".to_vec()).u32(3).u64(n_tensors).u64(n_pairs)
    }
    fn u32(mut self, value: u32) -> Raw {
        self.0.extend(value.to_le_bytes());
        self
    }
    fn u64(mut self, value: u64) -> Raw {
        self.0.extend(value.to_le_bytes());
        self
    }
    fn bytes(mut self, bytes: &[u8]) -> Raw {
        self.0.extend(bytes);
        self
    }
    fn string(self, text: &[u8]) -> Raw {
        self.u64(text.len() as u64).bytes(text)
    }
    /// Name, dimensions (GGUF's order), type, offset.
    fn tensor(self, name: &str, dimensions: &[u64], type_id: u32, offset: u64) -> Raw {
        let mut raw = self.string(name.as_bytes()).u32(dimensions.len() as u32);
        for &dimension in dimensions {
            raw = raw.u64(dimension);
        }
        raw.u32(type_id).u64(offset)
    }
    /// Padding to 32, then `count` bytes.
    fn data(mut self, count: usize) -> Raw {
        self.0.resize(self.0.len().next_multiple_of(32) + count, 7);
        self
    }
    fn open(self) -> Result<Container, oss_weights::Error> {
        Container::from_bytes("f.gguf", self.0, Vec::new())
    }
    fn error(self) -> String {
        self.open().unwrap_err().to_string()
    }
}

fn one_tensor(dimensions: &[u64], type_id: u32, offset: u64, data: usize) -> String {
    Raw::new(1, 0).tensor("w", dimensions, type_id, offset).data(data).error()
}

fn assert_has(error: &str, expected: &str) {
    assert!(error.contains(expected), "{error}\ninstead of\n{expected}");
}

#[test]
fn a_hand_made_file_opens() {
    let raw = Raw::new(2, 1).string(b"k").u32(4).u32(9);
    let raw = raw.tensor("a", &[4, 2], 0, 0).tensor("b", &[32], 8, 32).data(32 + 34);
    let container = raw.open().unwrap();
    assert_eq!(container.kind(), Kind::Gguf);
    assert_eq!(container.metadata().u64("k").unwrap(), Some(9));
    assert_eq!(container.tensor("a").unwrap().info.shape, [2, 4]);
    assert_eq!(container.tensor("b").unwrap().info.dtype, Dtype::Q8_0);
    assert_eq!(container.tensor("b").unwrap().data, Encoded::Plain(&[7; 34]));
}

#[test]
fn version_2_opens_and_others_are_told() {
    let with_version = |version: u32| {
        let mut raw = Raw::new(0, 0);
        raw.0[4..8].copy_from_slice(&version.to_le_bytes());
        raw
    };
    with_version(2).open().unwrap();
    let expected = "expected 2 or 3, little endian";
    assert_has(&with_version(1).error(), &format!("f.gguf: GGUF version: got 1, {expected}"));
    assert_has(&with_version(4).error(), &format!("GGUF version: got 4, {expected}"));
    let big = 3u32.swap_bytes();
    assert_has(&with_version(big).error(), &format!("version: got 3, big endian, {expected}"));
}

#[test]
fn a_truncated_file_names_the_field_or_the_tensor() {
    let raw = Raw::new(1, 1).string(b"key").u32(8).string(b"value").tensor("w", &[8], 0, 0);
    let header = raw.0.len();
    let whole = raw.data(32);
    for length in 0..whole.0.len() {
        let error = Raw(whole.0[..length].to_vec()).error();
        assert_has(&error, "f.gguf: ");
        if length > header {
            assert_has(&error, "tensor w: bytes: got 32 bytes at");
        }
    }
    let pair = Raw::new(0, 1).string(b"key").u32(8).string(b"value");
    let error = Raw(pair.0[..37].to_vec()).error();
    assert_has(&error, "metadata key at byte 35 ends early: got 2 bytes, expected 4");
}

#[test]
fn counts_beyond_the_file_are_refused_before_anything_is_reserved() {
    for count in [2, 1 << 40, u64::MAX] {
        assert_has(&Raw::new(count, 0).error(), &format!("tensor count: got {count}, expected at"));
        assert_has(&Raw::new(0, count).error(), &format!("metadata count: got {count}, expected"));
    }
    let pairs = Raw::new(0, 65_537).bytes(&vec![0; 13 * 65_537]).error();
    assert_has(&pairs, "metadata count: got 65537, expected at most 65536");
    let array = |element: u32, len: u64| {
        Raw::new(0, 1).string(b"key").u32(9).u32(element).u64(len).bytes(&[0; 24]).error()
    };
    for (element, most) in [(0, 24), (4, 6), (10, 3), (8, 3), (9, 2)] {
        for len in [most + 1, 1 << 61, u64::MAX] {
            let expected = format!("array length: got {len}, expected at most {most}");
            assert_has(&array(element, len), &expected);
        }
    }
}

#[test]
fn strings_longer_than_the_file_or_their_limit_are_refused() {
    for length in [100, 1 << 50, u64::MAX] {
        let error = Raw::new(0, 1).u64(length).bytes(&[b'k'; 20]).error();
        assert_has(&error, "metadata key 0 at byte 32 ends early: got 20 bytes, expected");
    }
    let error = Raw::new(0, 1).string(&[b'k'; 65_536]).u32(0).bytes(&[0]).error();
    assert_has(&error, "metadata key 0: got 65536 bytes, expected at most 65535 bytes");
}

#[test]
fn strings_that_are_not_utf8_are_refused_wherever_they_stand() {
    let bad = b"ab\xff";
    let error = Raw::new(0, 1).string(bad).u32(0).bytes(&[0]).error();
    assert_has(&error, "metadata key 0: got bytes ff after 2, expected a UTF-8 string");
    let error = Raw::new(0, 1).string(b"key").u32(8).string(bad).error();
    assert_has(&error, "metadata key: got bytes ff after 2");
    let error = Raw::new(0, 1).string(b"key").u32(9).u32(8).u64(2).string(b"x").string(bad).error();
    assert_has(&error, "metadata key: got bytes ff after 2");
    let raw = Raw::new(1, 0).string(bad).u32(0).u32(0).u64(0).data(4);
    assert_has(&raw.error(), "name of tensor 0: got bytes ff after 2");
}

#[test]
fn unknown_value_types_and_bools_are_refused() {
    let error = Raw::new(0, 1).string(b"key").u32(13).u64(0).error();
    assert_has(&error, "metadata key: value type: got 13, expected 0 to 12");
    let error = Raw::new(0, 1).string(b"key").u32(7).bytes(&[2, 0, 0]).error();
    assert_has(&error, "metadata key: got bool 2, expected 0 or 1");
    let error = Raw::new(0, 1).string(b"key").u32(9).u32(7).u64(3).bytes(&[0, 1, 9]).error();
    assert_has(&error, "metadata key: got bool 9, expected 0 or 1");
}

#[test]
fn a_bomb_of_nested_arrays_is_refused_and_honest_nesting_is_read() {
    let mut bomb = Raw::new(0, 1).string(b"key").u32(9);
    for _ in 0..100_000 {
        bomb = bomb.u32(9).u64(1);
    }
    let error = bomb.u32(0).u64(0).error();
    assert_has(&error, "metadata key: depth of nested arrays: got more than 8, expected at most 8");

    let inner = Array::of_numbers(&[1u16, 2]);
    let mut nested = inner.clone();
    for _ in 0..7 {
        nested = Array::of_arrays(&[nested, inner.clone()]);
    }
    let (_directory, path) = scratch();
    let metadata = [("nested".to_string(), Value::from(nested.clone()))];
    gguf::Writer::create(&path, &metadata, &[]).unwrap().finish().unwrap();
    let container = Container::open(&path).unwrap();
    assert_eq!(container.metadata().array("nested").unwrap(), Some(&nested));
    let values = nested.values().unwrap();
    assert_eq!(values[1].as_array().unwrap().integers().unwrap(), [1, 2]);
}

#[test]
fn keys_and_tensors_that_come_twice_are_refused() {
    let raw = Raw::new(0, 2).string(b"key").u32(0).bytes(&[1]).string(b"key").u32(0).bytes(&[1]);
    assert_has(&raw.error(), "metadata key: got the key a second time, expected every key once");
    let raw = Raw::new(2, 0).tensor("w", &[8], 0, 0).tensor("w", &[8], 0, 32).data(64);
    assert_has(&raw.error(), "tensor w: name: got a second one, first in f.gguf");
}

#[test]
fn offsets_that_lie_are_refused() {
    let error = one_tensor(&[8], 0, 64, 64);
    assert_has(
        &error,
        "tensor w: bytes: got 32 bytes at 64 + 64, expected an end within the file's",
    );
    assert_has(&one_tensor(&[8], 0, u64::MAX - 31, 64), "tensor w: bytes: got 32 bytes at");
    let error = one_tensor(&[8], 0, 4, 64);
    assert_has(&error, "tensor w: offset: got 4, expected a multiple of the alignment 32");
    let raw = Raw::new(2, 0).tensor("a", &[16], 0, 0).tensor("b", &[8], 0, 32).data(64);
    let error = raw.error();
    assert_has(
        &error,
        "tensor b: offset: got bytes 128..160, expected no overlap with a at 96..160",
    );
}

#[test]
fn dimensions_that_lie_are_refused() {
    let error = one_tensor(&[1, 1, 1, 1, 1], 0, 0, 64);
    assert_has(&error, "tensor w: number of dimensions: got 5, expected at most 4");
    let error = Raw::new(1, 0).string(b"w").u32(u32::MAX).u64(1).u64(1).error();
    assert_has(&error, "tensor w: number of dimensions: got 4294967295");
    let error = one_tensor(&[33, 2], 2, 0, 64);
    assert_has(
        &error,
        "innermost dimension of [2, 33]: got 33, expected a multiple of 32, the block",
    );
    let error = one_tensor(&[1 << 32, 1 << 32], 0, 0, 64);
    assert_has(
        &error,
        "tensor w: shape: got [4294967296, 4294967296], expected a product that fits",
    );
    let error = one_tensor(&[u64::MAX], 24, 0, 64);
    assert_has(&error, "tensor w: shape: got [18446744073709551615]");
    let error = one_tensor(&[1 << 40], 0, 0, 64);
    assert_has(&error, "tensor w: bytes: got 4398046511104 bytes");
}

#[test]
fn element_types_that_are_not_supported_are_named() {
    let named = [(16, "IQ2_XXS"), (31, "Q4_0_4_4"), (38, "IQ4_NL_8_8"), (40, "NVFP4")];
    for (id, name) in named {
        let error = one_tensor(&[256], id, 0, 64);
        assert_eq!(error, format!("f.gguf: tensor w: element type {id} ({name}) is not supported"));
    }
    let error = one_tensor(&[256], 77, 0, 64);
    assert_eq!(error, "f.gguf: tensor w: element type 77 is not supported");
}

#[test]
fn alignments_that_are_none_are_refused() {
    let with_alignment = |value: Value| {
        let (_directory, path) = scratch();
        let metadata = [("general.alignment".to_string(), value)];
        gguf::Writer::create(&path, &metadata, &[]).err().unwrap().to_string()
    };
    let limits = "expected a power of two from 8 to 2097152";
    for alignment in [0u32, 1, 4, 24, 33, 1 << 22, 1 << 31, u32::MAX] {
        let expected = format!("general.alignment: got {alignment}, {limits}");
        assert_has(&with_alignment(alignment.into()), &expected);
        let raw = Raw::new(1, 1).string(b"general.alignment").u32(4).u32(alignment);
        assert_has(&raw.tensor("w", &[8], 0, 0).data(32).error(), &expected);
    }
    assert_has(&with_alignment(u64::MAX.into()), "general.alignment: got 18446744073709551615");
    assert_has(&with_alignment((-32i32).into()), "general.alignment: got i32 -32, expected a non");
    assert_has(&with_alignment("32".into()), "general.alignment: got string \"32\"");
    // A sound alignment that leaves no room for the tensor.
    let raw = Raw::new(1, 1).string(b"general.alignment").u32(4).u32(1 << 21);
    let error = raw.tensor("w", &[8], 0, 0).data(32).error();
    assert_has(&error, "tensor w: bytes: got 32 bytes at 2097152 + 0");
}

fn scratch() -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("model.gguf");
    (directory, path)
}

fn plan(name: &str, dtype: Dtype, shape: &[usize]) -> TensorPlan {
    TensorPlan { name: name.to_string(), dtype, shape: shape.to_vec() }
}

/// Writes one part of a split file with one tensor.
fn write_part(directory: &Path, part: u16, keys: &[(&str, Value)], tensor: &str) {
    let path = directory.join(format!("m-{:05}-of-00003.gguf", part + 1));
    let metadata: Vec<_> = keys.iter().map(|(k, v)| (k.to_string(), v.clone())).collect();
    let plans = [plan(tensor, Dtype::I8, &[40])];
    let mut writer = gguf::Writer::create(&path, &metadata, &plans).unwrap();
    writer.tensor_bytes(&[part as u8; 40]).unwrap();
    writer.finish().unwrap();
}

fn split_keys(part: u16, count: u16, total: i32) -> Vec<(&'static str, Value)> {
    vec![
        ("split.no", part.into()),
        ("split.count", count.into()),
        ("split.tensors.count", total.into()),
    ]
}

#[test]
fn parts_of_bytes_in_memory_are_not_looked_for_in_files() {
    let directory = tempfile::tempdir().unwrap();
    for part in 0..2 {
        write_part(directory.path(), part, &split_keys(part, 3, 3), "a");
    }
    let path = directory.path().join("m-00001-of-00003.gguf");
    let bytes = std::fs::read(&path).unwrap();
    let container = Container::from_bytes(path.to_str().unwrap(), bytes, Vec::new());
    let expected = "-00001-of-00003.gguf: split.count: got 3, expected 1 for bytes in memory";
    assert_has(&container.unwrap_err().to_string(), expected);
}

#[test]
fn what_the_reader_refuses_is_not_written() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("new.gguf");
    let error = |key: &str, value: Value, tensors: &[TensorPlan]| {
        let metadata = [(key.to_string(), value)];
        let error = gguf::Writer::create(&path, &metadata, tensors).unwrap_err().to_string();
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0, "{error}");
        error
    };
    let long = "x".repeat(65_536);
    let expected = "got 65536 bytes, expected at most 65535 bytes";
    assert_has(&error(&long, 1u8.into(), &[]), &format!("new.gguf: metadata key 0: {expected}"));
    let tensors = [plan(&long, Dtype::F32, &[1])];
    assert_has(&error("key", 1u8.into(), &tensors), &format!("name of tensor 0: {expected}"));
    let array = Array::of_strings(["x".repeat((1 << 20) + 1)]);
    assert_has(&error("key", array.into(), &[]), "metadata key: got 1048577 bytes, expected at");
    let mut nested = Array::of_numbers(&[1u8]);
    for _ in 0..9 {
        nested = Array::of_arrays(&[nested]);
    }
    assert_has(&error("key", nested.into(), &[]), "metadata key: depth of nested arrays");
    let huge = |name: &str| plan(name, Dtype::I8, &[1 << 62]);
    let tensors = [huge("a"), huge("b")];
    assert_has(&error("key", 1u8.into(), &tensors), "tensor b: bytes: got 4611686018427387904");
}

#[test]
fn a_split_file_opens_by_any_of_its_parts() {
    let directory = tempfile::tempdir().unwrap();
    for part in 0..3 {
        let mut keys = split_keys(part, 3, 3);
        if part == 0 {
            keys.push(("general.name", "split".into()));
        }
        write_part(directory.path(), part, &keys, &format!("w{part}"));
    }
    for part in 1..=3 {
        let path = directory.path().join(format!("m-{part:05}-of-00003.gguf"));
        let container = Container::open(&path).unwrap();
        assert_eq!(container.files().count(), 3);
        assert_eq!(container.metadata().string("general.name").unwrap(), Some("split"));
        for part in 0..3u8 {
            let tensor = container.tensor(&format!("w{part}")).unwrap();
            assert_eq!(tensor.data, Encoded::Plain(&[part; 40]));
        }
    }
}

#[test]
fn parts_that_do_not_fit_together_are_refused() {
    let error_of = |keys: [Vec<(&str, Value)>; 3], names: [&str; 3]| {
        let directory = tempfile::tempdir().unwrap();
        for (part, (keys, name)) in keys.iter().zip(names).enumerate() {
            write_part(directory.path(), part as u16, keys, name);
        }
        let path = directory.path().join("m-00001-of-00003.gguf");
        Container::open(&path).unwrap_err().to_string()
    };
    let good = |part| split_keys(part, 3, 3);
    let names = ["a", "b", "c"];
    let error = error_of([good(0), good(2), good(2)], names);
    assert_has(&error, "m-00002-of-00003.gguf: split.no: got 2, expected 1");
    let error = error_of([good(0), good(1), split_keys(2, 4, 3)], names);
    assert_has(&error, "m-00003-of-00003.gguf: split.count: got 4, expected 3");
    let error = error_of([good(0), good(1), vec![]], names);
    assert_has(&error, "m-00003-of-00003.gguf: split.no: got no such key, expected 2");
    let error = error_of([split_keys(0, 3, 4), good(1), good(2)], names);
    assert_has(&error, "split.tensors.count: got 4, expected 3, the tensors of all parts");
    let error = error_of([good(0), good(1), good(2)], ["a", "b", "a"]);
    assert_has(&error, "m-00003-of-00003.gguf: tensor a: name: got a second one, first in ");
    let error = error_of([split_keys(0, 9, 3), good(1), good(2)], names);
    assert_has(&error, "expected a name that ends in -00001-of-00009.gguf");
    let huge = vec![("split.count", Value::from(u64::MAX))];
    let error = error_of([huge, good(1), good(2)], names);
    assert_has(&error, "split.count: got u64 18446744073709551615, expected an integer from 0 to");
}

#[test]
fn a_missing_part_is_named() {
    let directory = tempfile::tempdir().unwrap();
    write_part(directory.path(), 0, &split_keys(0, 3, 3), "a");
    let path = directory.path().join("m-00001-of-00003.gguf");
    assert_has(&Container::open(&path).unwrap_err().to_string(), "m-00002-of-00003.gguf");
}

#[test]
fn the_writer_refuses_wrong_bytes_and_leaves_nothing() {
    let (directory, path) = scratch();
    let plans =
        [plan("a", Dtype::F32, &[2]), plan("none", Dtype::F32, &[0]), plan("b", Dtype::F32, &[1])];
    let mut writer = gguf::Writer::create(&path, &[], &plans).unwrap();
    writer.tensor_bytes(&[1; 5]).unwrap();
    let error = writer.tensor_bytes(&[1; 4]).unwrap_err().to_string();
    assert_has(&error, "tensor a: writing after 5 of 8 bytes: got 4, expected at most 3");
    writer.tensor_bytes(&[1; 3]).unwrap();
    let error = writer.finish().unwrap_err().to_string();
    assert_has(
        &error,
        "tensor b: writing: got the end of the file after 0 bytes, expected 4 bytes",
    );
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0, "something is left");

    let mut writer = gguf::Writer::create(&path, &[], &plans).unwrap();
    writer.tensor_bytes(&[1; 8]).unwrap();
    writer.tensor_bytes(&[1; 4]).unwrap();
    let error = writer.tensor_bytes(&[1]).unwrap_err().to_string();
    assert_has(&error, "writing: got 1 bytes after the last tensor, expected finish");
    writer.finish().unwrap();
    assert_eq!(Container::open(&path).unwrap().tensors().count(), 3);

    let create = |plans: &[TensorPlan]| gguf::Writer::create(&path, &[], plans).err().unwrap();
    let error = create(&[plan("a", Dtype::Bool, &[2])]).to_string();
    assert_has(&error, "tensor a: element type: got BOOL, expected an element type that GGUF has");
    let error = create(&[plan("a", Dtype::F32, &[1; 5])]).to_string();
    assert_has(&error, "number of dimensions: got 5");
    let error = create(&[plan("a", Dtype::F32, &[1]), plan("a", Dtype::F32, &[1])]).to_string();
    assert_has(&error, "tensor a: name: got a second one");
}

fn scalar() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<u8>().prop_map(Value::from),
        any::<i8>().prop_map(Value::from),
        any::<u16>().prop_map(Value::from),
        any::<i16>().prop_map(Value::from),
        any::<u32>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (-1e30f32..1e30).prop_map(Value::from),
        (-1e300f64..1e300).prop_map(Value::from),
        any::<bool>().prop_map(Value::from),
        ".{0,20}".prop_map(Value::from),
    ]
}

fn array() -> impl Strategy<Value = Array> {
    use prop::collection::vec;
    let leaf = prop_oneof![
        vec(any::<i32>(), 0..5).prop_map(|v| Array::of_numbers(&v)),
        vec(any::<u8>(), 0..5).prop_map(|v| Array::of_numbers(&v)),
        vec(-1e9f32..1e9, 0..5).prop_map(|v| Array::of_numbers(&v)),
        vec(any::<bool>(), 0..5).prop_map(|v| Array::of_bools(&v)),
        vec(".{0,9}", 0..5).prop_map(Array::of_strings),
    ];
    leaf.prop_recursive(4, 20, 3, |inner| vec(inner, 0..3).prop_map(|v| Array::of_arrays(&v)))
}

fn dtype() -> impl Strategy<Value = Dtype> {
    let types: Vec<Dtype> = Dtype::all()
        .filter(|d| !matches!(d, Dtype::Bool | Dtype::U8 | Dtype::U16 | Dtype::U32 | Dtype::U64))
        .collect();
    prop::sample::select(types)
}

fn tensors() -> impl Strategy<Value = Vec<(Dtype, Vec<usize>)>> {
    let shape = (prop::collection::vec(0usize..4, 0..3), 0usize..3);
    let tensor = (dtype(), shape).prop_map(|(dtype, (mut shape, blocks))| {
        shape.push(blocks * dtype.block_len());
        (dtype, shape)
    });
    prop::collection::vec(tensor, 0..6)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn whatever_is_written_is_read_back(
        values in prop::collection::vec(
            prop_oneof![scalar(), array().prop_map(Value::from)], 0..8),
        tensors in tensors(),
        alignment in prop::sample::select(vec![None, Some(8u32), Some(64), Some(4096)]),
        piece in 1usize..500,
    ) {
        let (_directory, path) = scratch();
        let mut metadata: Vec<(String, Value)> =
            values.into_iter().enumerate().map(|(i, v)| (format!("key.{i}"), v)).collect();
        metadata.extend(alignment.map(|a| ("general.alignment".to_string(), a.into())));
        let plans: Vec<TensorPlan> = tensors.iter().enumerate()
            .map(|(i, (dtype, shape))| plan(&format!("t{i}"), *dtype, shape)).collect();
        let contents: Vec<Vec<u8>> = plans.iter().enumerate().map(|(i, plan)| {
            let elements: usize = plan.shape.iter().product();
            vec![i as u8 + 1; elements / plan.dtype.block_len() * plan.dtype.block_bytes()]
        }).collect();

        let mut writer = gguf::Writer::create(&path, &metadata, &plans).unwrap();
        for content in &contents {
            for piece in content.chunks(piece) {
                writer.tensor_bytes(piece).unwrap();
            }
        }
        writer.finish().unwrap();

        let container = Container::open(&path).unwrap();
        let read: Vec<(String, Value)> =
            container.metadata().iter().map(|(k, v)| (k.to_string(), v.clone())).collect();
        prop_assert_eq!(&read, &metadata);
        for value in read.iter().filter_map(|(_, value)| value.as_array()) {
            prop_assert_eq!(value.values().unwrap().len(), value.len());
        }
        prop_assert_eq!(container.tensors().count(), plans.len());
        for ((tensor, plan), content) in container.tensors().zip(&plans).zip(&contents) {
            prop_assert_eq!(&tensor.name, &plan.name);
            prop_assert_eq!((tensor.dtype, &tensor.shape), (plan.dtype, &plan.shape));
            let data = container.tensor(&plan.name).unwrap().data;
            prop_assert_eq!(data, Encoded::Plain(content));
        }
    }

    #[test]
    fn random_changes_to_a_real_file_never_panic(
        changes in prop::collection::vec((0usize..4000, any::<u8>()), 1..8),
        cut in prop::option::of(0usize..4000),
    ) {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/edge/edge.gguf");
        let mut bytes = std::fs::read(path).unwrap();
        for (at, value) in changes {
            bytes[at] = value;
        }
        bytes.truncate(cut.unwrap_or(bytes.len()));
        if let Ok(container) = Container::from_bytes("changed", bytes, Vec::new()) {
            for tensor in container.tensors() {
                prop_assert_eq!(container.find(&tensor.name).unwrap().info.bytes(), tensor.bytes());
            }
            for (key, _) in container.metadata().iter() {
                let _of_this_type_or_not = container.metadata().strings(key);
            }
            container.fingerprint();
        }
    }
}
