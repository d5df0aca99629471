//! Steps that fail.

use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};

use oss_engine::{
    ColdTier, Constraint, Engine, EngineOptions, Error, ErrorKind, Event, Fault, Mask, PAGE_TOKENS,
    Request, Result, Speculation,
};
use oss_weights::{Container, Encoded};

use crate::support::{block_on, engine, engine_with, options, story};

fn ids(engine: &Engine, prompt: &str) -> Vec<u32> {
    engine.generate(story(prompt, 20)).unwrap().token_ids()
}

/// What the plain engine says.
fn plain(prompt: &str) -> Vec<u32> {
    ids(engine(), prompt)
}

/// A prompt of several pages.
fn long() -> String {
    "Once upon a time".to_owned() + &" and then the rain came".repeat(20)
}

/// Reuses prefixes, and has a file for them.
fn reusing(directory: &Path) -> EngineOptions {
    let directory = directory.to_path_buf();
    let cold = Some(ColdTier { directory, bytes: 64 << 20 });
    EngineOptions { prefix_caching: true, cold, ..options() }
}

fn is_not_finite(error: &Error) -> bool {
    let is = |error: &oss_model::Error| matches!(error, oss_model::Error::NotFinite { .. });
    matches!(error, Error::Model(error) if is(error))
}

#[test]
fn every_layer_of_a_step_is_a_beat_of_the_pulse_and_so_after_a_fault() {
    let engine = engine_with(options());
    let beats = |tokens| {
        let before = engine.pulse().unwrap();
        engine.generate(story("One day", tokens)).unwrap();
        engine.pulse().unwrap() - before
    };
    let layers = engine.config().layers.len() as u64;
    assert!(beats(8) >= 8 * layers);
    let bad = engine.submit(story("One day", 20).with_fault(Fault::Nan { at: 5 })).unwrap();
    bad.collect_all().unwrap_err();
    assert!(beats(8) >= 8 * layers);
}

#[test]
fn an_engine_that_is_closed_ends_its_requests_and_writes_what_it_keeps() {
    let directory = tempfile::tempdir().unwrap();
    let engine = engine_with(reusing(directory.path()));
    engine.generate(story(&long(), 4)).unwrap();
    let endless = Request { ignore_eos: true, ..story("Once upon a time", 4000) };
    let running = engine.submit(endless).unwrap();
    engine.close();
    assert!(matches!(running.collect_all(), Err(Error::Closed)));
    assert!(matches!(engine.generate(story("One day", 4)), Err(Error::Closed)));
    assert_eq!(engine.pulse(), None);
    engine.close();
    let next = engine_with(reusing(directory.path()));
    assert!(next.generate(story(&long(), 4)).unwrap().usage.cached_tokens > 0);
}

#[test]
fn the_next_engine_finds_the_answers_of_sessions_that_were_open_when_one_was_closed() {
    let directory = tempfile::tempdir().unwrap();
    let engine = engine_with(reusing(directory.path()));
    let session = engine.session();
    let answer = session.generate(story(&long(), 30)).unwrap();
    engine.close();
    // The last token has been drawn, and not computed.
    let known = [&*answer.prompt_token_ids, &answer.token_ids()[..29]].concat();
    assert!(!known.len().is_multiple_of(PAGE_TOKENS), "{} tokens", known.len());
    let next = engine_with(reusing(directory.path()));
    let goes_on = Request::tokens([known.as_slice(), &[500; 20]].concat()).max_tokens(1);
    let usage = next.generate(goes_on).unwrap().usage;
    assert_eq!(usage.cached_tokens, known.len());
}

#[test]
fn a_session_goes_on_from_what_it_had_before_a_row_was_no_number() {
    let engine = engine_with(options());
    let session = engine.session();
    let first = session.generate(story(&long(), 1)).unwrap();
    let longer = long() + &" and then they ran home".repeat(4);
    for at in [0, 3] {
        let faulty = story(&longer, 20).with_fault(Fault::Nan { at });
        assert!(is_not_finite(&session.generate(faulty).unwrap_err()));
        let answer = session.generate(story(&longer, 20)).unwrap();
        assert_eq!(answer.token_ids(), plain(&longer), "{at}");
        let known = first.usage.prompt_tokens - 1;
        assert!(answer.usage.cached_tokens >= known, "{at}: {:?}", answer.usage);
    }
}

#[test]
fn a_row_that_is_no_number_fails_one_request_alone() {
    let engine = engine_with(options());
    let bad = engine.submit(story("One day", 20).with_fault(Fault::Nan { at: 5 })).unwrap();
    let good = engine.submit(story("Once upon a time", 20)).unwrap();
    let error = bad.collect_all().unwrap_err();
    assert!(is_not_finite(&error), "{error}");
    let expected = plain("Once upon a time");
    assert_eq!(good.collect_all().unwrap().token_ids(), expected);
}

