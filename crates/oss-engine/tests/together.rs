//! Everything at once: whatever happens around a request, its tokens and log-probabilities are
//! those of a plain engine.
//!
//! An engine with a tight cache, all tiers and random options, now and then with less memory than
//! the model has weights, serves random requests: alone and among others, in sessions, drawn in
//! every way, some bound by grammars, cancelled or too late at random moments, with prompts that
//! share prefixes with earlier ones or go on from their answers in two ways, preempted and resumed,
//! while steps panic, are refused memory or give what is no number. Now and then it is closed and
//! another one, with other options, finds what it has left in its file; the formats of keys and
//! values take turns, and sparse attention is on for every other engine.
//!
//! `OSS_ENGINE_TOGETHER_STEPS` sets how many operations there are.

#[path = "together/expected.rs"]
mod expected;
#[path = "together/kinds.rs"]
mod kinds;
#[path = "together/life.rs"]
mod life;

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use expected::{Expected, Setting, calm};
use life::{Counts, Life};
use oss_engine::{
    ColdTier, Engine, EngineOptions, Error, EvictionPolicy, KvFormat, Speculation, Tune,
};
use oss_model::{Precision, pack_to_file};
use oss_testing::Seeded;
use oss_weights::Container;

const EDGE: &[u8] = include_bytes!("../../oss-demo/data/edge/edge.gguf");
/// Models, and the first of the settings that each is run in: few operations see all of them.
const CASES: [(&str, &[u8], usize); 2] =
    [("demo", oss_demo::GGUF, 0), ("edge", EDGE, KvFormat::ALL.len())];
/// Operations of a run without `OSS_ENGINE_TOGETHER_STEPS`.
const STEPS: usize = 800;
/// Operations before an engine is closed, on average.
const LIFE: usize = 70;

fn random_options(
    seeded: &mut Seeded,
    setting: Setting,
    directory: &Path,
    tight: usize,
) -> EngineOptions {
    let cold = ColdTier { directory: directory.to_path_buf(), bytes: 2 << 20 };
    let some = |seeded: &mut Seeded| seeded.below(3) > 0;
    EngineOptions {
        kv_format: setting.kv_format,
        sparse_attention: setting.sparse_attention,
        threads: Some(1 + seeded.below(2)),
        cache_bytes: Some(tight * (2 + seeded.below(5)) / 2),
        warm_bytes: if some(seeded) { tight } else { 0 },
        cold: some(seeded).then_some(cold),
        eviction: EvictionPolicy::ALL[seeded.below(4)],
        repeat_bytes: [0, 20_000, 1 << 20][seeded.below(3)],
        prefix_caching: some(seeded) || some(seeded),
        speculation: [Speculation::Off, Speculation::Auto, Speculation::Always(4)][seeded.below(3)],
        max_batched_tokens: Some([3, 16, 128][seeded.below(3)]),
        prefill_chunk: Some([5, 32, 128][seeded.below(3)]),
        max_sequences: Some([1, 3, 16][seeded.below(3)]),
        // Beside answers, prompts go through a layer a step, through more, through all.
        max_prompt_step: Duration::from_micros([0, 300, 100_000][seeded.below(3)]),
        stream_events: [1, 8, 256][seeded.below(3)],
        tune: Tune::Off,
        system_root: calm(),
        ..EngineOptions::default()
    }
}

/// Loads the model, or leaves most of its experts in the packed file.
fn load(
    model: &'static [u8],
    packed: &Path,
    options: EngineOptions,
    seeded: &mut Seeded,
) -> Engine {
    if seeded.below(3) > 0 {
        return Engine::from_bytes_with(model, options).unwrap();
    }
    let limited = |bytes| {
        Engine::load_with(packed, EngineOptions { max_memory: Some(bytes), ..options.clone() })
    };
    let Error::Budget { expected, .. } = limited(1).unwrap_err() else {
        panic!("a byte is enough")
    };
    // As little as there may be leaves experts of any model in the file.
    let more = seeded.below(2) * seeded.below(expected / 8);
    limited(expected + more).unwrap()
}

fn run((model, first): (&'static [u8], usize), steps: usize, seed: u64) -> Counts {
    let mut seeded = Seeded::new(seed);
    let directory = tempfile::tempdir().unwrap();
    let packed = directory.path().join("model.oss");
    let container = Container::from_bytes("model", model, Vec::new()).unwrap();
    pack_to_file(&container, &Precision::default(), &packed, None).unwrap();
    let mut plain: HashMap<usize, Expected> = HashMap::new();
    let mut counts = Counts::default();
    let mut left = steps;
    while left > 0 {
        let index = (first + counts.lives) % Setting::ALL;
        let setting = Setting::new(index);
        let expected = plain.entry(index).or_insert_with(|| Expected::new(model, setting, seed));
        let tight = expected.context_bytes();
        let options = random_options(&mut seeded, setting, directory.path(), tight);
        println!("{} of {seed}: {options:?}", counts.lives);
        let max_batched_tokens = options.max_batched_tokens.expect("it is given");
        let engine = load(model, &packed, options, &mut seeded);
        let mut life = Life::new(engine, max_batched_tokens, expected, &mut counts);
        let steps = left.min(LIFE / 2 + seeded.below(LIFE));
        (0..steps).for_each(|_| life.step(&mut seeded));
        life.close();
        left -= steps;
    }
    counts
}

#[test]
fn everything_together_gives_the_tokens_of_a_plain_engine() {
    let steps = std::env::var("OSS_ENGINE_TOGETHER_STEPS").ok();
    let begin = std::time::Instant::now();
    let steps = steps.map_or(STEPS, |steps| steps.parse().expect("a number of operations"));
    let mut seen = Vec::new();
    for (index, (name, model, first)) in CASES.into_iter().enumerate() {
        seen.push((name, run((model, first), steps / CASES.len(), 1 + index as u64)));
    }
    println!("{seen:#?} {:?}", begin.elapsed());
    for (name, counts) in &seen {
        for (what, count) in counts.always().into_iter().chain(counts.all()) {
            println!("figure: {name}, {what} = {count}");
        }
        assert_eq!(counts.operations, steps / CASES.len(), "{name}");
        assert!(counts.answers > 0 && counts.hot > 0, "{counts:?}");
        assert!(steps < STEPS || counts.lives >= KvFormat::ALL.len(), "{counts:?}");
        // Which of the others happen depends on time; in a long run all do.
        let all = counts.all().into_iter().all(|(_, count)| count > 0);
        assert!(steps < 10_000 || all, "{counts:?}");
    }
}
