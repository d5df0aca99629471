//! Precision plans: within their limit by a measure of the test's own, and worth having.

use std::sync::Arc;

use oss_engine::quantise::{Plan, Quantise, WINDOW};
use oss_engine::{Dtype, Engine, Error, Isa, KvFormat, Request, Team};
use oss_model::{
    Batch, LoadOptions, Model, Precision, Row, Site, State, describe, forward, head, pack_to_file,
};
use oss_weights::Container;

use crate::support::{engine, options};

fn demo() -> Arc<Container> {
    Arc::new(Container::from_bytes("demo.gguf", oss_demo::GGUF, Vec::new()).unwrap())
}

/// Stories of the demo model.
fn texts() -> Vec<Vec<u32>> {
    let story = |seed| {
        let request = Request::text("Once upon a time").seed(seed).max_tokens(WINDOW);
        let answer = engine().generate(request).unwrap();
        let written = answer.tokens.iter().map(|token| token.id);
        answer.prompt_token_ids.iter().copied().chain(written).collect()
    };
    (1..=6).map(story).collect()
}

fn plan(max_loss: f64, threads: usize) -> Plan {
    let quantise = Quantise { max_loss, threads: Some(threads), ..Quantise::default() };
    quantise.plan(demo(), &texts(), &mut |_| ()).unwrap()
}

/// The probabilities of all tokens at all positions.
fn probabilities(container: Arc<Container>, window: &[u32]) -> Vec<Vec<f64>> {
    let (isa, kv_format) = (Isa::detect().unwrap(), KvFormat::F32);
    let load = LoadOptions { kv_format, ..LoadOptions::new(isa) };
    let model = Model::load(container, load).unwrap();
    let team = Team::new(1).unwrap();
    let mut state = State::new(&model, window.len(), 1).unwrap();
    let mut cache = oss_cache::KvCache::new(model.cache_shape(), 64 << 20).unwrap();
    let sequence = cache.create();
    let row = |(position, &token)| Row { sequence, position, token, wanted: true, draft: false };
    let rows: Vec<Row> = window.iter().enumerate().map(row).collect();
    let layers = 0..model.config.layers.len();
    forward(&model, &team, &mut state, &mut cache, Batch { rows: &rows }, layers).unwrap();
    let logits = head(&model, &team, &mut state, 0..rows.len());
    let softmax = |logits: &[f32]| -> Vec<f64> {
        let exponentials: Vec<f64> = logits.iter().map(|x| f64::from(*x).exp()).collect();
        let sum: f64 = exponentials.iter().sum();
        exponentials.iter().map(|x| x / sum).collect()
    };
    logits.chunks_exact(model.config.vocabulary).map(softmax).collect()
}

/// The mean divergence of the demo model packed by a plan, over every second window from `first`
/// on.
fn divergence(precision: &Precision, first: usize) -> f64 {
    let folder = tempfile::tempdir().unwrap();
    let packed = folder.path().join("small.oss");
    pack_to_file(&demo(), precision, &packed, None).unwrap();
    let texts = texts();
    let windows = texts.iter().flat_map(|text| text.chunks(WINDOW)).skip(first).step_by(2);
    let (mut sum, mut positions) = (0.0, 0);
    for window in windows {
        let said = probabilities(demo(), window);
        let now = probabilities(Arc::new(Container::open(&packed).unwrap()), window);
        let at = |(p, q): (&Vec<f64>, &Vec<f64>)| -> f64 {
            p.iter().zip(q).map(|(p, q)| p * (p / q).ln()).sum()
        };
        sum += said.iter().zip(&now).map(at).sum::<f64>();
        positions += window.len();
    }
    sum / positions as f64
}

/// The measure takes all but 64 tokens together: it may miss a little.
fn assert_close(loss: f64, divergence: f64) {
    let expected = divergence.exp_m1();
    assert!((0.8 * expected..=1.01 * expected).contains(&loss), "{loss} and {expected}");
}

#[test]
fn a_plan_keeps_to_its_limit_and_its_loss_is_the_divergence() {
    let plan = plan(0.01, 1);
    assert!(plan.loss <= 0.01 && 0.0 < plan.loss, "{plan:?}");
    // Dense matrices of the demo model are bf16: codes of 8 bits alone take half of them.
    assert!(10 * plan.bytes_after < 8 * plan.bytes_before, "{plan:?}");
    assert!(plan.same_token > 0.9, "{plan:?}");

    assert_close(plan.loss, divergence(&plan.precision, 1));

    let folder = tempfile::tempdir().unwrap();
    let packed = folder.path().join("small.oss");
    pack_to_file(&demo(), &plan.precision, &packed, None).unwrap();
    let story = |engine: &Engine| {
        let request = Request::text("Once upon a time").max_tokens(24).greedy();
        engine.generate(request).unwrap().text
    };
    let small = Engine::load_with(&packed, options()).unwrap();
    assert!(story(&small).starts_with(", there was a little"), "{}", story(&small));
}