#[test]
fn what_is_no_number_is_never_found_again() {
    let directory = tempfile::tempdir().unwrap();
    let expected = plain(&long());
    for at in [0, 3] {
        {
            let engine = engine_with(reusing(directory.path()));
            let faulty = story(&long(), 20).with_fault(Fault::Nan { at });
            let error = engine.generate(faulty).unwrap_err();
            assert!(is_not_finite(&error), "{error}");
            assert_eq!(ids(&engine, &long()), expected);
        }
        let engine = engine_with(reusing(directory.path()));
        assert_eq!(ids(&engine, &long()), expected, "by the next process");
        assert!(engine.metrics().cached_tokens > 0, "what was right is found");
    }
}

/// The demo model, where an expert of the last layer adds infinity to what it gives.
fn with_bad_expert(expert: usize) -> &'static [u8] {
    let container = Container::from_bytes("demo", oss_demo::GGUF, Vec::new()).unwrap();
    let tensor = container.tensor("blk.3.ffn_down_exps.bias").unwrap();
    let Encoded::Plain(bytes) = tensor.data else { panic!("{:?}", tensor.info) };
    let start = oss_demo::GGUF.windows(bytes.len()).position(|window| window == bytes).unwrap();
    let of_expert = start + expert * bytes.len() / tensor.info.shape[0];
    let mut model = oss_demo::GGUF.to_vec();
    model[of_expert..of_expert + 4].copy_from_slice(&f32::INFINITY.to_le_bytes());
    model.leak()
}

#[test]
fn a_row_that_is_no_number_after_the_last_layer_fails_its_request_alone_and_is_not_found() {
    let good = || story("One day", 1);
    let model = (0..8).map(with_bad_expert).find(|&model| {
        let engine = Engine::from_bytes_with(model, options()).unwrap();
        engine.generate(good()).is_ok() && engine.generate(story(&long(), 1)).is_err()
    });
    let model = model.expect("one of the experts is for the second prompt's last row alone");
    let directory = tempfile::tempdir().unwrap();
    // The prompt is computed in one step.
    let options = || EngineOptions { max_batched_tokens: Some(512), ..reusing(directory.path()) };
    let load = || Engine::from_bytes_with(model, options()).unwrap();
    let engine = load();
    for _ in 0..2 {
        let stream = engine.submit(story(&long(), 1)).unwrap();
        let prompt_tokens = stream.prompt_token_ids().len();
        let error = stream.collect_all().unwrap_err();
        let Error::Model(cause) = &error else { panic!("{error}") };
        let oss_model::Error::NotFinite { position, .. } = **cause else { panic!("{error}") };
        assert_eq!(position, prompt_tokens - 1, "no other row went through the last layer");
    }
    assert_eq!(engine.check_books().unwrap(), 0, "pages that nobody gave back");
    assert_eq!(engine.metrics().tiers.counts.inserted_blocks, 0);
    drop(engine);
    let engine = load();
    let [bad, good] = [story(&long(), 1), good()].map(|request| engine.submit(request).unwrap());
    assert!(is_not_finite(&bad.collect_all().unwrap_err()));
    assert_eq!(good.collect_all().unwrap().token_ids(), plain("One day")[..1]);
    assert_eq!(engine.metrics().tiers.counts.cold.restored_slots, 0, "nothing was written");
    // An answer that comes to that expert later is right until then.
    let stream = engine.submit(story("One day", 20)).unwrap();
    let drawn: Vec<u32> = stream.filter_map(token).collect();
    assert!(drawn.len() < 20 && drawn == plain("One day")[..drawn.len()], "{drawn:?}");
}

#[test]
fn a_guess_that_is_no_number_does_not_count() {
    // A text that repeats itself, so that guesses come true.
    let refrain = "Tom has a red ball. ".repeat(6);
    let answer = || Request { ignore_eos: true, ..story(&refrain, 150) };
    let expected = engine().generate(answer()).unwrap().token_ids();
    for speculation in [Speculation::Off, Speculation::Always(4)] {
        let engine = engine_with(EngineOptions { speculation, ..options() });
        for at in 140..146 {
            let stream = engine.submit(answer().with_fault(Fault::Nan { at })).unwrap();
            let drawn: Vec<u32> = stream.filter_map(token).collect();
            assert_eq!(drawn, expected[..at], "{speculation:?}");
        }
        assert_eq!(engine.metrics().drafted_tokens > 0, speculation != Speculation::Off);
    }
}

