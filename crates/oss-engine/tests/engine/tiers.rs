//! Keys and values that leave memory, and what the next engine finds of them.

use std::fs::File;
use std::path::Path;
use std::time::{Duration, SystemTime};

use oss_engine::{
    Activation, ColdTier, Completion, Engine, EngineOptions, Error, EvictionPolicy, KvFormat,
    Metrics, Request, SparseAttention, Token,
};

use crate::support::{
    engine, engine_with, eventually, options, page_bytes, prompts, story, tokens, within,
};

/// Room for about two prompts of this file.
const TIGHT: usize = 400 << 10;

fn reusing() -> EngineOptions {
    EngineOptions { prefix_caching: true, repeat_bytes: 0, ..options() }
}

fn cold(directory: &Path) -> EngineOptions {
    let directory = directory.to_path_buf();
    EngineOptions { cold: Some(ColdTier { directory, bytes: 64 << 20 }), ..reusing() }
}

/// Long prompts that have nothing in common.
fn long() -> Vec<String> {
    let texts = prompts(24);
    (0..6).map(|i| format!("Number {i}. {} {i}", texts[18 + i])).collect()
}

/// A request whose answer tells the logits.
fn asking(prompt: &str) -> Request {
    Request { logprobs: Some(4), ..story(prompt, 12) }
}

fn ask(engine: &Engine, prompt: &str) -> Completion {
    engine.generate(asking(prompt)).unwrap()
}

fn plain(prompt: &str) -> Vec<Token> {
    ask(engine(), prompt).tokens
}

/// Asks everything twice, holds it against the plain engine, and returns how many prompt tokens the
/// second round did not compute.
fn two_rounds(engine: &Engine) -> usize {
    let mut cached = 0;
    for round in 0..2 {
        for prompt in long() {
            let answer = ask(engine, &prompt);
            assert_eq!(answer.tokens, plain(&prompt), "round {round}: {prompt}");
            cached += round * answer.usage.cached_tokens;
        }
    }
    cached
}

/// The numbers once the engine has nothing to do.
fn settled(engine: &Engine) -> Metrics {
    eventually("the engine is idle", || engine.metrics().running == 0);
    let metrics = engine.metrics();
    let tiers = &metrics.tiers;
    let found = tiers.hot_found + tiers.warm_found + tiers.cold_found;
    assert!(found <= tiers.asked_pages, "{found} pages found of {}", tiers.asked_pages);
    metrics
}

/// The only file in a folder.
fn file_in(directory: &Path) -> std::path::PathBuf {
    let files: Vec<_> = std::fs::read_dir(directory).unwrap().map(|e| e.unwrap().path()).collect();
    assert_eq!(files.len(), 1, "{files:?}");
    files[0].clone()
}

#[test]
fn tokens_are_the_same_cold_and_from_resident_pages() {
    let engine = engine_with(reusing());
    let cached = two_rounds(&engine);
    let metrics = settled(&engine);
    assert!(cached > 300, "{cached}");
    assert!(metrics.tiers.hot_rate() > 0.3 && metrics.tiers.warm_rate() == 0.0, "{metrics:?}");
}

#[test]
fn tokens_are_the_same_from_compressed_pages() {
    let options = EngineOptions { warm_bytes: 16 << 20, cache_bytes: Some(TIGHT), ..reusing() };
    let engine = engine_with(options);
    let cached = two_rounds(&engine);
    let metrics = settled(&engine);
    assert!(cached > 100, "{cached}");
    assert!(metrics.tiers.warm_rate() > 0.05 && metrics.memory.warm > 0, "{metrics:?}");
    let counts = metrics.tiers.counts;
    assert_eq!(counts.restored_bytes, counts.warm_hits * page_bytes() as u64);
    assert!(counts.compressed_bytes >= counts.restored_bytes, "{counts:?}");
    assert_eq!(metrics.tiers.cold_pages, 0);
}

