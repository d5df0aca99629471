//! Queues, limits, slow consumers and those who leave.

use std::time::{Duration, Instant};

use oss_engine::{
    Constraint, Engine, EngineOptions, Error, Event, EvictionPolicy, FinishReason, Mask, Request,
    Result,
};

use crate::support::{
    engine, engine_with, eventually, options, page_bytes, prompts, story, tokens,
};

/// A request that goes on until someone ends it.
fn endless() -> Request {
    Request { ignore_eos: true, ..Request::text("Once upon a time").max_tokens(3000) }
}

#[test]
fn a_dropped_stream_ends_its_request_and_frees_its_pages() {
    let engine = engine_with(options());
    let mut stream = engine.submit(endless()).unwrap();
    assert!(stream.by_ref().any(|event| matches!(event, Ok(Event::Token(_)))));
    drop(stream);
    eventually("the request is cancelled", || engine.metrics().cancelled == 1);
    eventually("all pages are free", || {
        let metrics = engine.metrics();
        metrics.running == 0 && metrics.pages.iter().all(|pages| pages.in_use == 0)
    });
    assert!(!engine.generate(story("Once upon a time", 8)).unwrap().text.is_empty());
}

#[test]
fn a_cancelled_request_says_so() {
    let mut stream = engine().submit(endless()).unwrap();
    assert!(stream.by_ref().any(|event| matches!(event, Ok(Event::Token(_)))));
    stream.cancel();
    let answer = stream.collect_all().unwrap();
    assert!(matches!(answer.finish_reason, FinishReason::Cancelled));
}

#[test]
fn a_request_is_cancelled_from_another_thread_while_its_events_are_waited_for() {
    let engine = engine_with(options());
    let stream = engine.submit(endless()).unwrap();
    let cancel_handle = stream.cancel_handle();
    let other = cancel_handle.clone();
    let cancelling = std::thread::spawn(move || other.cancel());
    assert!(matches!(stream.collect_all().unwrap().finish_reason, FinishReason::Cancelled));
    cancelling.join().unwrap();
    cancel_handle.cancel(); // it is over
    drop(engine);
    cancel_handle.cancel();
}

#[test]
fn more_requests_than_the_queue_holds_are_refused() {
    let options = EngineOptions { queue_limit: 2, max_sequences: Some(1), ..options() };
    let engine = engine_with(options);
    let mut running = engine.submit(endless()).unwrap();
    assert!(running.by_ref().any(|event| matches!(event, Ok(Event::Token(_)))));
    let waiting: Vec<_> = (0..2).map(|_| engine.submit(story("One day", 4)).unwrap()).collect();
    let error = engine.submit(story("One day", 4)).unwrap_err();
    assert!(matches!(error, Error::Overloaded { waiting: 2, limit: 2 }), "{error}");
    assert_eq!((engine.metrics().rejected, engine.metrics().queued), (1, 2));
    drop(running);
    for stream in waiting {
        assert_eq!(stream.collect_all().unwrap().tokens.len(), 4);
    }
    assert!(engine.submit(story("One day", 4)).is_ok());
}

#[test]
fn a_request_past_its_time_fails_whether_it_waits_or_runs() {
    let engine = engine_with(EngineOptions { max_sequences: Some(1), ..options() });
    let timeout = Some(Duration::from_millis(60));
    let running = engine.submit(Request { timeout, ..endless() }).unwrap();
    let soon = Some(Duration::from_millis(20));
    let waiting = engine.submit(Request { timeout: soon, ..endless() }).unwrap();
    for stream in [waiting, running] {
        assert!(matches!(stream.collect_all().unwrap_err(), Error::Timeout));
    }
    let metrics = engine.metrics();
    assert_eq!((metrics.timed_out, metrics.failed), (2, 0));
}

#[test]
fn times_count_from_when_a_request_came() {
    let engine = engine_with(options());
    let arrival_time = Instant::now().checked_sub(Duration::from_secs(7));
    let answer = engine.generate(Request { arrival_time, ..story("One day", 4) }).unwrap();
    let timing = answer.timing;
    let times = [timing.queue, timing.first_token.unwrap(), timing.total];
    assert!(times.iter().all(|time| (7..60).contains(&time.as_secs())), "{timing:?}");
    assert!(timing.prefill.as_secs() < 7, "{timing:?}");
    let late =
        Request { arrival_time, timeout: Some(Duration::from_secs(6)), ..story("One day", 4) };
    assert!(matches!(engine.generate(late).unwrap_err(), Error::Timeout));
    // Nobody gains time by a time yet to come.
    let arrival_time = Instant::now().checked_add(Duration::from_secs(60));
    let soon = Some(Duration::from_millis(20));
    let early = engine.generate(Request { arrival_time, timeout: soon, ..endless() });
    assert!(matches!(early.unwrap_err(), Error::Timeout));
}

