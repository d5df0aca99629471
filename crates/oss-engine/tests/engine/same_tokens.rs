//! The same request gives the same tokens, whatever happens around it.

use oss_engine::{ChatRequest, ColdTier, EngineOptions, Request, Team};
use oss_text::chat::Message;

use crate::support::{engine, engine_with, options, prompts, story};

#[test]
fn sixteen_requests_at_once_get_the_tokens_of_each_alone() {
    let prompts = prompts(16);
    let request = |index: usize| {
        let request = Request::text(&prompts[index]).max_tokens(10 + index).seed(index as u64);
        if index.is_multiple_of(2) { request.greedy() } else { request }
    };
    let alone: Vec<_> =
        (0..16).map(|i| engine().generate(request(i)).unwrap().token_ids()).collect();
    let streams: Vec<_> = (0..16).map(|i| engine().submit(request(i)).unwrap()).collect();
    for (index, stream) in streams.into_iter().enumerate() {
        assert_eq!(stream.collect_all().unwrap().token_ids(), alone[index], "request {index}");
    }
}

#[test]
fn the_size_of_chunks_and_the_number_of_threads_change_nothing() {
    let prompt = prompts(40).pop().unwrap();
    let ask = |options: EngineOptions| {
        let request = Request { prompt_logprobs: Some(3), logprobs: Some(2), ..story(&prompt, 16) };
        let answer = engine_with(options).generate(request).unwrap();
        (answer.tokens, answer.prompt_logprobs)
    };
    let expected = ask(EngineOptions { prefill_chunk: Some(64), ..options() });
    for chunk in [1, 7] {
        let got = ask(EngineOptions { prefill_chunk: Some(chunk), ..options() });
        assert_eq!(got, expected, "chunks of {chunk}");
    }
    assert_eq!(ask(EngineOptions { threads: Some(2), ..options() }), expected, "two threads");
    assert_eq!(
        ask(EngineOptions { max_batched_tokens: Some(3), ..options() }),
        expected,
        "three rows a step"
    );
}

#[test]
fn engines_that_share_a_team_answer_as_if_each_had_its_own() {
    let prompts = prompts(6);
    let request = |index: usize| story(&prompts[index], 20);
    let alone: Vec<_> =
        (0..6).map(|i| engine().generate(request(i)).unwrap().token_ids()).collect();
    let team = Team::new(2).unwrap();
    let sharing = || EngineOptions { team: Some(team.clone()), threads: None, ..options() };
    let engines = [(); 2].map(|()| engine_with(sharing()));
    let streams: Vec<_> = (0..6).map(|i| engines[i % 2].submit(request(i)).unwrap()).collect();
    for (index, stream) in streams.into_iter().enumerate() {
        assert_eq!(stream.collect_all().unwrap().token_ids(), alone[index], "request {index}");
    }
}

#[test]
fn a_sequence_that_lost_its_pages_goes_on_as_if_nothing_had_happened() {
    let prompts = prompts(12);
    // Room for about three of them.
    let tight = EngineOptions { cache_bytes: Some(700 << 10), ..options() };
    let tight = engine_with(EngineOptions { prefill_chunk: Some(8), ..tight });
    let request = |prompt| Request { prompt_logprobs: Some(1), ..story(prompt, 60) };
    let streams: Vec<_> =
        prompts.iter().map(|prompt| tight.submit(request(prompt)).unwrap()).collect();
    for (prompt, stream) in prompts.iter().zip(streams) {
        let expected = engine().generate(request(prompt)).unwrap();
        let got = stream.collect_all().unwrap();
        assert_eq!(got.token_ids(), expected.token_ids());
        assert_eq!(got.prompt_logprobs, expected.prompt_logprobs);
    }
    assert!(tight.metrics().preempted > 0, "the cache was not tight");
}

#[test]
fn a_sequence_that_lost_its_pages_computes_nothing_twice_where_a_tier_kept_them() {
    let directory = tempfile::tempdir().unwrap();
    let cold = ColdTier { directory: directory.path().to_owned(), bytes: 64 << 20 };
    let tight = EngineOptions { cache_bytes: Some(700 << 10), cold: Some(cold), ..options() };
    let tight = engine_with(EngineOptions { prefix_caching: true, ..tight });
    let prompts = prompts(12);
    let streams: Vec<_> =
        prompts.iter().map(|prompt| tight.submit(story(prompt, 60)).unwrap()).collect();
    let mut computed = 0;
    for (prompt, stream) in prompts.iter().zip(streams) {
        let got = stream.collect_all().unwrap();
        assert_eq!(got.token_ids(), engine().generate(story(prompt, 60)).unwrap().token_ids());
        computed += got.usage.prompt_tokens - got.usage.cached_tokens;
    }
    let metrics = tight.metrics();
    assert!(metrics.preempted > 0, "the cache was not tight");
    let counts = metrics.tiers.counts;
    assert!(counts.evicted_pages > 0 && counts.cold_hits > 0, "{counts:?}");
    // Fewer pages than may wait to be written: none is given up, however slow the disk is.
    assert_eq!(counts.cold.dropped_writes, 0, "{counts:?}");
    assert_eq!(metrics.computed_prompt_tokens, computed as u64, "{metrics:?}");
}

