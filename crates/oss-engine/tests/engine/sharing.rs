//! Prompts that have something in common are computed once.

use oss_engine::{EngineOptions, Event, FinishReason, Request};

use crate::support::{
    engine, engine_with, eventually, options, page_bytes, prompts, story, tokens,
};

/// A prompt of many steps.
fn long() -> String {
    prompts(240).pop().unwrap()
}

fn reusing() -> EngineOptions {
    EngineOptions { prefix_caching: true, prefill_chunk: Some(16), ..options() }
}

#[test]
fn two_requests_with_the_same_new_prefix_compute_it_once() {
    let engine = engine_with(reusing());
    let texts = [format!("{} Tom", long()), format!("{} The cat", long())];
    let streams = texts.clone().map(|text| engine.submit(story(&text, 10)).unwrap());
    let mut prompt_tokens = 0;
    for (text, stream) in texts.iter().zip(streams) {
        let answer = stream.collect_all().unwrap();
        assert_eq!(
            answer.token_ids(),
            crate::support::engine().generate(story(text, 10)).unwrap().token_ids()
        );
        prompt_tokens += answer.usage.prompt_tokens as u64;
    }
    let metrics = engine.metrics();
    assert_eq!(metrics.shared_prefixes, 1);
    assert!(metrics.computed_prompt_tokens < prompt_tokens / 2 + 40, "{metrics:?}");
}

#[test]
fn a_request_that_waited_goes_on_alone_when_the_first_one_is_cancelled() {
    let engine = engine_with(reusing());
    let first = engine.submit(story(&long(), 10)).unwrap();
    let second = engine.submit(story(&format!("{} Tom", long()), 10)).unwrap();
    eventually("the second one waits", || engine.metrics().shared_prefixes == 1);
    first.cancel();
    assert!(matches!(first.collect_all().unwrap().finish_reason, FinishReason::Cancelled));
    let request = story(&format!("{} Tom", long()), 10);
    let expected = crate::support::engine().generate(request).unwrap();
    assert_eq!(second.collect_all().unwrap().token_ids(), expected.token_ids());
}

#[test]
fn nobody_waits_for_a_request_whose_consumer_is_slow() {
    let engine = engine_with(EngineOptions { stream_events: 1, ..reusing() });
    // Its first event fills the stream: nothing of its prompt is computed.
    let slow = engine.submit(story(&long(), 10)).unwrap();
    eventually("the slow one has its event", || engine.metrics().queued == 0);
    let text = format!("{} Tom", long());
    let answer = engine.generate(story(&text, 10)).unwrap();
    let expected = crate::support::engine().generate(story(&text, 10)).unwrap();
    assert_eq!(answer.token_ids(), expected.token_ids());
    assert_eq!(slow.collect_all().unwrap().tokens.len(), 10);
}

#[test]
fn a_message_that_ended_within_a_first_prompt_is_gone_on_from_when_windows_have_thinned() {
    let end = engine().text().tokenizer().unwrap().token_id("<|end|>").unwrap();
    // Position 304 ends the page in which the message ended.
    for (last, len, expected) in [(end, 300, 300), (end, 500, 304), (299, 300, 0), (299, 500, 0)] {
        // Two such prompts take 176 pages, 88 of them of the layers with full attention.
        let engine = engine_with(EngineOptions {
            prefix_caching: true,
            cache_bytes: Some(140 * page_bytes()),
            repeat_bytes: 0,
            max_batched_tokens: Some(64),
            ..options()
        });
        let ask = |ids: &[u32]| {
            let request = || Request::tokens(ids).max_tokens(4).greedy();
            let answer = engine.generate(request()).unwrap();
            let plain = crate::support::engine().generate(request()).unwrap();
            assert_eq!(answer.token_ids(), plain.token_ids());
            answer.usage.cached_tokens
        };
        let mut first = tokens(0);
        first[299] = last;
        assert_eq!((ask(&first), ask(&tokens(1))), (0, 0));
        eventually("the engine is idle", || engine.metrics().running == 0);
        let counts = engine.metrics().tiers.counts;
        assert!(counts.thinned_pages >= 36 && counts.evicted_pages == 0, "{counts:?}");
        assert_eq!(ask(&[&first[..len], &tokens(2)[..20]].concat()), expected, "{last}, {len}");
        assert_eq!(ask(&first), 699, "the last message's end is kept");
    }
}

