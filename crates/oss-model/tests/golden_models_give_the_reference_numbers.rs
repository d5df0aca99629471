//! The demo and edge models against references of an independent implementation
//! (docs/demo-model/MODEL_CARD.md), and their two file formats against each other.

#[path = "support/runner.rs"]
mod common;

use common::{Runner, Setting, data, ids, json, tensor};
use oss_model::Event;
use oss_testing::{assert_close, kl_divergence, twins};
use oss_weights::Container;
use std::sync::{Arc, Mutex};

/// Logits go up to 32; two single-precision implementations differ by up to 4e-4 (model card).
const F32_LOGITS: f64 = 2e-3;
/// The residual stream grows to some hundreds.
const F32_RESIDUAL: f64 = 2e-3;
/// Where the reference's best token leads by more, ours must be the same.
const F32_MARGIN: f64 = 0.02;
const INT8_MARGIN: f64 = 0.25;
/// Mean divergence in nats of logits computed with 8-bit activations and bf16 keys and values.
const INT8_DIVERGENCE: f64 = 1e-3;

const PROMPTS: [&str; 6] = ["short", "chat", "tool", "window", "long", "unicode"];

fn argmax(logits: &[f32]) -> u32 {
    let mut best = 0;
    for (i, logit) in logits.iter().enumerate() {
        if *logit > logits[best] {
            best = i;
        }
    }
    best as u32
}

/// Prompt and greedy continuation, run in one pass: the logits of all positions.
fn teacher_forced(runner: &mut Runner, golden: &serde_json::Value) -> (usize, Vec<f32>) {
    let mut all = ids(&golden["token_ids"]);
    let prompt = all.len();
    let greedy = ids(&golden["greedy_token_ids"]);
    all.extend_from_slice(&greedy[..greedy.len() - 1]);
    (prompt, runner.logits(&all, 256))
}

fn assert_greedy(golden: &serde_json::Value, logits: &[f32], prompt: usize, margin: f64) {
    let vocabulary = 2048;
    let greedy = ids(&golden["greedy_token_ids"]);
    let margins = golden["greedy_margin"].as_array().unwrap();
    let mut compared = 0;
    for (i, (want, lead)) in greedy.iter().zip(margins).enumerate() {
        if lead.as_f64().unwrap() > margin {
            let at = (prompt - 1 + i) * vocabulary;
            assert_eq!(argmax(&logits[at..at + vocabulary]), *want, "token {i}");
            compared += 1;
        }
    }
    assert!(compared * 2 > greedy.len(), "only {compared} of {} compared", greedy.len());
}

#[test]
fn the_demo_model_in_single_precision_gives_the_reference_logits() {
    let mut runner = Runner::new(&data("demo.gguf"), Setting::exact());
    for name in PROMPTS {
        let golden = json(&format!("golden/{name}.json"));
        let file = Container::open(&data(&format!("golden/{name}.safetensors"))).unwrap();
        let (prompt, logits) = teacher_forced(&mut runner, &golden);
        let want = tensor(&file, "logits");
        for (position, want) in ids(&golden["logit_positions"]).iter().zip(want.chunks(2048)) {
            let got = &logits[*position as usize * 2048..][..2048];
            assert_close(got, want, F32_LOGITS, 0.0);
        }
        assert_greedy(&golden, &logits, prompt, F32_MARGIN);
    }
}

#[test]
fn the_residual_stream_and_the_router_follow_the_reference_layer_by_layer() {
    let mut runner = Runner::new(&data("demo.gguf"), Setting::exact());
    let golden = json("golden/short.json");
    let file = Container::open(&data("golden/short.safetensors")).unwrap();
    let want = tensor(&file, "residual_last_position");
    let seen = Arc::new(Mutex::new((Vec::<Vec<f32>>::new(), Vec::<Vec<u32>>::new())));
    let probe = Arc::clone(&seen);
    runner.state.set_probe(Some(Box::new(move |event| {
        let mut seen = probe.lock().unwrap();
        match event {
            Event::Residual { rows, .. } => seen.0.push(rows[rows.len() - 160..].to_vec()),
            Event::Routing { experts, .. } => seen.1.push(experts.to_vec()),
            _ => {}
        }
    })));
    runner.logits(&ids(&golden["token_ids"]), 256);
    let seen = seen.lock().unwrap();
    assert_eq!(seen.0.len(), 5, "before each of four layers and after the last");
    for (got, want) in seen.0.iter().zip(want.chunks(160)) {
        assert_close(got, want, F32_RESIDUAL, 1e-5);
    }
    for (got, want) in seen.1.iter().zip(golden["router"].as_array().unwrap()) {
        let want: Vec<u32> = want["experts"].as_array().unwrap().iter().flat_map(ids).collect();
        assert_eq!(*got, want);
    }
}