#[test]
fn more_loss_saves_more_bytes_and_none_saves_none() {
    let plans = [0.0, 0.0003, 0.01].map(|limit| (limit, plan(limit, 1)));
    let [(_, none), ..] = &plans;
    assert_eq!((none.precision.clone(), none.loss), (Precision::default(), 0.0));
    assert_eq!((none.bytes_after, none.same_token), (none.bytes_before, 1.0));
    for pair in plans.windows(2) {
        let [(_, less), (limit, more)] = pair else { panic!("a window of two") };
        assert!(more.bytes_after < less.bytes_after, "{less:?} {more:?}");
        assert!(more.loss <= *limit, "{more:?}");
        assert!(!more.changed.is_empty() && more.changed.len() <= more.precision.iter().count());
    }
}

#[test]
fn every_place_is_tried_in_every_type_that_is_smaller_and_threads_change_nothing() {
    let mut trials = Vec::new();
    let quantise = Quantise {
        types: vec![Dtype::Q8_0, Dtype::Q6K, Dtype::F32],
        threads: Some(2),
        ..Quantise::default()
    };
    let two = quantise.plan(demo(), &texts(), &mut |trial| trials.push(trial)).unwrap();
    let one = Quantise { threads: Some(1), ..quantise }.plan(demo(), &texts(), &mut |_| ());
    assert_eq!(one.unwrap(), two);
    // Floats are no smaller, experts have 4 bits already, and only attention's output has columns
    // for whole blocks of 256.
    let of = 3 * engine().config().layers.len() + 1;
    assert_eq!(trials.len(), of, "{trials:?}");
    for (index, trial) in trials.iter().enumerate() {
        assert_eq!((trial.done, trial.of), (index + 1, of));
        assert!(trial.loss >= 0.0 && trial.loss < 0.01 && trial.bytes > 0, "{trial:?}");
        let is_output = matches!(trial.site, Site::Output(_));
        assert!(trial.dtype == Dtype::Q8_0 || trial.dtype == Dtype::Q6K && is_output, "{trial:?}");
    }
    assert_eq!(trials[of - 1].site, Site::Head);
}

#[test]
fn the_loss_of_a_trial_is_that_of_the_place_alone() {
    let mut trials = Vec::new();
    let quantise = Quantise { types: vec![Dtype::Q4_0], threads: Some(1), ..Quantise::default() };
    quantise.plan(demo(), &texts(), &mut |trial| trials.push(trial)).unwrap();
    let (config, plan) = describe(&demo()).unwrap();
    for site in [Site::Qkv(0), Site::Output(2), Site::Head] {
        let trial = trials.iter().find(|trial| trial.site == site).unwrap();
        assert_close(trial.loss, divergence(&plan.precision(&config, site, trial.dtype), 0));
    }
}

#[test]
fn what_cannot_be_planned_is_refused() {
    let error = |quantise: Quantise, texts: &[Vec<u32>]| {
        quantise.plan(demo(), texts, &mut |_| ()).unwrap_err().to_string()
    };
    let (default, texts) = (Quantise::default, texts());
    let limit = error(Quantise { max_loss: f64::NAN, ..default() }, &texts);
    assert!(limit.starts_with("option max_loss: got NaN"), "{limit}");
    let types = error(Quantise { types: vec![Dtype::I32], ..default() }, &texts);
    assert!(types.starts_with("option types: got I32"), "{types}");
    let short = error(default(), &texts[..0]);
    assert!(short.starts_with("option texts: got 0 tokens"), "{short}");
    let token = error(default(), &[vec![1, 2], vec![3, 1 << 30]]);
    assert!(token.contains("1073741824"), "{token}");

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.oss");
    pack_to_file(&demo(), &Precision::default(), &path, None).unwrap();
    let packed = Arc::new(Container::open(&path).unwrap());
    let error = default().plan(packed, &texts, &mut |_| ()).unwrap_err();
    assert!(matches!(error, Error::Unsupported { .. }), "{error}");
}

#[test]
fn windows_of_text_may_be_longer_than_those_of_attention() {
    let text = texts().concat();
    let texts = [text[..WINDOW].to_vec(), text[WINDOW..2 * WINDOW].to_vec()];
    let windows: Vec<_> = engine().config().layers.iter().filter_map(|l| l.window).collect();
    assert!(windows.iter().any(|window| window + 64 < WINDOW), "{windows:?}");
    let types = vec![Dtype::Q8_0];
    let quantise = Quantise { types, threads: Some(1), ..Quantise::default() };
    quantise.plan(demo(), &texts, &mut |_| ()).unwrap();
}