#[test]
fn a_request_that_lost_its_pages_is_counted_once() {
    let asked = |cache_bytes| {
        let (cache_bytes, prefill_chunk) = (Some(cache_bytes), Some(8));
        let engine = engine_with(EngineOptions { cache_bytes, prefill_chunk, ..options() });
        let texts = prompts(12);
        let request = |text| Request { prompt_logprobs: Some(1), ..story(text, 60) };
        let streams: Vec<_> =
            texts.iter().map(|text| engine.submit(request(text)).unwrap()).collect();
        for stream in streams {
            stream.collect_all().unwrap();
        }
        let metrics = settled(&engine);
        (metrics.tiers.asked_pages, metrics.preempted)
    };
    let ((plain, none), (tight, preempted)) = (asked(32 << 20), asked(700 << 10));
    assert!(none == 0 && preempted > 0, "{none}, {preempted}");
    assert_eq!(tight, plain);
}

#[test]
fn a_policy_of_choice_decides_what_goes_first() {
    for (eviction, expected) in [(EvictionPolicy::Lru, 0), (EvictionPolicy::Lfu, 699)] {
        // Three such prompts take 132 pages of the layers with full attention alone.
        let engine = engine_with(EngineOptions {
            eviction,
            cache_bytes: Some(140 * page_bytes()),
            max_batched_tokens: Some(64),
            ..reusing()
        });
        let ask = |kind| {
            let request = Request::tokens(tokens(kind)).max_tokens(1).greedy();
            engine.generate(request).unwrap().usage.cached_tokens
        };
        // The first one comes often, the others later.
        assert_eq!([0, 0, 0, 1, 2].map(ask), [0, 699, 699, 0, 0]);
        assert_eq!(ask(0), expected, "{eviction}");
    }
}

#[test]
fn tokens_are_the_same_from_the_file() {
    let directory = tempfile::tempdir().unwrap();
    let options = EngineOptions { cache_bytes: Some(TIGHT), ..cold(directory.path()) };
    let engine = engine_with(options);
    let cached = two_rounds(&engine);
    let metrics = settled(&engine);
    assert!(cached > 300, "{cached}");
    assert!(metrics.tiers.cold_rate() > 0.2 && metrics.tiers.cold_pages > 0, "{metrics:?}");
    let tiers = metrics.tiers;
    assert!(tiers.counts.prefetched_pages > 0, "{tiers:?}");
    assert!(tiers.cold_found > 0 && tiers.cold_found <= tiers.counts.cold_hits, "{tiers:?}");
}

#[test]
fn sessions_that_fill_the_cache_make_room_for_what_comes_back_from_the_file() {
    let directory = tempfile::tempdir().unwrap();
    // A session keeps 54 pages of its prompt, and needs some more while that is computed: no two
    // have room together, and what one leaves is too little for another's pages to come back to.
    let engine = engine_with(EngineOptions {
        cache_bytes: Some(100 * page_bytes()),
        max_batched_tokens: Some(64),
        eviction: EvictionPolicy::Lru,
        ..cold(directory.path())
    });
    let mut sessions: Vec<_> = (0..3).map(|_| engine.session()).collect();
    for round in 0..2 {
        for (kind, session) in sessions.iter_mut().enumerate() {
            let request = || Request::tokens(tokens(kind)).max_tokens(1).greedy();
            let answer = session.generate(request()).unwrap();
            let plain = crate::support::engine().generate(request()).unwrap();
            assert_eq!(answer.token_ids(), plain.token_ids());
            let cached = answer.usage.cached_tokens;
            assert_eq!(cached > 0, round > 0, "round {round}, session {kind}: {cached} tokens");
        }
    }
}

#[test]
fn tokens_are_the_same_after_a_restart_and_prompts_are_not_computed_again() {
    let directory = tempfile::tempdir().unwrap();
    let prompts = long();
    {
        let first = engine_with(cold(directory.path()));
        prompts.iter().for_each(|prompt| assert_eq!(ask(&first, prompt).tokens, plain(prompt)));
    }
    let second = engine_with(cold(directory.path()));
    for prompt in &prompts {
        let answer = ask(&second, prompt);
        assert_eq!(answer.tokens, plain(prompt), "{prompt}");
        // The last token is computed for its logits.
        assert_eq!(answer.usage.cached_tokens, answer.usage.prompt_tokens - 1, "{prompt}");
    }
    let metrics = settled(&second);
    assert!(metrics.tiers.counts.cold.restored_slots > 30, "{metrics:?}");
    assert!(metrics.tiers.cold_rate() > 0.5, "{metrics:?}");
}

