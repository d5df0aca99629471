//! Memory that the system refuses: processes whose address space has a limit. Each test runs itself
//! once more, as a process of its own.
#![cfg(target_os = "linux")]

use std::path::PathBuf;

use oss_engine::{Engine, EngineOptions, Error, Request, Tune};
use oss_testing::passes;

/// Set for the second process: megabytes that it may have beyond what it has.
const WITHIN: &str = "OSS_ENGINE_REFUSED";
const MB: u64 = 1 << 20;

/// Runs the test of that name once more, which passes, and gives what it printed. All threads share
/// one heap, so that what one of them frees is there for the others: the system's allocator sets
/// 64 MiB aside for each otherwise.
#[track_caller]
fn again(test: &str, megabytes: u64) -> String {
    let mut command = oss_testing::again(test);
    command.env("MALLOC_ARENA_MAX", "1").env("MALLOC_MMAP_THRESHOLD_", "65536");
    passes(command.env(WITHIN, megabytes.to_string()))
}

/// The megabytes, in the second process.
fn within() -> Option<u64> {
    let megabytes = std::env::var(WITHIN).ok()?;
    Some(megabytes.parse().expect("a number of megabytes"))
}

/// Limits the address space to what the process has now and so much more, or to what it may have.
fn limit(more: Option<u64>) {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmSize:")).unwrap();
    let kb: u64 = line.split_whitespace().next().unwrap().parse().unwrap();
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the system writes one such structure.
    #[expect(unsafe_code, reason = "asks the system")]
    let got = unsafe { libc::getrlimit(libc::RLIMIT_AS, &raw mut limit) };
    limit.rlim_cur = more.map_or(limit.rlim_max, |more| kb * 1024 + more);
    // SAFETY: the system reads one such structure, and does no more than refuse memory.
    #[expect(unsafe_code, reason = "asks the system")]
    let set = unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const limit) };
    assert_eq!((got, set), (0, 0));
}

/// The plain engine, but for what is given.
fn options() -> EngineOptions {
    EngineOptions {
        threads: Some(1),
        cache_bytes: Some(4 << 20),
        prefix_caching: false,
        repeat_bytes: 0,
        tune: Tune::Off,
        system_root: PathBuf::from("/no/such/folder"),
        ..EngineOptions::default()
    }
}

fn engine(options: EngineOptions) -> Result<Engine, Error> {
    Engine::from_bytes_with(oss_demo::GGUF, options)
}

fn story(number: usize) -> Request {
    let text = format!("{number} little dogs. {}", "They sat down and ate. ".repeat(20));
    Request { logprobs: Some(2), ..Request::text(text).max_tokens(8).greedy() }
}

