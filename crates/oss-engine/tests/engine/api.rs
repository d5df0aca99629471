//! What the types promise: threads, ends of streams, errors, options that do not go together.

use std::ops::ControlFlow;
use std::thread;
use std::time::{Duration, Instant};

use futures_core::stream::FusedStream as _;
use oss_engine::{
    AsyncStream, CancelHandle, Constraint, Engine, EngineOptions, Error, ErrorKind, Event,
    FinishReason, Grammar, Mask, Request, Result, Session, Stream, Team, TeamOptions,
};

use crate::support::{block_on, engine, engine_with, options, story};

#[test]
fn handles_go_where_threads_and_async_code_take_them() {
    fn everywhere<T: Send + Sync + 'static>() {}
    fn elsewhere<T: Send + 'static>() {}
    fn cloned<T: Clone>() {}
    everywhere::<Engine>();
    everywhere::<Error>();
    everywhere::<Session>();
    everywhere::<CancelHandle>();
    elsewhere::<Stream>();
    elsewhere::<AsyncStream>();
    elsewhere::<Request>();
    cloned::<Engine>();
    cloned::<Error>();
}

/// Allows everything, and takes its time.
struct Slow(Duration);

impl Constraint for Slow {
    fn mask(&mut self) -> Result<Option<&Mask>> {
        thread::sleep(self.0);
        Ok(None)
    }
    fn accept(&mut self, _token: u32) {}
}

#[test]
fn a_request_that_fails_ends_its_stream_with_the_error_and_what_came_before_is_kept() {
    let engine = engine_with(options());
    let late = || {
        let slow = Slow(Duration::from_millis(20));
        let request = story("Once upon a time", 2000).ignore_eos().constrained(slow);
        engine.submit(request.timeout(Duration::from_secs(2))).unwrap()
    };
    let mut stream = late();
    let items: Vec<_> = stream.by_ref().collect();
    let (last, before) = items.split_last().unwrap();
    assert!(matches!(last, Err(Error::Timeout)), "{last:?}");
    assert!(before.iter().all(Result::is_ok));
    assert!(stream.is_finished() && stream.next().is_none());
    assert!(matches!(stream.collect_all(), Err(Error::Timeout)));

    let (answer, outcome) = late().collect_partial();
    assert!(matches!(outcome, Err(Error::Timeout)), "{outcome:?}");
    assert!(!answer.tokens.is_empty());
    assert_eq!(answer.usage.completion_tokens, answer.tokens.len());
    assert_eq!(answer.finish_reason, FinishReason::Cancelled);

    let mut stream = late().into_async();
    let last = block_on(async {
        let mut last = None;
        while let Some(item) = stream.next().await {
            assert!(!matches!(last, Some(Err(_))), "nothing follows an error");
            last = Some(item);
        }
        last
    });
    assert!(matches!(last, Some(Err(Error::Timeout))), "{last:?}");
    assert!(stream.is_terminated());
}

#[test]
fn who_is_shown_events_may_end_the_answer() {
    let engine = engine();
    let mut tokens = 0;
    let count = |event: &Event| {
        tokens += usize::from(matches!(event, Event::Token(_)));
        if tokens < 3 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    };
    let endless = story("Once upon a time", 3000).ignore_eos();
    let answer = engine.generate_with(endless, count).unwrap();
    assert_eq!((answer.finish_reason, tokens), (FinishReason::Cancelled, 3));
    assert!((3..3000).contains(&answer.tokens.len()), "{}", answer.tokens.len());
}

#[test]
fn the_last_stream_of_an_engine_waits_for_nothing() {
    let wait = Duration::from_secs(3);
    let submit = || {
        let engine = engine_with(options());
        let mut stream = engine.submit(story("One day", 20).constrained(Slow(wait))).unwrap();
        assert!(matches!(stream.next(), Some(Ok(Event::Admitted { .. }))));
        stream
    };
    let (stream, other) = (submit(), submit().into_async());
    let begin = Instant::now();
    drop(stream);
    drop(other);
    assert!(begin.elapsed() < wait / 2, "{:?}", begin.elapsed());
}