#[test]
fn eight_bit_activations_stay_within_a_thousandth_of_a_nat() {
    let mut exact = Runner::new(&data("demo.gguf"), Setting::exact());
    let mut fast = Runner::new(&data("demo.gguf"), Setting::fast());
    let (mut sum, mut n) = (0.0, 0);
    for name in PROMPTS {
        let golden = json(&format!("golden/{name}.json"));
        let (prompt, logits) = teacher_forced(&mut fast, &golden);
        assert_greedy(&golden, &logits, prompt, INT8_MARGIN);
        let (_, want) = teacher_forced(&mut exact, &golden);
        for (got, want) in logits.chunks(2048).zip(want.chunks(2048)) {
            sum += kl_divergence(got, want);
            n += 1;
        }
    }
    let mean = sum / f64::from(n);
    assert!(mean < INT8_DIVERGENCE, "mean divergence {mean} over {n} positions");
}

#[test]
fn the_edge_model_gives_the_reference_logits() {
    let mut runner = Runner::new(&data("edge/edge.gguf"), Setting::exact());
    let file = Container::open(&data("edge/reference.safetensors")).unwrap();
    for (k, sequence) in
        json("edge/reference.json")["sequences"].as_array().unwrap().iter().enumerate()
    {
        let logits = runner.logits(&ids(&sequence["token_ids"]), 256);
        let want = tensor(&file, &format!("logits_{k}"));
        assert_close(&logits, &want, F32_LOGITS, 1e-4);
        let best: Vec<u32> = logits.chunks(300).map(argmax).collect();
        assert_eq!(best, ids(&sequence["argmax"]));
    }
}

#[test]
fn held_out_documents_have_the_reference_likelihood() {
    let mut runner = Runner::new(&data("demo.gguf"), Setting::exact());
    for document in json("golden/perplexity.json")["sample"].as_array().unwrap().iter().take(6) {
        let ids = ids(&document["token_ids"]);
        let logits = runner.logits(&ids, 256);
        let nats: f64 = logits
            .chunks(2048)
            .zip(&ids[1..])
            .map(|(logits, next)| {
                let all = twins::log_sum_exp(&twins::widen(logits));
                all - f64::from(logits[*next as usize])
            })
            .sum();
        assert_close(&[nats], &[document["nats"].as_f64().unwrap()], 1e-3, 1e-4);
    }
}

#[test]
fn safetensors_and_gguf_of_the_same_weights_give_the_same_bits() {
    for (gguf, folder) in [("demo.gguf", "."), ("edge/edge.gguf", "edge")] {
        for setting in [Setting::exact(), Setting::fast()] {
            let sample: Vec<u32> = (0..100).map(|i| i * 37 % 300).collect();
            let a = Runner::new(&data(gguf), setting).logits(&sample, 100);
            let b = Runner::new(&data(folder), setting).logits(&sample, 100);
            assert!(a.iter().zip(&b).all(|(a, b)| a.to_bits() == b.to_bits()), "{gguf}");
        }
    }
}

#[test]
fn a_packed_file_of_either_format_gives_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    for (n, source) in ["demo.gguf", ".", "edge/edge.gguf", "edge"].into_iter().enumerate() {
        let path = folder.path().join(format!("{n}.oss"));
        let container = Container::open(&data(source)).unwrap();
        oss_model::pack_to_file(&container, &oss_model::Precision::default(), &path, None).unwrap();
        let sample: Vec<u32> = (0..60).map(|i| i * 41 % 300).collect();
        let want = Runner::new(&data(source), Setting::fast()).logits(&sample, 60);
        let mut packed = Runner::new(&path, Setting::fast());
        // As it is mapped, with some sections in huge pages, and with all.
        // (A section is asked for up to three times.)
        for asked in [0, 3, usize::MAX] {
            let mut left = asked;
            packed
                .model
                .weights
                .promote(|_| {
                    left.checked_sub(1).is_some_and(|n| {
                        left = n;
                        true
                    })
                })
                .unwrap();
            let got = packed.logits(&sample, 60);
            let same = got.iter().zip(&want).all(|(a, b)| a.to_bits() == b.to_bits());
            assert!(same, "{source}, promoted as long as asked {asked} times");
        }
        Container::open(&path).unwrap().packed().unwrap().verify(|_, _| ()).unwrap();
    }
}

#[test]
fn experts_that_a_file_does_not_have_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    for file in std::fs::read_dir(data(".")).unwrap() {
        let file = file.unwrap().path();
        if file.is_file() && file.extension().is_some_and(|e| e == "json" || e == "safetensors") {
            std::fs::copy(&file, folder.path().join(file.file_name().unwrap())).unwrap();
        }
    }
    let path = folder.path().join("config.json");
    let mut config: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    config["num_local_experts"] = 1_000_000_000.into();
    std::fs::write(&path, config.to_string()).unwrap();
    let container = Container::open(folder.path()).unwrap();
    let error = oss_model::describe(&container).unwrap_err().to_string();
    assert!(error.contains("num_local_experts") && error.contains("1000000000"), "{error}");
}
