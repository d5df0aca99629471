//! Guesses that are verified never change an answer.

use std::sync::OnceLock;

use oss_engine::{
    Completion, Dry, Engine, EngineOptions, Error, FinishReason, Mask, Request, Result, Sampling,
    Speculation, Token,
};

use crate::support::{engine, engine_with, options, prompts, story};

const EDGE: &[u8] = include_bytes!("../../../oss-demo/data/edge/edge.gguf");

fn with(speculation: Speculation) -> EngineOptions {
    EngineOptions { speculation, ..options() }
}

/// The same model without guesses, with few and with many.
fn engines() -> &'static [Engine; 4] {
    static ENGINES: OnceLock<[Engine; 4]> = OnceLock::new();
    ENGINES.get_or_init(|| {
        [Speculation::Off, Speculation::Always(1), Speculation::Always(15), Speculation::Auto]
            .map(|speculation| engine_with(with(speculation)))
    })
}

/// What must not depend on guesses.
fn parts(answer: &Completion) -> (Vec<Token>, String, &'static str, usize) {
    let (usage, text) = (answer.usage, answer.text.clone());
    (answer.tokens.clone(), text, answer.finish_reason.as_str(), usage.completion_tokens)
}

/// Asks all engines the same and holds the answers against the first one's.
fn all_agree(what: &str, request: impl Fn() -> Request) -> Completion {
    let [plain, guessing @ ..] = engines();
    let expected = plain.generate(request()).unwrap();
    for engine in guessing {
        let got = engine.generate(request()).unwrap();
        assert_eq!(parts(&got), parts(&expected), "{what}");
    }
    expected
}

/// A text that repeats itself, so that guesses come true.
fn refrain() -> String {
    "Tom has a red ball. ".repeat(6)
}

/// A request that goes on behind stop tokens: long answers of this model repeat themselves.
fn long(text: &str, tokens: usize) -> Request {
    Request { ignore_eos: true, logprobs: Some(2), ..story(text, tokens) }
}

/// The same, drawn.
fn hot(text: &str, temperature: f32, seed: u64) -> Request {
    let mut request = long(text, 60).seed(seed);
    request.sampling.temperature = Some(temperature);
    request
}

#[test]
fn greedy_answers_and_their_log_probabilities_are_the_same() {
    all_agree("a refrain", || long(&refrain(), 150));
    for prompt in prompts(4) {
        all_agree(&prompt, || long(&prompt, 60));
    }
    all_agree("wrong guesses", || hot(&refrain(), 1.5, 4));
    let [plain, guessing @ ..] = engines();
    assert_eq!(plain.metrics().drafted_tokens, 0);
    for engine in &guessing[..2] {
        let metrics = engine.metrics();
        assert!(metrics.accepted_drafts > 20, "{metrics:?}");
        assert!(metrics.accepted_drafts < metrics.drafted_tokens, "no guess was wrong");
    }
    // Before a step has shown what rows cost, guesses at a refrain are taken to pay.
    let auto = guessing[2].metrics();
    assert!(auto.drafted_tokens > 0, "{auto:?}");
}

#[test]
fn draws_are_the_same_at_every_temperature() {
    for (seed, temperature) in [(1, 0.3), (2, 0.8), (4, 1.5)] {
        for prompt in [refrain(), "Once upon a time".to_owned()] {
            all_agree(&prompt, || hot(&prompt, temperature, seed));
        }
    }
}

#[test]
fn penalties_see_the_tokens_that_were_drawn_and_no_guess() {
    let penalties = [
        Sampling { repetition_penalty: Some(1.3), ..Sampling::greedy() },
        Sampling { presence_penalty: Some(0.5), repeat_last_n: Some(7), ..Sampling::greedy() },
        Sampling { frequency_penalty: Some(0.4), ..Sampling::default() },
        Sampling { dry: Some(Dry { multiplier: 0.8, ..Dry::default() }), ..Sampling::greedy() },
    ];
    for sampling in penalties {
        all_agree(&format!("{sampling:?}"), || {
            let sampling = Sampling { seed: Some(5), ..sampling.clone() };
            Request { sampling, ..long(&refrain(), 80) }
        });
    }
}

