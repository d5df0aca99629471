//! Answers, events and what they report.

use std::future::poll_fn;
use std::ops::ControlFlow;
use std::pin::Pin;

use oss_engine::{
    Constraint, Engine, ErrorKind, Event, FinishReason, Grammar, Mask, Prompt, Request, Result,
    Sampling,
};
use oss_text::{Special, Tokenizer};
use serde_json::Value;

use crate::support::{block_on, engine, engine_with, exact, story};

const GOLDEN: [(&str, &str); 6] = [
    ("short", include_str!("../../../oss-demo/data/golden/short.json")),
    ("chat", include_str!("../../../oss-demo/data/golden/chat.json")),
    ("tool", include_str!("../../../oss-demo/data/golden/tool.json")),
    ("unicode", include_str!("../../../oss-demo/data/golden/unicode.json")),
    ("window", include_str!("../../../oss-demo/data/golden/window.json")),
    ("long", include_str!("../../../oss-demo/data/golden/long.json")),
];

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

#[test]
fn greedy_answers_are_those_of_the_reference() {
    let engine = engine_with(exact());
    for (name, golden) in GOLDEN {
        let golden: Value = serde_json::from_str(golden).unwrap();
        let expected = ids(&golden["greedy_token_ids"]);
        let prompt = Prompt::WithSpecialTokens(golden["prompt"].as_str().unwrap().to_owned());
        let request = Request::new(prompt).max_tokens(expected.len()).greedy();
        let answer = engine.generate(request).unwrap();
        assert_eq!(*answer.prompt_token_ids, ids(&golden["token_ids"]), "{name}");
        assert_eq!(answer.token_ids(), expected, "{name}");
        let text = engine.text().tokenizer().unwrap().decode(&answer.token_ids());
        assert_eq!(text, golden["greedy_text"].as_str().unwrap(), "{name}");
    }
}

#[test]
fn the_prompt_log_probability_is_that_of_the_reference() {
    let engine = engine_with(exact());
    for (name, golden) in &GOLDEN[..4] {
        let golden: Value = serde_json::from_str(golden).unwrap();
        let prompt = ids(&golden["token_ids"]);
        let request = Request { prompt_logprobs: Some(1), ..Request::tokens(prompt.clone()) };
        let answer = engine.generate(request.max_tokens(0)).unwrap();
        let tokens = answer.prompt_logprobs;
        assert_eq!(tokens.iter().map(|token| token.id).collect::<Vec<_>>(), prompt, "{name}");
        assert!(answer.tokens.is_empty());
        assert_eq!((tokens[0].logprob, tokens[0].top.len()), (None, 0));
        for token in &tokens[1..] {
            let ([(best, most)], Some(own)) = (&token.top[..], token.logprob) else {
                panic!("{name}: one best token and its own number, got {token:?}")
            };
            assert!(*most > own || (*most == own && *best == token.id), "{token:?}");
        }
        let got: f64 = tokens.iter().filter_map(|token| token.logprob).map(f64::from).sum();
        let expected = -golden["nll_prompt"].as_f64().unwrap();
        assert!((got - expected).abs() < 1e-3 * expected.abs(), "{name}: {got}, {expected}");
    }
    // The best ones are the prompt's alone.
    let prompt_only = Request { prompt_logprobs: Some(3), ..story("Once", 4) };
    let answer = engine.generate(prompt_only).unwrap();
    assert!(answer.tokens.iter().all(|token| token.logprob.is_none() && token.top.is_empty()));
    let vocabulary = engine.config().vocabulary;
    let too_many = Request { prompt_logprobs: Some(vocabulary + 1), ..story("Once", 4) };
    assert_eq!(engine.generate(too_many).unwrap_err().field(), Some("prompt_logprobs"));
    let too_many = Request { logprobs: Some(vocabulary + 1), ..story("Once", 4) };
    assert_eq!(engine.generate(too_many).unwrap_err().field(), Some("logprobs"));
}

#[test]
fn a_story_is_told_and_its_events_add_up() {
    let mut events = Vec::new();
    let answer = engine()
        .generate_with(story("Once upon a time", 30), |event| {
            events.push(event.clone());
            ControlFlow::Continue(())
        })
        .unwrap();
    assert!(matches!(events[0], Event::Admitted { cached_tokens: 0 }));
    assert!(matches!(events.last(), Some(Event::End(_))));
    let text: String = events
        .iter()
        .filter_map(|event| match event {
            Event::Text(text) => Some(text.as_str()),
            _ => None,
        })
        .collect();
    assert_eq!(text, answer.text);
    assert!(matches!(answer.finish_reason, FinishReason::Length));
    assert_eq!((answer.usage.prompt_tokens, answer.usage.completion_tokens), (4, 30));
    assert!(answer.timing.first_token.unwrap() <= answer.timing.total);
    assert!(answer.timing.per_token.is_some());
    assert_eq!(answer.report().tokens, 30);
}