#[test]
fn higher_priority_leaves_the_queue_first() {
    let engine = engine_with(EngineOptions { max_sequences: Some(1), ..options() });
    let mut first = engine.submit(endless()).unwrap();
    assert!(first.by_ref().any(|event| matches!(event, Ok(Event::Token(_)))));
    let low = engine.submit(story("One day", 30)).unwrap();
    let high = engine.submit(Request { priority: 1, ..story("One day", 30) }).unwrap();
    drop(first);
    let (low, high) = (low.collect_all().unwrap(), high.collect_all().unwrap());
    assert!(high.timing.queue < low.timing.queue);
    assert_eq!(low.token_ids(), high.token_ids());
}

#[test]
fn a_slow_consumer_pauses_itself_and_nobody_else() {
    let options = EngineOptions { stream_events: 8, max_sequences: Some(2), ..options() };
    let engine = engine_with(options);
    let slow = engine.submit(story("Once upon a time", 60)).unwrap();
    for prompt in prompts(6) {
        assert!(!engine.generate(story(&prompt, 20)).unwrap().tokens.is_empty());
    }
    assert_eq!(engine.metrics().completed, 6);
    let expected = crate::support::engine().generate(story("Once upon a time", 60)).unwrap();
    assert_eq!(slow.collect_all().unwrap().token_ids(), expected.token_ids());
}

#[test]
fn a_long_prompt_does_not_stop_the_others() {
    let options = EngineOptions {
        max_batched_tokens: Some(32),
        max_prompt_step: Duration::from_millis(1),
        ..options()
    };
    let engine = engine_with(options);
    let mut stream = engine.submit(endless()).unwrap();
    assert!(stream.by_ref().any(|event| matches!(event, Ok(Event::Token(_)))));
    let long = engine.submit(Request::tokens(vec![500; 2000]).max_tokens(1)).unwrap();
    let done = std::thread::spawn(move || long.collect_all().unwrap());
    let mut tokens = 0;
    while !done.is_finished() {
        tokens += usize::from(matches!(stream.next(), Some(Ok(Event::Token(_)))));
    }
    assert_eq!(done.join().unwrap().usage.prompt_tokens, 2000);
    assert!(tokens > 50, "{tokens} tokens beside a prompt of 2000");
}

#[test]
fn a_step_counts_its_sequences_apart_from_its_rows() {
    let engine = engine_with(options());
    let mut first = engine.submit(endless()).unwrap();
    assert!(first.by_ref().any(|event| matches!(event, Ok(Event::Token(_)))));
    eventually("the prompt's step is counted", || engine.metrics().step_rows.max() > 1.0);
    assert_eq!(engine.metrics().step_sequences.max(), 1.0);
    engine.generate(story("One day", 4)).unwrap();
    eventually("a step of both is counted", || engine.metrics().step_sequences.max() > 1.0);
    let metrics = engine.metrics();
    assert_eq!(metrics.step_sequences.max(), 2.0);
    assert_eq!(metrics.step_sequences.count(), metrics.step_rows.count());
}

#[test]
fn a_short_prompt_does_not_wait_for_the_end_of_a_long_one_however_few_rows_there_are() {
    let engine = engine_with(EngineOptions { prefill_chunk: Some(8), ..options() });
    let long = "The little dog ran home. ".repeat(150);
    let long = engine.submit(story(&long, 1)).unwrap();
    let short = engine.submit(story("Once upon a time, there was a cat", 1)).unwrap();
    let (short, long) = (short.collect_all().unwrap(), long.collect_all().unwrap());
    assert!(short.timing.total < long.timing.prefill / 2, "{:?} {:?}", short.timing, long.timing);
}