/// Longer prompts than four blocks leave positions out.
const SPARSE: SparseAttention = SparseAttention { first: 64, window: 16, blocks: 1 };

#[test]
fn with_sparse_attention_tokens_are_the_same_from_every_tier_and_after_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let sparse_attention = Some(SPARSE);
    let prompt =
        |i| format!("Number {i}. {}{i}", "And then the rain came, and Mia ran. ".repeat(30));
    let prompts: Vec<String> = (0..4).map(prompt).collect();
    let plain = engine_with(EngineOptions { sparse_attention, ..options() });
    let answers: Vec<Completion> = prompts.iter().map(|prompt| ask(&plain, prompt)).collect();
    for (prompt, answer) in prompts.iter().zip(&answers) {
        assert!(answer.usage.prompt_tokens > 300, "{}", answer.usage.prompt_tokens);
        assert_ne!(answer.tokens, ask(engine(), prompt).tokens, "what is left out is missed");
    }
    let tight = EngineOptions {
        sparse_attention,
        threads: Some(2),
        cache_bytes: Some(1 << 20),
        warm_bytes: 512 << 10,
        ..cold(directory.path())
    };
    for process in 0..2 {
        let engine = engine_with(tight.clone());
        for round in 0..2 {
            for (prompt, answer) in prompts.iter().zip(&answers) {
                let got = ask(&engine, prompt);
                assert_eq!(got.tokens, answer.tokens, "process {process}, round {round}");
            }
        }
        let metrics = settled(&engine);
        assert!(metrics.tiers.cold_rate() > 0.1 && metrics.tiers.warm_rate() > 0.0, "{metrics:?}");
    }
}

#[test]
fn another_choice_that_decides_bits_reuses_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let prompt = long().pop().unwrap();
    ask(&engine_with(cold(directory.path())), &prompt);
    let others = [
        EngineOptions { activation: Activation::F32, ..cold(directory.path()) },
        EngineOptions { kv_format: KvFormat::F16, ..cold(directory.path()) },
        EngineOptions { sparse_attention: Some(SPARSE), ..cold(directory.path()) },
    ];
    for options in others {
        let plain = EngineOptions { cold: None, prefix_caching: false, ..options.clone() };
        let answer = ask(&engine_with(options), &prompt);
        assert_eq!(answer.usage.cached_tokens, 0);
        assert_eq!(answer.tokens, ask(&engine_with(plain), &prompt).tokens);
    }
    let threads = EngineOptions { threads: Some(2), ..cold(directory.path()) };
    assert!(ask(&engine_with(threads), &prompt).usage.cached_tokens > 0, "threads decide no bits");
}

#[test]
fn another_model_reuses_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let prompt = long().pop().unwrap();
    ask(&engine_with(cold(directory.path())), &prompt);
    // One number of one norm differs, the last one of the file; or one of an expert.
    for at in [oss_demo::GGUF.len() - 2, within("blk.2.ffn_down_exps.weight")] {
        let mut changed = oss_demo::GGUF.to_vec();
        changed[at] ^= 1;
        let changed: &'static [u8] = changed.leak();
        let plain = Engine::from_bytes_with(changed, options()).unwrap();
        let other = Engine::from_bytes_with(changed, cold(directory.path())).unwrap();
        let answer = ask(&other, &prompt);
        assert_eq!(answer.usage.cached_tokens, 0);
        assert_eq!(answer.tokens, ask(&plain, &prompt).tokens);
    }
}

#[test]
fn a_folder_that_cannot_be_used_is_a_clear_error() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("a file");
    std::fs::write(&file, b"no folder").unwrap();
    let error = Engine::from_bytes_with(oss_demo::GGUF, cold(&file)).unwrap_err();
    assert!(matches!(&error, Error::Cache(_)), "{error}");
    assert!(error.to_string().contains("a file"), "{error}");
    let folder = directory.path().join("folder");
    let _first = engine_with(cold(&folder));
    let error = Engine::from_bytes_with(oss_demo::GGUF, cold(&folder)).unwrap_err();
    assert!(error.to_string().contains("another cache uses this file"), "{error}");
    let mut small = cold(&directory.path().join("small"));
    small.cold.as_mut().unwrap().bytes = 1000;
    let error = Engine::from_bytes_with(oss_demo::GGUF, small).unwrap_err();
    assert!(error.to_string().contains("1000 bytes"), "{error}");
}