/// A grammar with memory: one of two tokens, in turns of three and two.
struct Turns {
    masks: [Mask; 2],
    accepted: usize,
    most: usize,
}

impl Turns {
    fn new(vocabulary: usize, most: usize) -> Self {
        let only = |token: u32| {
            let mut mask = Mask::new(vocabulary);
            mask.allow(token);
            mask.allow(token + 1);
            mask
        };
        Self { masks: [only(700), only(900)], accepted: 0, most }
    }
}

impl oss_engine::Constraint for Turns {
    fn mask(&mut self) -> Result<Option<&Mask>> {
        Ok(Some(&self.masks[usize::from(self.accepted % 5 > 2)]))
    }
    fn accept(&mut self, token: u32) {
        let allowed = &self.masks[usize::from(self.accepted % 5 > 2)];
        assert!(allowed.is_allowed(token), "{token} was never drawn");
        self.accepted += 1;
    }
    fn is_finished(&self) -> bool {
        self.accepted == self.most
    }
}

#[test]
fn a_constraint_is_told_what_was_drawn_and_ends_the_answer_at_its_token() {
    let vocabulary = engine().config().vocabulary;
    for most in [1, 7, 40, 41, 42, 43] {
        let answer = all_agree(&format!("{most} tokens"), || {
            long("Once upon a time", 500).constrained(Turns::new(vocabulary, most))
        });
        assert_eq!(answer.tokens.len(), most);
        assert!(matches!(answer.finish_reason, FinishReason::Stop));
    }
}

#[test]
fn limits_stop_texts_and_stop_tokens_end_an_answer_within_a_guess() {
    let whole = all_agree("the whole", || long(&refrain(), 90));
    for tokens in 70..80 {
        let answer = all_agree(&format!("{tokens} tokens"), || long(&refrain(), tokens));
        assert_eq!(answer.token_ids(), whole.token_ids()[..tokens]);
    }
    let middle = whole.text.char_indices().map(|(at, _)| at).skip(whole.text.len() / 2);
    for at in middle.take(6).filter(|at| whole.text.is_char_boundary(at + 5)) {
        let stop = &whole.text[at..at + 5];
        all_agree(stop, || long(&refrain(), 90).stop(stop));
    }
    let end = whole.tokens.len() - 10;
    all_agree("held back", || long(&refrain(), 90).stop(" ").min_tokens(end));
    for token in whole.token_ids().into_iter().skip(40).take(4) {
        all_agree(&format!("stop token {token}"), || Request {
            stop_token_ids: vec![token],
            ..story(&refrain(), 90)
        });
    }
}

#[test]
fn sixteen_requests_together_get_the_tokens_of_each_alone() {
    let request = |index: usize| {
        let text = format!("{}{}", refrain(), prompts(16)[index]);
        let request = long(&text, 20 + 3 * index).seed(index as u64);
        if index.is_multiple_of(3) { request } else { Request { sampling: warm(index), ..request } }
    };
    let [plain, guessing @ ..] = engines();
    let alone: Vec<_> = (0..16).map(|i| plain.generate(request(i)).unwrap()).collect();
    for engine in guessing {
        let streams: Vec<_> = (0..16).map(|i| engine.submit(request(i)).unwrap()).collect();
        for (index, stream) in streams.into_iter().enumerate() {
            let got = stream.collect_all().unwrap();
            assert_eq!(parts(&got), parts(&alone[index]), "request {index}");
        }
    }
}

fn warm(index: usize) -> Sampling {
    Sampling { temperature: Some(0.7), seed: Some(index as u64), ..Sampling::default() }
}

