use oss_weights::{Container, Encoded};

use super::*;

#[test]
fn every_family_and_format_opens_with_the_shape_it_was_asked_for() {
    let directory = tempfile::tempdir().expect("a directory");
    for (shape, format, embedding) in [
        ("tiny", Format::Gguf, "token_embd.weight"),
        ("tiny", Format::Safetensors, "model.embed_tokens.weight"),
        ("tiny-llama", Format::Gguf, "token_embd.weight"),
        ("tiny-llama", Format::Safetensors, "model.embed_tokens.weight"),
    ] {
        let output = directory.path().join(format!("{shape}-{format:?}.gguf"));
        let bytes = write(&Options::new(shape, format, output.clone())).expect("written");
        let container = Container::open(&output).expect("opens");
        assert_eq!(container.tensors().map(|t| t.bytes() as u64).sum::<u64>(), bytes);
        let expected = Shape::named(shape).expect("a shape");
        let found = container.tensor(embedding).expect("an embedding");
        assert_eq!(found.info.shape, [expected.vocabulary, expected.hidden]);
        if format == Format::Gguf {
            let tokens = container.metadata().strings("tokenizer.ggml.tokens").expect("strings");
            let mut tokens = tokens.expect("tokens");
            assert_eq!(tokens.len(), expected.vocabulary);
            tokens.sort_unstable();
            tokens.dedup();
            assert_eq!(tokens.len(), expected.vocabulary, "tokens are unique");
        }
    }
}

#[test]
fn the_tensors_are_those_of_the_demo_model() {
    let directory = tempfile::tempdir().expect("a directory");
    let demo_directory = directory.path().join("demo");
    fs::create_dir(&demo_directory).expect("a directory");
    for (name, bytes) in oss_demo::files() {
        fs::write(demo_directory.join(name), bytes).expect("a file");
    }
    let demo_gguf = directory.path().join("demo.gguf");
    fs::write(&demo_gguf, oss_demo::GGUF).expect("a file");
    for (format, demo) in [(Format::Gguf, demo_gguf), (Format::Safetensors, demo_directory)] {
        let output = directory.path().join(format!("{format:?}.gguf"));
        let mut options = Options::new("tiny", format, output.clone());
        options.layers = Some(4);
        write(&options).expect("written");
        let names = |path: &Path| -> Vec<(String, usize)> {
            let container = Container::open(path).expect("opens");
            let mut names: Vec<_> =
                container.tensors().map(|t| (t.name.clone(), t.shape.len())).collect();
            names.sort();
            names
        };
        assert_eq!(names(&output), names(&demo));
        if format == Format::Gguf {
            let keys = |path: &Path| -> Vec<String> {
                let container = Container::open(path).expect("opens");
                let mut keys: Vec<_> =
                    container.metadata().iter().map(|(key, _)| key.to_owned()).collect();
                keys.sort();
                keys
            };
            assert_eq!(keys(&output), keys(&demo));
        }
    }
}

#[test]
fn a_seed_fixes_every_byte_and_another_seed_changes_them() {
    let directory = tempfile::tempdir().expect("a directory");
    let write_with = |name: &str, seed: u64| {
        let output = directory.path().join(name);
        let mut options = Options::new("tiny", Format::Gguf, output.clone());
        options.seed = seed;
        write(&options).expect("written");
        fs::read(output).expect("bytes")
    };
    let first = write_with("a.gguf", 5);
    assert!(first == write_with("b.gguf", 5), "the same seed gives the same file");
    assert!(first != write_with("c.gguf", 6), "another seed gives another file");
}

#[test]
fn zipf_routing_biases_the_router_by_rank() {
    let directory = tempfile::tempdir().expect("a directory");
    let output = directory.path().join("zipf.gguf");
    let mut options = Options::new("tiny", Format::Gguf, output.clone());
    options.routing = Routing::Zipf;
    write(&options).expect("written");
    let container = Container::open(&output).expect("opens");
    let Encoded::Plain(bytes) = container.tensor("blk.1.ffn_gate_inp.bias").expect("a bias").data
    else {
        panic!("a vector is plain");
    };
    let mut biases: Vec<f32> =
        bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().expect("four"))).collect();
    biases.sort_by(f32::total_cmp);
    assert_eq!(biases, [4f32, 3.0, 2.0, 1.0].map(|rank| -rank.ln()));
}

#[test]
fn a_type_that_rows_do_not_fit_names_the_tensor() {
    let mut options = Options::new("tiny", Format::Gguf, PathBuf::from("unused"));
    options.dense = Some(Dtype::Q4K);
    let error = write(&options).expect_err("rows of 64 are no blocks of 256").to_string();
    assert!(error.contains("token_embd.weight") && error.contains("64"), "{error}");
}

#[test]
fn what_interrupted_processes_have_left_of_a_file_goes_first() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name);
    // No process has the first number; the second one is this test's.
    let stale = path(".model.gguf.4294967295-0.part");
    let others = [
        path(&format!(".model.gguf.{}-9.part", std::process::id())),
        path(".another.gguf.4294967295-0.part"),
        path(".model.gguf.part"),
    ];
    for file in [&stale].into_iter().chain(&others) {
        fs::write(file, "left").expect("a file");
    }
    write(&Options::new("tiny", Format::Gguf, path("model.gguf"))).expect("written");
    assert!(path("model.gguf").exists() && !stale.exists());
    assert!(others.iter().all(|file| file.exists()));
}

/// Kept files of the same name would be taken for what is written now.
#[test]
fn the_bytes_of_a_file_are_those_of_its_generator() {
    let directory = tempfile::tempdir().expect("a directory");
    let output = directory.path().join("model.gguf");
    let mut options = Options::new("tiny", Format::Gguf, output.clone());
    options.routing = Routing::Zipf;
    write(&options).expect("written");
    let got = crate::fetch::sha256(&output).expect("a file");
    assert!(got.starts_with("a5949f9089609c5f"), "{got}: raise GENERATOR of synth.rs");
}