#[test]
fn a_session_gives_the_tokens_of_a_fresh_prompt_and_computes_less() {
    let session = engine().session();
    let mut messages = Vec::new();
    let mut cached = Vec::new();
    for question in ["What is 17 + 25?", "What is the capital of Peru?", "And what is 3 + 4?"] {
        messages.push(Message::user(question));
        let request = || Request::chat(ChatRequest::new(messages.clone())).greedy().max_tokens(80);
        let fresh = engine().generate(request()).unwrap();
        let kept = session.generate(request()).unwrap();
        assert_eq!(kept.token_ids(), fresh.token_ids(), "{question}");
        assert_eq!((kept.text.clone(), fresh.usage.cached_tokens), (fresh.text, 0));
        cached.push((kept.usage.cached_tokens, kept.usage.prompt_tokens));
        messages.push(kept.message());
    }
    assert_eq!(cached[0].0, 0);
    assert!(cached[1].0 >= 66 && cached[2].0 > cached[1].0, "{cached:?}");
}

#[test]
fn a_session_that_goes_on_with_its_own_answer_computes_only_what_is_new() {
    let session = engine().session();
    let first = session.generate(story("Once upon a time", 20)).unwrap();
    let mut ids = first.prompt_token_ids.to_vec();
    ids.extend(first.token_ids());
    ids.extend(engine().text().encode(" The end", oss_text::Special::AsText).unwrap());
    let request = || Request::tokens(ids.clone()).max_tokens(10).greedy();
    let fresh = engine().generate(request()).unwrap();
    let kept = session.generate(request()).unwrap();
    assert_eq!(kept.token_ids(), fresh.token_ids());
    // The last drawn token was never computed.
    assert_eq!(kept.usage.cached_tokens, 4 + 20 - 1);
}

#[test]
fn a_prompt_that_begins_as_an_earlier_one_computes_the_rest_alone() {
    let reusing = engine_with(EngineOptions { prefix_caching: true, ..options() });
    let story = |text: &str| story(text, 40);
    // Longer than the window, cut at every kind of place: within a page, at its end, in the window.
    let long = prompts(60).pop().unwrap();
    let first = reusing.generate(story(&long)).unwrap();
    assert_eq!(first.usage.cached_tokens, 0);
    for cut in [long.len(), long.len() - 1, long.len() / 2, 40, 17] {
        let prompt = format!("{} Then", &long[..cut]);
        let expected = engine().generate(story(&prompt)).unwrap();
        for round in 0..2 {
            let got = reusing.generate(story(&prompt)).unwrap();
            assert_eq!(got.token_ids(), expected.token_ids(), "{cut} bytes, round {round}");
        }
    }
    let again = reusing.generate(story(&long)).unwrap();
    assert_eq!(again.token_ids(), first.token_ids());
    assert_eq!(again.usage.cached_tokens, again.usage.prompt_tokens, "its logits are known too");
    assert!(reusing.metrics().cached_tokens > 0);
}

#[test]
fn pages_that_are_taken_away_and_found_again_change_nothing() {
    let prompts = prompts(12);
    let cache_bytes = Some(700 << 10);
    let options = EngineOptions { cache_bytes, prefix_caching: true, ..options() };
    let tight = engine_with(options);
    let streams: Vec<_> =
        prompts.iter().map(|prompt| tight.submit(story(prompt, 60)).unwrap()).collect();
    for (prompt, stream) in prompts.iter().zip(streams) {
        let expected = engine().generate(story(prompt, 60)).unwrap();
        assert_eq!(stream.collect_all().unwrap().token_ids(), expected.token_ids());
    }
    let metrics = tight.metrics();
    assert!(metrics.preempted > 0, "the cache was not tight");
    assert!(metrics.tiers.counts.evicted_pages > 0, "{metrics:?}");
}