/// An error with all of its causes.
fn told(error: &Error) -> String {
    let causes = std::iter::successors(std::error::Error::source(error), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

/// Whether memory was refused and the error tells how many bytes: so many at least.
fn tells_bytes(error: &Error, least: usize) -> bool {
    let told = told(error);
    let words: Vec<&str> = told.split_whitespace().collect();
    let bytes = words.windows(3).find(|words| words[1..] == ["bytes", "of"]);
    let bytes = bytes.and_then(|words| words[0].parse::<usize>().ok());
    told.contains("emory") && bytes.is_some_and(|bytes| bytes >= least)
}

#[test]
fn what_is_too_large_is_refused_when_the_engine_is_loaded_and_less_is_not() {
    if let Some(megabytes) = within() {
        let expected = engine(options()).unwrap().generate(story(0)).unwrap().tokens;
        limit(Some(megabytes * MB));
        let more = (megabytes * MB) as usize;
        let too_large = [
            EngineOptions { cache_bytes: Some(2 * more), ..options() },
            EngineOptions { max_batched_tokens: Some(more / 1000), ..options() },
        ];
        for options in too_large {
            let error = engine(options).unwrap_err();
            assert!(tells_bytes(&error, more / 10), "{}", told(&error));
        }
        assert_eq!(engine(options()).unwrap().generate(story(0)).unwrap().tokens, expected);
        return;
    }
    let test = "what_is_too_large_is_refused_when_the_engine_is_loaded_and_less_is_not";
    again(test, 300);
}

#[test]
fn whatever_the_limit_loading_gives_an_engine_or_tells_what_was_refused() {
    if let Some(megabytes) = within() {
        limit(Some(megabytes * MB));
        let got = engine(EngineOptions { threads: Some(2), ..options() })
            .and_then(|engine| engine.generate(story(0)));
        // What was refused once is not refused for ever.
        limit(None);
        let expected = engine(options()).unwrap().generate(story(0)).unwrap().tokens;
        match got {
            Ok(got) => assert_eq!(got.tokens, expected),
            Err(error) => {
                let told = told(&error);
                assert!(told.contains("thread") || tells_bytes(&error, 1), "{told}");
                println!("refused: {told}");
            }
        }
        return;
    }
    let test = "whatever_the_limit_loading_gives_an_engine_or_tells_what_was_refused";
    let mut refused = 0;
    let limits = [0, 4, 16, 40, 48, 56, 64, 72, 80, 96, 128, 1024];
    for megabytes in limits {
        let said = again(test, megabytes);
        let why = said.lines().find(|line| line.contains("refused: "));
        println!("{megabytes} MB: {}", why.unwrap_or("enough"));
        refused += usize::from(why.is_some());
    }
    assert!((1..limits.len()).contains(&refused), "{refused} of {} refused", limits.len());
}

/// Takes all memory but so many bytes, which are in small pieces: one of `large` bytes is not to be
/// had.
fn leave(bytes: u64, large: usize) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
    const PIECE: usize = 32 << 10;
    let piece = |bytes: usize| {
        let mut piece: Vec<u8> = Vec::new();
        piece.try_reserve_exact(bytes).ok().map(|()| piece)
    };
    let mut pieces: Vec<Vec<u8>> =
        (0..2 * bytes as usize / PIECE).map(|_| piece(PIECE).expect("no limit yet")).collect();
    let mut rest = Vec::with_capacity(10_000);
    limit(Some(0));
    while let Some(piece) = piece(large) {
        rest.push(piece);
    }
    // Every other one is free now.
    pieces.iter_mut().step_by(2).for_each(|piece| *piece = Vec::new());
    (pieces, rest)
}

#[test]
fn a_request_whose_memory_is_refused_fails_alone_and_the_next_one_is_right() {
    if within().is_some() {
        let engine = engine(EngineOptions { prefix_caching: true, ..options() }).unwrap();
        // The logits of 32 rows at once, which no request before has needed.
        let many = || Request { prompt_logprobs: Some(1), ..story(1) };
        let expected = engine.generate(story(0)).unwrap().tokens;
        let logits = 32 * 4 * engine.config().vocabulary;
        let (pieces, rest) = leave(12 * MB, logits / 2);
        let error = engine.generate(many()).unwrap_err();
        assert!(matches!(error, Error::Model(_)) && tells_bytes(&error, logits), "{error}");
        assert_eq!(engine.generate(story(0)).unwrap().tokens, expected);
        let error = engine.tune().unwrap_err();
        assert!(tells_bytes(&error, 1 << 20), "{}", told(&error));
        assert_eq!(engine.generate(story(0)).unwrap().tokens, expected);
        let metrics = engine.metrics();
        assert!(metrics.failed == 1 && metrics.shed_bytes > 0, "{metrics:?}");
        drop((rest, pieces));
        limit(None);
        let answer = engine.generate(many()).unwrap();
        let plain = self::engine(options()).unwrap().generate(many()).unwrap();
        assert_eq!((answer.tokens, answer.prompt_logprobs), (plain.tokens, plain.prompt_logprobs));
        return;
    }
    let test = "a_request_whose_memory_is_refused_fails_alone_and_the_next_one_is_right";
    again(test, 0);
}

#[test]
fn compressed_pages_stop_growing_before_memory_ends_and_tokens_stay_the_same() {
    if let Some(megabytes) = within() {
        let plain = engine(options()).unwrap();
        let expected: Vec<_> =
            (0..150).map(|number| plain.generate(story(number)).unwrap().tokens).collect();
        drop(plain);
        let kept = EngineOptions {
            prefix_caching: true,
            cache_bytes: Some(400 << 10),
            warm_bytes: 1 << 30,
            ..options()
        };
        // Each one comes again when it is in memory no more, but for its compressed pages.
        let order = || (0..expected.len()).flat_map(|number| [number, number.saturating_sub(4)]);
        let serve = |limited: bool| {
            let engine = engine(kept.clone()).unwrap();
            // All threads are there before memory is short.
            while engine.metrics().memory.warm == 0 {
                (0..6).for_each(|number| drop(engine.generate(story(number)).unwrap()));
            }
            if limited {
                limit(Some(megabytes * MB));
            }
            for number in order() {
                let answer = engine.generate(story(number)).unwrap();
                assert_eq!(answer.tokens, expected[number], "{number}");
            }
            assert_eq!(engine.check_books().unwrap(), 0);
            let metrics = engine.metrics();
            assert!(metrics.tiers.counts.warm_hits > 0, "{:?}", metrics.tiers.counts);
            metrics.memory.warm as u64
        };
        let some = serve(true);
        limit(None);
        let all = serve(false);
        println!("{all} bytes of compressed pages, and {some} where memory is short");
        assert!(some < all / 4 * 3, "{some} of {all}");
        return;
    }
    let test = "compressed_pages_stop_growing_before_memory_ends_and_tokens_stay_the_same";
    println!("{}", again(test, 10));
}