#[test]
fn a_story_ends_by_itself_and_its_last_token_is_no_text() {
    let answer = engine().generate(story("Once upon a time", 500)).unwrap();
    assert!(matches!(answer.finish_reason, FinishReason::Stop));
    assert!(answer.text.ends_with('.'), "{}", answer.text);
    let stop = answer.tokens.last().unwrap().id;
    assert!(engine().text().stops().contains(&stop));
}

#[test]
fn stop_texts_never_show_in_part_wherever_tokens_end() {
    let whole = engine().generate(story("Once upon a time", 60)).unwrap().text;
    // Every stretch of four characters of the beginning, so that tokens end at every place in it.
    for at in (4..40).filter(|at| whole.is_char_boundary(*at) && whole.is_char_boundary(at + 4)) {
        let stop = &whole[at..at + 4];
        let first = whole.find(stop).unwrap();
        let answer = engine().generate(story("Once upon a time", 60).stop(stop)).unwrap();
        assert_eq!(answer.text, whole[..first], "{stop:?}");
        assert!(matches!(answer.finish_reason, FinishReason::Stop));
    }
}

#[test]
fn an_answer_has_at_least_so_many_tokens_whatever_would_end_it() {
    let ask = |request: Request| engine().generate(request).unwrap();
    let once = || story("Once upon a time", 500);
    let plain = ask(once());
    let (len, stops) = (plain.tokens.len(), engine().text().stops());
    // The last token is the one that ends it.
    assert_eq!(ask(once().min_tokens(len - 1)).token_ids(), plain.token_ids());
    let longer = ask(once().min_tokens(len + 10));
    let ends: Vec<bool> = longer.token_ids().iter().map(|id| stops.contains(id)).collect();
    assert!(matches!(longer.finish_reason, FinishReason::Stop));
    assert!(ends.len() > len + 10 && !ends[..len + 10].contains(&true), "{ends:?}");
    assert_eq!(longer.token_ids()[..len - 1], plain.token_ids()[..len - 1]);

    let unbounded = ask(once().stop("."));
    let bounded = ask(once().stop(".").min_tokens(len / 2));
    assert!(unbounded.tokens.len() < len / 2 && bounded.tokens.len() > len / 2);
    assert!(plain.text.starts_with(&bounded.text) && bounded.text.contains('.'));
    let token = plain.token_ids()[3];
    let own = || Request { stop_token_ids: vec![token], ignore_eos: true, ..once() };
    assert_eq!(ask(own()).tokens.len(), 4);
    let held = ask(own().min_tokens(6).max_tokens(30));
    assert!(held.tokens.len() > 6 && !held.token_ids()[..6].contains(&token));

    let refused = engine().generate(once().min_tokens(501)).unwrap_err();
    assert_eq!((refused.field(), refused.kind()), (Some("min_tokens"), ErrorKind::InvalidInput));
    assert_eq!(
        refused.to_string(),
        "option min_tokens: got 501, expected at most max_tokens (500)"
    );
}

#[test]
fn a_grammar_goes_on_as_far_as_it_can_where_a_fewest_of_tokens_is_asked_for() {
    for ignore_eos in [false, true] {
        let ask = |most: usize, tokens: usize| {
            let grammar = Grammar::regex(format!("(ab ){{1,{most}}}"));
            let request = Request::text("Say").grammar(grammar).min_tokens(tokens).greedy();
            engine().generate(Request { ignore_eos, ..request }).unwrap()
        };
        let (free, long, over) = (ask(40, 0), ask(40, 20), ask(2, 50));
        assert!(free.tokens.len() < 20, "{}", free.text);
        assert!(long.tokens.len() >= 20 && long.text.starts_with(&free.text), "{}", long.text);
        let stops = engine().text().stops();
        assert!(
            long.token_ids()[..20].iter().all(|id| !stops.contains(id)),
            "{:?}",
            long.token_ids()
        );
        assert_eq!(over.text, "ab ab ");
        assert!(
            [free, long, over]
                .iter()
                .all(|answer| matches!(answer.finish_reason, FinishReason::Stop))
        );
    }
}

#[test]
fn a_seed_gives_the_same_answer_again_and_another_choice_gives_another() {
    let ask = |choice, seed| {
        let sampling = Sampling { temperature: Some(1.5), seed, ..Sampling::default() };
        let request = Request { sampling, choice, ..Request::text("One day") };
        engine().generate(request.max_tokens(24)).unwrap()
    };
    let first = ask(0, Some(7));
    assert_eq!(first.token_ids(), ask(0, Some(7)).token_ids());
    assert_ne!(first.token_ids(), ask(1, Some(7)).token_ids());
    let random = ask(0, None);
    assert_eq!(random.token_ids(), ask(0, Some(random.seed)).token_ids());
}

