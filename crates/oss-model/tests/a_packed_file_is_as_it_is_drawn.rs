//! Where rows lie in a packed file, as `docs/formats/oss.md` draws it.

#[path = "support/runner.rs"]
mod common;

use common::data;
use oss_model::{Precision, pack_to_file};
use oss_quant::Packing;
use oss_simd::Isa;
use oss_weights::packed::Reader;
use oss_weights::{Container, Encoded};

const LAYERS: usize = 4;
const EXPERTS: usize = 8;
const HIDDEN: usize = 160;
const INNER: usize = 160;

/// What is left of a section.
struct Rest<'a> {
    source: &'a Container,
    bytes: &'a [u8],
}

impl Rest<'_> {
    /// The next matrix has these rows of these tensors, in this order, and no others.
    fn holds(&mut self, rows: impl IntoIterator<Item = (String, usize)>) {
        let rows: Vec<_> = rows.into_iter().collect();
        let first = self.source.tensor(&rows[0].0).unwrap().info;
        let cols = *first.shape.last().unwrap();
        let packing = Packing::for_dtype(first.dtype, rows.len(), cols).unwrap();
        let (matrix, rest) = self.bytes.split_at(packing.bytes());
        self.bytes = rest;
        let (mut got, mut expected) = (vec![0.0; cols], vec![0.0; cols]);
        for (index, (name, row)) in rows.iter().enumerate() {
            let Encoded::Plain(bytes) = self.source.tensor(name).unwrap().data else {
                panic!("GGUF has no planes apart")
            };
            let row_bytes = first.dtype.row_bytes(cols).unwrap();
            let bytes = &bytes[row * row_bytes..][..row_bytes];
            first.dtype.dequantise_row(Isa::scalar(), bytes, &mut expected).unwrap();
            packing.unpack_row(Isa::scalar(), matrix, index, &mut got);
            assert_eq!(got, expected, "row {index}, expected row {row} of {name}");
        }
    }
}

/// All rows of a tensor.
fn all(name: String, rows: usize) -> impl Iterator<Item = (String, usize)> {
    (0..rows).map(move |row| (name.clone(), row))
}

#[test]
fn a_model_is_not_packed_over_itself() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("demo.gguf");
    std::fs::copy(data("demo.gguf"), &path).unwrap();
    let source = Container::open(&path).unwrap();
    let same = directory.path().join(".").join("demo.gguf");
    let error = pack_to_file(&source, &Precision::default(), &same, None).unwrap_err();
    assert!(error.to_string().contains("writing over the model"), "{error}");
    assert_eq!(std::fs::read(&path).unwrap(), std::fs::read(data("demo.gguf")).unwrap());
    assert_eq!(directory.path().read_dir().unwrap().count(), 1);
}

#[test]
fn every_row_lies_where_the_format_says() {
    let source = Container::open(&data("demo.gguf")).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("demo.oss");
    pack_to_file(&source, &Precision::default(), &path, None).unwrap();
    let packed = Reader::open(&path).unwrap();
    let section = |name: &str| Rest { source: &source, bytes: packed.section(name).unwrap() };

    let mut dense = section("dense");
    for layer in 0..LAYERS {
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        let keys = all(name("attn_k"), 128).chain(all(name("attn_v"), 128));
        dense.holds(all(name("attn_q"), 256).chain(keys));
        dense.holds(all(name("attn_output"), HIDDEN));
        dense.holds(all(name("ffn_gate_inp"), EXPERTS));
    }
    dense.holds(all("output.weight".to_owned(), 2048));
    assert!(dense.bytes.is_empty());

    for layer in 0..LAYERS {
        let mut rest = section(&format!("experts.{layer}"));
        for expert in 0..EXPERTS {
            let name = |part: &str| format!("blk.{layer}.ffn_{part}_exps.weight");
            let pairs = (0..INNER / 16).flat_map(|pair| {
                let rows = move |name: String| {
                    (0..16).map(move |row| (name.clone(), expert * INNER + 16 * pair + row))
                };
                rows(name("gate")).chain(rows(name("up")))
            });
            rest.holds(pairs);
            rest.holds((0..HIDDEN).map(|row| (name("down"), expert * HIDDEN + row)));
        }
        assert!(rest.bytes.is_empty());
    }
}