#[test]
fn a_panicking_step_fails_its_requests_and_the_next_one_is_right() {
    let directory = tempfile::tempdir().unwrap();
    for threads in [1, 2] {
        let engine =
            engine_with(EngineOptions { threads: Some(threads), ..reusing(directory.path()) });
        let session = engine.session();
        session.generate(story("Once upon a time", 10)).unwrap();
        for at in [0, 3] {
            let faulty = story(&long(), 20).with_fault(Fault::Panic { at });
            let error = engine.generate(faulty).unwrap_err();
            let Error::Panicked { message } = &error else { panic!("{error}") };
            assert_eq!(message, "a fault was injected");
            assert_eq!(ids(&engine, &long()), plain(&long()));
        }
        let expected = plain("Once upon a time");
        assert_eq!(ids(&engine, "Once upon a time"), expected);
        assert_eq!(session.generate(story("Once upon a time", 20)).unwrap().token_ids(), expected);
        assert_eq!(engine.metrics().failed, 2);
    }
}

#[test]
fn what_was_counted_before_a_panic_counts_after_it() {
    let engine = engine_with(EngineOptions { prefix_caching: true, ..options() });
    let counts = || {
        engine.check_books().unwrap(); // the numbers are told
        engine.metrics().tiers.counts
    };
    (0..2).for_each(|_| assert_eq!(ids(&engine, &long()), plain(&long())));
    let before = counts();
    assert!(before.inserted_blocks > 0 && before.hot_hits > 0, "{before:?}");
    engine.generate(story("One day", 4).with_fault(Fault::Panic { at: 0 })).unwrap_err();
    let after = counts();
    assert!(after.inserted_blocks >= before.inserted_blocks, "{before:?}, {after:?}");
    assert_eq!(after.hot_hits, before.hot_hits);
    assert_eq!(ids(&engine, &long()), plain(&long()));
    assert!(counts().inserted_blocks > after.inserted_blocks, "it was computed again");
}

/// One sequence at a time, and streams that never pause.
fn one_by_one() -> EngineOptions {
    EngineOptions { max_sequences: Some(1), stream_events: 10_000, ..options() }
}

/// The token that an item of a stream is.
fn token(item: Result<Event>) -> Option<u32> {
    match item {
        Ok(Event::Token(token)) => Some(token.id),
        _ => None,
    }
}

/// A request that is at its answer, and goes on for long.
fn running(engine: &Engine) -> oss_engine::Stream {
    let endless = Request { ignore_eos: true, ..story("Once upon a time", 3000) };
    let mut running = engine.submit(endless).unwrap();
    assert!(running.by_ref().any(|event| matches!(event, Ok(Event::Token(_)))));
    running
}

struct Broken;

impl Wake for Broken {
    fn wake(self: Arc<Self>) {
        panic!("a waker that panics");
    }
}

/// A constraint that allows everything, and panics when it is dropped.
struct Sticky;

impl Constraint for Sticky {
    fn mask(&mut self) -> Result<Option<&Mask>> {
        Ok(None)
    }
    fn accept(&mut self, _token: u32) {}
}

impl Drop for Sticky {
    fn drop(&mut self) {
        panic!("a constraint that does not go");
    }
}

#[test]
fn a_waker_or_a_dropped_constraint_that_panics_ends_no_request() {
    use futures_core::Stream as _;
    let engine = engine_with(one_by_one());
    let expected = plain("One day");
    let before = running(&engine);
    let mut waiting = engine.submit(story("One day", 20)).unwrap().into_async();
    let waker = Waker::from(Arc::new(Broken));
    assert!(Pin::new(&mut waiting).poll_next(&mut Context::from_waker(&waker)).is_pending());
    drop(before);
    crate::support::eventually("it is answered", || engine.metrics().completed == 1);
    assert_eq!(block_on(waiting.collect_all()).unwrap().token_ids(), expected);

    let sticky = || story("One day", 20).constrained(Sticky);
    assert_eq!(engine.generate(sticky()).unwrap().token_ids(), expected);
    let before = running(&engine);
    let waiting = [sticky(), sticky()].map(|request| engine.submit(request).unwrap());
    drop(waiting);
    drop(before);
    assert_eq!(ids(&engine, "One day"), expected);
    assert!(engine.pulse().is_some());
}

#[test]
fn an_engine_whose_step_thread_has_panicked_is_closed_and_can_be_dropped() {
    let engine = engine_with(EngineOptions { queue_limit: 1, ..one_by_one() });
    let running = running(&engine);
    let waiting = engine.submit(story("One day", 4)).unwrap();
    let error = engine.submit(story("One day", 4)).unwrap_err();
    assert!(matches!(error, Error::Overloaded { .. }), "{error}");
    engine.crash();
    for stream in [running, waiting] {
        let last = stream.last();
        assert!(matches!(last, Some(Err(Error::Closed))), "{last:?}");
    }
    crate::support::eventually("its thread is over", || engine.pulse().is_none());
    let error = engine.submit(story("One day", 4)).unwrap_err();
    assert!(matches!(error, Error::Closed), "nobody leaves the queue any more: {error}");
    drop(engine);
}