#[test]
fn log_probabilities_come_with_the_best_tokens() {
    let request = Request { logprobs: Some(3), ..story("Once upon a time", 5) };
    for token in engine().generate(request).unwrap().tokens {
        assert_eq!(token.top.len(), 3);
        assert_eq!(token.top[0], (token.id, token.logprob.unwrap()));
        assert!(token.top[0].1 >= token.top[1].1 && token.top[1].1 >= token.top[2].1);
    }
}

#[test]
fn names_of_control_tokens_in_a_text_are_text() {
    let engine = engine();
    let plain = engine.submit(Request::text("a<|end|>b").max_tokens(1)).unwrap();
    let tokenizer = engine.text().tokenizer().unwrap();
    assert!(plain.prompt_token_ids().iter().all(|id| !tokenizer.is_special(*id)));
    let markup = Request::with_special_tokens("a<|end|>b").max_tokens(1);
    let markup = engine.submit(markup).unwrap();
    assert!(markup.prompt_token_ids().iter().any(|id| tokenizer.is_special(*id)));
}

/// Digits, then nothing more after `most` of them.
struct Digits {
    mask: Mask,
    accepted: usize,
    most: usize,
}

impl Digits {
    fn new(tokenizer: &Tokenizer, vocabulary: usize, most: usize) -> Self {
        let mut mask = Mask::new(vocabulary);
        for digit in 0..10 {
            mask.allow(tokenizer.encode(&digit.to_string(), Special::AsText)[0]);
        }
        Self { mask, accepted: 0, most }
    }
}

impl Constraint for Digits {
    fn mask(&mut self) -> Result<Option<&Mask>> {
        Ok(Some(&self.mask))
    }
    fn accept(&mut self, _token: u32) {
        self.accepted += 1;
    }
    fn is_finished(&self) -> bool {
        self.accepted == self.most
    }
}

#[test]
fn a_constraint_decides_what_comes_and_when_it_is_over() {
    let engine = engine();
    let vocabulary = engine.config().vocabulary;
    let digits = Digits::new(engine.text().tokenizer().unwrap(), vocabulary, 6);
    let request = Request::text("Once upon a time").greedy().constrained(digits);
    let answer = engine.generate(request).unwrap();
    assert_eq!(answer.text.len(), 6);
    assert!(answer.text.bytes().all(|byte| byte.is_ascii_digit()), "{}", answer.text);
    assert!(matches!(answer.finish_reason, FinishReason::Stop));
}

#[test]
fn async_code_reads_a_stream_without_a_runtime() {
    use futures_core::Stream as _;
    let request = || story("There was a", 12);
    let expected = engine().generate(request()).unwrap();
    let mut stream = engine().submit(request()).unwrap().into_async();
    let text = block_on(async {
        let mut text = String::new();
        while let Some(event) = poll_fn(|context| Pin::new(&mut stream).poll_next(context)).await {
            if let Event::Text(more) = event.unwrap() {
                text.push_str(&more);
            }
        }
        text
    });
    assert_eq!(text, expected.text);
    // How it ended is still to be had, as from a stream that blocks.
    assert_eq!(block_on(stream.collect_all()).unwrap().usage, expected.usage);
    let whole = block_on(engine().submit(request()).unwrap().into_async().collect_all()).unwrap();
    assert_eq!((whole.token_ids(), whole.text), (expected.token_ids(), expected.text));
}

#[test]
fn a_copy_of_a_request_gets_the_same_answer() {
    let sampling = Sampling { temperature: Some(1.5), seed: Some(3), ..Sampling::default() };
    let request = Request { sampling, logprobs: Some(2), ..Request::text("One day").max_tokens(9) };
    let request = request.stop("dog").min_tokens(2);
    let copy = request.try_clone().expect("it has no constraint");
    let [answer, again] = [request, copy].map(|request| engine().generate(request).unwrap());
    assert_eq!((again.tokens, again.text), (answer.tokens, answer.text));
    let digits = Digits::new(engine().text().tokenizer().unwrap(), engine().config().vocabulary, 1);
    assert!(story("One day", 1).constrained(digits).try_clone().is_none());
}

#[test]
fn safetensors_and_gguf_give_the_same_tokens() {
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in oss_demo::files() {
        std::fs::write(folder.path().join(name), bytes).unwrap();
    }
    let loaded = Engine::load_with(folder.path(), crate::support::options()).unwrap();
    let request = || story("The little dog", 32);
    let (a, b) = (loaded.generate(request()).unwrap(), engine().generate(request()).unwrap());
    assert_eq!(a.token_ids(), b.token_ids());
    assert_eq!(loaded.text().stops(), engine().text().stops());
}