#[test]
fn what_cannot_be_served_is_refused_at_once() {
    // Others' requests would count.
    let engine = engine_with(options());
    let context = engine.context_len();
    let refused = |request| engine.submit(request).unwrap_err();
    assert!(matches!(refused(Request::text("")), Error::EmptyPrompt));
    let long = refused(Request::tokens(vec![1; context + 1]));
    assert!(matches!(long, Error::PromptTooLong { .. }), "{long}");
    let token = refused(Request::tokens(vec![1, 5000]));
    assert_eq!(token.to_string(), "token 1 of the prompt: got 5000, expected an id below 2048");
    let mut request = Request::text("a");
    request.sampling.top_p = Some(2.0);
    assert!(matches!(refused(request), Error::Sampling(_)));
    assert_eq!(engine.metrics().queued, 0);
}

#[test]
fn a_context_is_as_long_as_the_cache_can_hold() {
    let engine = engine_with(EngineOptions { cache_bytes: Some(300 << 10), ..options() });
    let context = engine.context_len();
    assert!(context < engine.config().context_len);
    let refused = |tokens: usize| engine.submit(Request::tokens(vec![500; tokens])).err().unwrap();
    // A prompt that fills it leaves no room for an answer.
    for tokens in [context, context + 1] {
        let Error::PromptTooLong { got, expected } = refused(tokens) else { panic!("another") };
        assert_eq!((got, expected), (tokens, context - 1));
    }
    let alone = |tokens: usize| engine.generate(Request::tokens(vec![500; tokens]).max_tokens(0));
    assert!(matches!(alone(context).unwrap().finish_reason, FinishReason::Length));
    let error = alone(context + 1).unwrap_err();
    assert!(matches!(error, Error::PromptTooLong { expected, .. } if expected == context));
    let most = |tokens| engine.submit(Request::tokens(vec![500; context - 20]).min_tokens(tokens));
    assert!(most(20).is_ok());
    let said = "option min_tokens: got 21, expected at most what the context has left (20)";
    assert_eq!(most(21).unwrap_err().to_string(), said);
    // What is not too long has room to its end.
    let whole = Request { ignore_eos: true, ..Request::tokens(vec![500; context - 20]) };
    let whole = engine.generate(whole.greedy()).unwrap();
    assert!(matches!(whole.finish_reason, FinishReason::Length));
    assert_eq!(whole.tokens.len(), 20);
    assert_eq!(engine.generate(story("One day", 4)).unwrap().tokens.len(), 4);
    let least = EngineOptions { cache_bytes: Some(1 << 10), ..options() };
    assert!(matches!(Engine::from_bytes_with(oss_demo::GGUF, least), Err(Error::Cache(_))));
}

#[test]
fn an_engine_that_is_dropped_lets_its_streams_finish() {
    let stream = engine_with(options()).submit(story("One day", 12)).unwrap();
    assert_eq!(stream.collect_all().unwrap().tokens.len(), 12);
}

#[test]
fn metrics_count_what_happened() {
    let engine = engine_with(options());
    engine.generate(story("Once upon a time", 10)).unwrap();
    let metrics = engine.metrics();
    assert_eq!((metrics.submitted, metrics.completed), (1, 1));
    assert_eq!((metrics.computed_prompt_tokens, metrics.completion_tokens), (4, 10));
    assert_eq!((metrics.first_token.count(), metrics.inter_token.count()), (1, 9));
    assert!(metrics.decode_tokens_per_s() > 0.0 && metrics.prefill_tokens_per_s() > 0.0);
    assert!(metrics.memory.weights > 0 && metrics.memory.cache_limit == 32 << 20);
}

#[test]
fn stop_tokens_of_a_request_hold_where_those_of_the_model_do_not() {
    let endless = || Request { ignore_eos: true, ..story("One day", 24).greedy() };
    let ids = engine().generate(endless()).unwrap().token_ids();
    assert_eq!(ids.len(), 24);
    let stop = ids[9];
    let ended = Request { stop_token_ids: vec![stop], ..endless() };
    let ended = engine().generate(ended).unwrap().token_ids();
    let first = ids.iter().position(|id| *id == stop).unwrap();
    assert_eq!(ended, ids[..=first]);
}

#[test]
fn waits_without_end_are_no_mistake() {
    let forever = Duration::MAX;
    let request = Request { timeout: Some(forever), ..story("One day", 3) };
    let mut stream = engine().submit(request).unwrap();
    while !stream.is_finished() {
        stream.next_timeout(forever);
    }
}