#[test]
fn a_context_that_is_given_is_had_or_refused() {
    let load = |options| Engine::from_bytes_with(oss_demo::GGUF, options);
    let own = engine().config().context_len;
    let error = load(EngineOptions { context_len: Some(own + 1), ..options() }).unwrap_err();
    assert_eq!((error.kind(), error.field()), (ErrorKind::InvalidInput, Some("context_len")));
    let said = format!("option context_len: got {}, expected at most the model's {own}", own + 1);
    assert!(error.to_string().starts_with(&said), "{error}");

    let small = EngineOptions { cache_bytes: Some(1 << 20), ..options() };
    assert!(load(small.clone()).unwrap().context_len() < own, "nobody asked for more");
    let whole = EngineOptions { context_len: Some(own), ..small };
    let error = load(whole.clone()).unwrap_err();
    let Error::Context { context_len, expected, .. } = error else { panic!("{error}") };
    assert_eq!((context_len, error.kind()), (own, ErrorKind::OutOfMemory));
    assert!(error.to_string().contains("`cache_bytes`"), "{error}");
    let enough = EngineOptions { cache_bytes: Some(expected), ..whole };
    assert_eq!(load(enough).unwrap().context_len(), own);

    let unsized_ = EngineOptions { context_len: Some(300), cache_bytes: None, ..options() };
    assert_eq!(load(unsized_).unwrap().context_len(), 300);
}

#[test]
fn what_cannot_be_combined_is_said_as_such() {
    let team = Some(Team::with_options(&TeamOptions::new(1)).unwrap());
    let age = Some(Duration::from_secs(1));
    let plain = || EngineOptions { threads: None, ..options() };
    let table = [
        (
            EngineOptions { team: team.clone(), pin: true, ..plain() },
            "`pin` cannot be combined with `team`; build the team with `TeamOptions::pin`",
        ),
        (
            EngineOptions { team, threads: Some(1), ..plain() },
            "`threads` cannot be combined with `team`, which has threads of its own",
        ),
        (EngineOptions { keep_unused: age, ..plain() }, "`keep_unused` needs `cold`"),
    ];
    for (options, said) in table {
        let error = Engine::from_bytes_with(oss_demo::GGUF, options).unwrap_err();
        assert_eq!((error.to_string().as_str(), error.kind()), (said, ErrorKind::InvalidInput));
    }
    let both = story("One day", 4).grammar(Grammar::regex("a+")).constrained(Slow(Duration::ZERO));
    let error = engine().submit(both).unwrap_err();
    let said =
        "`constraint` cannot be combined with `grammar`, strict tools or required tool calls";
    assert_eq!((error.to_string().as_str(), error.field()), (said, Some("constraint")));
    let not = Grammar::json_schema(serde_json::json!({"not": {"type": "string"}}));
    let error = engine().submit(story("One day", 4).grammar(not)).unwrap_err().to_string();
    assert!(error.starts_with("unsupported JSON schema in `grammar`: "), "{error}");
}

#[test]
fn methods_of_a_request_set_what_they_are_named_after() {
    let request = Request::text("Once")
        .temperature(0.5)
        .top_p(0.9)
        .top_k(5)
        .seed(3)
        .stop("a")
        .stop("b")
        .stop_token_ids([1, 2])
        .ignore_eos()
        .logprobs(2)
        .prompt_logprobs(1)
        .priority(-1)
        .timeout(Duration::from_secs(1));
    let sampling = &request.sampling;
    assert_eq!((sampling.temperature, sampling.top_p), (Some(0.5), Some(0.9)));
    assert_eq!((sampling.top_k, sampling.seed), (Some(5), Some(3)));
    assert_eq!(
        (&request.stop[..], &request.stop_token_ids[..]),
        (&["a".into(), "b".into()][..], &[1, 2][..])
    );
    assert!(request.ignore_eos && request.skip_special_tokens);
    assert_eq!((request.logprobs, request.prompt_logprobs), (Some(2), Some(1)));
    assert_eq!((request.priority, request.timeout), (-1, Some(Duration::from_secs(1))));
}