#[test]
fn few_rows_few_pages_and_reused_prefixes_change_nothing() {
    let plain = &engines()[0];
    let always = with(Speculation::Always(9));
    for options in [
        EngineOptions { max_batched_tokens: Some(3), ..always.clone() },
        EngineOptions { cache_bytes: Some(700 << 10), ..always.clone() },
        EngineOptions { prefix_caching: true, threads: Some(2), ..always },
    ] {
        let engine = engine_with(options);
        let request = |prompt: &String| long(&(refrain() + prompt), 60);
        for _ in 0..2 {
            let streams: Vec<_> =
                prompts(8).iter().map(|p| engine.submit(request(p)).unwrap()).collect();
            for (prompt, stream) in prompts(8).iter().zip(streams) {
                let expected = plain.generate(request(prompt)).unwrap();
                let got = stream.collect_all().unwrap();
                assert_eq!(parts(&got), parts(&expected), "{prompt}");
            }
        }
    }
}

#[test]
fn wrong_guesses_behind_the_windows_of_a_random_model_change_nothing() {
    // Its layers have windows, its answers are noise with repetitions: few guesses come true.
    let ask = |speculation| {
        let engine = Engine::from_bytes_with(EDGE, with(speculation)).unwrap();
        let most = engine.context_len();
        let ids: Vec<u32> = (0..300_u32).map(|i| i * i % 11 + 3).collect();
        let request = |seed| Request {
            ignore_eos: true,
            logprobs: Some(1),
            ..Request::tokens(&ids[..(most / 2).min(300)]).max_tokens(120).seed(seed)
        };
        let answers: Vec<_> =
            (0..3).map(|seed| engine.generate(request(seed)).unwrap().tokens).collect();
        let greedy = engine.generate(request(0).greedy()).unwrap().tokens;
        (answers, greedy, engine.metrics())
    };
    let (answers, greedy, _) = ask(Speculation::Off);
    for guesses in [1, 4, 15] {
        let (got, got_greedy, metrics) = ask(Speculation::Always(guesses));
        assert!(got == answers && got_greedy == greedy, "{guesses} guesses");
        assert!(metrics.drafted_tokens > metrics.accepted_drafts, "{metrics:?}");
    }
}

#[test]
fn what_was_guessed_wrong_is_not_kept() {
    let seen = |speculation| {
        let engine = engine_with(EngineOptions { prefix_caching: true, ..with(speculation) });
        // Of two tokens any may come: most guesses are wrong.
        let turns = || Turns::new(engine.config().vocabulary, usize::MAX);
        let request = |seed| hot(&refrain(), 1.5, seed).constrained(turns());
        let ask = |seed| parts(&engine.generate(request(seed)).unwrap());
        let answers: Vec<_> = (1..5).map(ask).collect();
        assert_eq!(engine.check_books().unwrap(), 0, "pages that nobody gave back");
        let metrics = engine.metrics();
        let wrong = metrics.drafted_tokens - metrics.accepted_drafts;
        (answers, metrics.tiers.counts.inserted_blocks, wrong)
    };
    let (answers, blocks, _) = seen(Speculation::Off);
    for guesses in [4, 15] {
        let (got, got_blocks, wrong) = seen(Speculation::Always(guesses));
        assert!(got == answers, "{guesses} guesses");
        assert!(wrong > 100, "{wrong} wrong guesses: too few complete a page");
        assert_eq!(got_blocks, blocks, "{guesses} guesses");
    }
}

#[test]
fn a_session_goes_on_from_the_same_place() {
    let request = |turn: &str| long(&(refrain() + turn), 50);
    let [plain, guessing @ ..] = engines();
    let expected = plain.session();
    let mut sessions: Vec<_> = guessing.iter().map(Engine::session).collect();
    for turn in ["", "Tom has", "Tom has a red ball. Then"] {
        let expected = expected.generate(request(turn)).unwrap();
        for session in &mut sessions {
            let got = session.generate(request(turn)).unwrap();
            assert_eq!(parts(&got), parts(&expected), "{turn}");
            assert_eq!(got.usage, expected.usage, "{turn}");
        }
    }
}

#[test]
fn more_guesses_than_a_sequence_can_take_back_are_refused() {
    for guesses in [0, 16] {
        let options = with(Speculation::Always(guesses));
        let error = Engine::from_bytes_with(oss_demo::GGUF, options).unwrap_err();
        assert!(matches!(error, Error::Option { field: "speculation", .. }), "{error}");
    }
}