#[test]
fn a_session_that_waits_for_room_keeps_what_it_has() {
    let engine = engine_with(EngineOptions {
        cache_bytes: Some(100 * page_bytes()),
        max_batched_tokens: Some(64),
        ..options()
    });
    let ask = |tokens: &[u32]| Request::tokens(tokens.to_vec()).max_tokens(1).greedy();
    let session = engine.session();
    let prompt = tokens(0);
    session.generate(ask(&prompt[..300])).unwrap();
    // Beside this one the session's pages have room, but not all that its next prompt needs.
    let other = Request::tokens(tokens(1)).max_tokens(100).greedy();
    let mut other = engine.submit(Request { ignore_eos: true, ..other }).unwrap();
    assert!(matches!(other.next(), Some(Ok(Event::Admitted { .. }))));
    let answer = session.generate(ask(&prompt)).unwrap();
    assert!(answer.usage.cached_tokens >= 299, "{:?}", answer.usage);
    assert_eq!(
        answer.token_ids(),
        crate::support::engine().generate(ask(&prompt)).unwrap().token_ids()
    );
    other.collect_all().unwrap();
}

#[test]
fn a_session_keeps_what_it_has_when_its_next_request_is_cancelled_or_late() {
    let engine = engine_with(EngineOptions { prefill_chunk: Some(8), ..options() });
    let ask = |tokens: &[u32]| Request::tokens(tokens).max_tokens(1).greedy();
    let prompt = tokens(0);
    let session = engine.session();
    session.generate(ask(&prompt[..300])).unwrap();
    let endless = || Request { ignore_eos: true, ..ask(&prompt).max_tokens(3000) };
    let mut cancelled = session.submit(endless()).unwrap();
    let Some(Ok(Event::Admitted { cached_tokens })) = cancelled.next() else { panic!("no event") };
    assert!(cached_tokens >= 299, "{cached_tokens}");
    cancelled.cancel();
    assert!(matches!(cancelled.collect_all().unwrap().finish_reason, FinishReason::Cancelled));
    let timeout = Some(Duration::from_millis(20));
    let late = session.generate(Request { timeout, ..endless() });
    assert!(matches!(late.unwrap_err(), Error::Timeout));
    let answer = session.generate(ask(&prompt)).unwrap();
    assert!(answer.usage.cached_tokens >= 299, "{:?}", answer.usage);
    assert_eq!(
        answer.token_ids(),
        crate::support::engine().generate(ask(&prompt)).unwrap().token_ids()
    );
}

#[test]
fn tokens_that_were_lost_before_the_prompt_was_computed_do_not_count_as_cached() {
    let engine = engine_with(EngineOptions {
        prefix_caching: true,
        repeat_bytes: 0,
        eviction: EvictionPolicy::Lru,
        cache_bytes: Some(100 * page_bytes()),
        max_batched_tokens: Some(64),
        stream_events: 1,
        ..options()
    });
    let ask = |kind| Request::tokens(tokens(kind)).max_tokens(1).greedy();
    engine.generate(ask(0)).unwrap();
    // Its first event fills the stream: nothing of its prompt is computed.
    let mut slow = engine.submit(ask(0)).unwrap();
    eventually("the slow one has its event", || engine.metrics().queued == 0);
    for kind in 1..3 {
        engine.generate(ask(kind)).unwrap();
    }
    let counted = || {
        engine.check_books().unwrap(); // the numbers are told
        engine.metrics()
    };
    let before = counted();
    assert_eq!(before.preempted, 1);
    let Some(Ok(Event::Admitted { cached_tokens })) = slow.next() else { panic!("no event") };
    assert_eq!(cached_tokens, 699);
    let usage = slow.collect_all().unwrap().usage;
    let computed = counted().computed_prompt_tokens - before.computed_prompt_tokens;
    assert!(computed > 1, "nothing was lost");
    assert_eq!(usage.cached_tokens as u64, 700 - computed);
}

/// A constraint that takes its time, and allows everything.
struct Slow(Duration);

impl Constraint for Slow {
    fn mask(&mut self) -> Result<Option<&Mask>> {
        std::thread::sleep(self.0);
        Ok(None)
    }
    fn accept(&mut self, _token: u32) {}
}

#[test]
fn what_a_constraint_takes_for_its_masks_counts_as_drawing() {
    let engine = engine_with(options());
    let slow = Slow(Duration::from_millis(60));
    engine.generate(story("One day", 6).constrained(slow)).unwrap();
    engine.check_books().unwrap(); // the numbers are told
    let metrics = engine.metrics();
    assert!(metrics.draw_seconds >= 0.36, "{}", metrics.draw_seconds);
    assert!(metrics.overhead.sum() < 0.18, "{}", metrics.overhead.sum());
}