#[test]
fn all_requests_of_a_panicking_step_get_the_error() {
    let engine = engine_with(EngineOptions { threads: Some(2), ..options() });
    let answer = || Request { ignore_eos: true, ..story("Once upon a time", 60) };
    let streams = [answer(), answer().with_fault(Fault::Panic { at: 30 })];
    for stream in streams.map(|request| engine.submit(request).unwrap()) {
        let error = stream.collect_all().unwrap_err();
        assert!(matches!(error, Error::Panicked { .. }), "{error}");
        assert!(error.to_string().contains("a fault was injected"), "{error}");
    }
}

#[test]
fn a_request_that_was_paused_during_a_panic_goes_on() {
    let options = EngineOptions { stream_events: 4, ..options() };
    let engine = engine_with(options);
    let mut slow = engine.submit(story("Once upon a time", 40)).unwrap();
    assert!(matches!(slow.next(), Some(Ok(Event::Admitted { .. }))));
    crate::support::eventually("the consumer is too slow", || {
        let before = engine.metrics().completion_tokens;
        std::thread::sleep(std::time::Duration::from_millis(30));
        before > 0 && engine.metrics().completion_tokens == before
    });
    let broken = Request::text("One day").with_fault(Fault::Panic { at: 0 });
    engine.generate(broken).unwrap_err();
    let expected = crate::support::engine().generate(story("Once upon a time", 40)).unwrap();
    assert_eq!(slow.collect_all().unwrap().token_ids(), expected.token_ids());
}

#[test]
fn a_panicking_constraint_fails_its_own_request() {
    struct Bad;
    impl Constraint for Bad {
        fn mask(&mut self) -> Result<Option<&Mask>> {
            panic!("no grammar")
        }
        fn accept(&mut self, _token: u32) {}
    }
    let error = engine().generate(story("One day", 4).constrained(Bad)).unwrap_err();
    assert!(matches!(&error, Error::Panicked { message } if message == "no grammar"), "{error}");
}

#[test]
fn a_mask_of_another_size_fails_its_own_request() {
    struct Narrow(Mask);
    impl Constraint for Narrow {
        fn mask(&mut self) -> Result<Option<&Mask>> {
            Ok(Some(&self.0))
        }
        fn accept(&mut self, _token: u32) {}
    }
    let vocabulary = engine().config().vocabulary;
    for size in [7, vocabulary + 1] {
        let request = story("One day", 4).min_tokens(2).constrained(Narrow(Mask::all(size)));
        let error = engine().generate(request).unwrap_err().to_string();
        let mask = format!("its mask: got {size} tokens, expected {vocabulary}");
        assert_eq!(error, format!("the constraint failed: {mask}"));
    }
}

#[test]
fn an_error_tells_whether_the_request_is_at_fault_and_which_option() {
    let engine = engine();
    let refused = |request: Request| engine.submit(request).unwrap_err();
    let mut hot = story("Once", 1);
    hot.sampling.top_p = Some(2.0);
    let error = refused(hot);
    assert_eq!((error.kind(), error.field()), (ErrorKind::InvalidInput, Some("top_p")));
    assert!(!error.is_retryable());
    let long = refused(Request::tokens(vec![1; engine.context_len() + 1]));
    assert_eq!((long.kind(), long.field()), (ErrorKind::InvalidInput, None), "{long}");
    assert_eq!(Error::Closed.kind(), ErrorKind::Closed);
    let full = Error::Overloaded { waiting: 256, limit: 256 };
    assert_eq!((full.kind(), full.is_retryable()), (ErrorKind::Overloaded, true));
    let said = "the queue is full: 256 requests are waiting (`queue_limit` is 256)";
    assert_eq!(full.to_string(), said);
}

#[test]
fn why_a_file_cannot_be_opened_is_said_once_with_and_without_the_sources() {
    let error = Engine::load_with("no-such.gguf", options()).unwrap_err();
    let why = std::io::Error::from_raw_os_error(2).to_string();
    let sources =
        std::iter::successors(std::error::Error::source(&error), |source| source.source());
    let chain = sources.fold(error.to_string(), |text, source| format!("{text}: {source}"));
    for said in [error.to_string(), chain] {
        assert_eq!(said, format!("no-such.gguf: could not open: {why}"));
    }
}

#[test]
fn the_step_thread_goes_round_while_it_is_asked_for_its_pulse() {
    let engine = engine_with(options());
    let first = engine.pulse().unwrap();
    crate::support::eventually("the loop goes round", || engine.pulse().unwrap() > first + 2);
}