#[test]
fn a_prompt_that_comes_again_needs_no_step() {
    let repeating = engine_with(reusing());
    let prompt = prompts(30).pop().unwrap();
    let request = |seed| Request {
        logprobs: Some(3),
        ignore_eos: true,
        ..Request::text(prompt.as_str()).max_tokens(9).seed(seed)
    };
    let first = repeating.generate(request(0)).unwrap();
    let computed = repeating.metrics().computed_prompt_tokens;
    for seed in 0..3 {
        let again = repeating.generate(request(seed)).unwrap();
        let expected = engine().generate(request(seed)).unwrap();
        assert_eq!(again.tokens, expected.tokens, "seed {seed}");
        assert_eq!(again.usage.cached_tokens, again.usage.prompt_tokens);
    }
    let one = repeating.generate(request(0).max_tokens(1)).unwrap();
    assert_eq!(one.tokens, first.tokens[..1]);
    assert!(matches!(one.finish_reason, FinishReason::Length));
    let none = repeating.generate(request(0).max_tokens(0)).unwrap();
    assert!(none.tokens.is_empty() && matches!(none.finish_reason, FinishReason::Length));
    let session = repeating.session();
    assert_eq!(session.generate(request(0)).unwrap().tokens, first.tokens);
    let metrics = repeating.metrics();
    assert_eq!((metrics.computed_prompt_tokens, metrics.repeated_prompts), (computed, 6));
    // Its log-probabilities need its rows.
    let scored = Request { prompt_logprobs: Some(0), ..request(0) };
    let expected = engine().generate(Request { prompt_logprobs: Some(0), ..request(0) }).unwrap();
    let got = repeating.generate(scored).unwrap();
    assert_eq!((got.prompt_logprobs, got.tokens), (expected.prompt_logprobs, expected.tokens));
}

#[test]
fn a_repeat_whose_pages_have_gone_is_computed() {
    // The first four of these prompts have nothing in common and at least 43 tokens, which take
    // three pages of each of two groups of layers: 24 pages.
    let options = EngineOptions { cache_bytes: Some(18 * page_bytes()), ..reusing() };
    let tight = engine_with(options);
    let texts = &prompts(24)[16..];
    for round in 0..2 {
        for text in texts {
            let answer = tight.generate(story(text, 12)).unwrap();
            let expected = engine().generate(story(text, 12)).unwrap();
            assert_eq!(answer.token_ids(), expected.token_ids(), "round {round}: {text}");
        }
    }
    let metrics = tight.metrics();
    // In the second round the logits of all are known, and not all of the pages.
    assert!(metrics.memory.repeats >= texts.len() * 4 * engine().config().vocabulary);
    assert!(metrics.repeated_prompts < texts.len() as u64, "{metrics:?}");
    assert!(metrics.tiers.counts.evicted_pages > 0, "{metrics:?}");
}

#[test]
fn a_constraint_decides_about_a_repeat_too() {
    use oss_engine::{Constraint, Mask, Result};
    struct Only(Mask);
    impl Constraint for Only {
        fn mask(&mut self) -> Result<Option<&Mask>> {
            Ok(Some(&self.0))
        }
        fn accept(&mut self, _token: u32) {}
    }
    let repeating = engine_with(reusing());
    repeating.generate(story("One day", 3)).unwrap();
    let mut mask = Mask::new(engine().config().vocabulary);
    mask.allow(700);
    let mut stream = repeating.submit(story("One day", 1).constrained(Only(mask))).unwrap();
    let token = stream.find_map(|event| match event {
        Ok(Event::Token(token)) => Some(token.id),
        _ => None,
    });
    assert_eq!((token, repeating.metrics().repeated_prompts), (Some(700), 1));
}