#[cfg(unix)]
#[test]
fn kept_keys_and_values_are_for_their_user_alone() {
    use std::os::unix::fs::PermissionsExt;
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    let directory = tempfile::tempdir().unwrap();
    let folder = directory.path().join("kept");
    drop(engine_with(cold(&folder)));
    assert_eq!((mode(&folder), mode(&file_in(&folder))), (0o700, 0o600));
}

#[test]
fn files_that_nobody_has_used_for_long_are_removed_where_that_is_asked_for() {
    let directory = tempfile::tempdir().unwrap();
    let day = Duration::from_secs(24 * 60 * 60);
    let age = |path: &Path| {
        let file = File::options().write(true).open(path).unwrap();
        file.set_modified(SystemTime::now() - 10 * day).unwrap();
    };
    let keeping = |keep_unused: Option<Duration>| {
        drop(engine_with(EngineOptions { keep_unused, ..cold(directory.path()) }));
    };
    let others =
        || engine_with(EngineOptions { kv_format: KvFormat::F16, ..cold(directory.path()) });
    drop(others());
    let other = file_in(directory.path());
    let stranger = directory.path().join("0123456789abcdef.txt");
    std::fs::write(&stranger, "no keys and values").unwrap();
    age(&stranger);
    age(&other);
    keeping(None);
    assert!(other.exists(), "nobody has said that it may go");
    keeping(Some(20 * day));
    assert!(other.exists(), "it is not so old");
    drop(others());
    keeping(Some(5 * day));
    assert!(other.exists(), "it has just been opened");
    let user = others();
    age(&other);
    keeping(Some(5 * day));
    assert!(other.exists(), "it is in use");
    drop(user);
    age(&other);
    keeping(Some(5 * day));
    let left: Vec<_> = std::fs::read_dir(directory.path()).unwrap().collect();
    assert!(!other.exists() && stranger.exists() && left.len() == 2, "{left:?}");
}

#[test]
fn torn_and_damaged_slots_are_never_used() {
    let directory = tempfile::tempdir().unwrap();
    let prompts = long();
    for seed in 0..4 {
        {
            let engine = engine_with(cold(directory.path()));
            prompts
                .iter()
                .for_each(|prompt| assert_eq!(ask(&engine, prompt).tokens, plain(prompt)));
        }
        let path = file_in(directory.path());
        let mut bytes = std::fs::read(&path).unwrap();
        let mut seeded = oss_testing::Seeded::new(seed);
        for _ in 0..200 {
            let at = 4096 + seeded.below(bytes.len() - 4096);
            bytes[at] ^= 1 << seeded.below(8);
        }
        // As after a crash in the middle of a write: half of a slot is another slot's.
        let half = bytes.len() / 2;
        bytes.copy_within(4096..4096 + 10_000, half);
        std::fs::write(&path, bytes).unwrap();
        let engine = engine_with(cold(directory.path()));
        for prompt in &prompts {
            assert_eq!(ask(&engine, prompt).tokens, plain(prompt), "seed {seed}: {prompt}");
        }
        assert!(settled(&engine).tiers.counts.cold.bad_slots > 0);
    }
}

#[test]
fn what_was_computed_survives_a_panic_where_there_is_a_file() {
    let directory = tempfile::tempdir().unwrap();
    let prompt = long().pop().unwrap();
    let engine = engine_with(cold(directory.path()));
    ask(&engine, &prompt);
    let fault = oss_engine::Fault::Panic { at: 0 };
    engine.generate(story("One day", 4).with_fault(fault)).unwrap_err();
    let answer = ask(&engine, &prompt);
    assert_eq!(answer.tokens, plain(&prompt));
    assert_eq!(answer.usage.cached_tokens, answer.usage.prompt_tokens - 1);
}
