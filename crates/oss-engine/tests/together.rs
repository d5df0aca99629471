//! Everything at once: whatever happens around a request, its tokens and log-probabilities are
//! those of a plain engine.
//!
//! An engine with a tight cache, all tiers and random options, now and then with less memory than
//! the model has weights, serves random requests: alone and among others, in sessions, cancelled at
//! random moments, with prompts that share prefixes with earlier ones, preempted and resumed. Now
//! and then it is closed and another one, with other options, finds what it has left in its file.
//!
//! `OSS_ENGINE_TOGETHER_STEPS` sets how many operations there are.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use oss_engine::model::{Precision, pack_to_file};
use oss_engine::weights::Container;
use oss_engine::{
    ColdTier, Engine, EngineOptions, Error, Event, Fault, Finish, PolicyKind, Request, Session,
    SparseAttention, Speculation, Stream, Token, Tune,
};
use oss_testing::Seeded;

const EDGE: &[u8] = include_bytes!("../../oss-demo/data/edge/edge.gguf");
/// The longest requests leave blocks out.
const SPARSE: SparseAttention = SparseAttention { first: 64, window: 32, blocks: 1 };
const CASES: [(&[u8], Option<SparseAttention>); 3] =
    [(oss_demo::GGUF, None), (EDGE, None), (oss_demo::GGUF, Some(SPARSE))];
/// Operations of a run without `OSS_ENGINE_TOGETHER_STEPS`.
const STEPS: usize = 400;
/// The longest answer.
const MOST: usize = 24;
/// The most requests at once.
const MOST_OPEN: usize = 16;
/// Requests that differ in what they ask for.
const KINDS: usize = 48;
/// Operations before an engine is closed, on average.
const LIFE: usize = 100;

/// One of the requests: a prompt and how to draw.
#[derive(Clone, Debug)]
struct Kind {
    prompt: Vec<u32>,
    seed: u64,
    greedy: bool,
}

impl Kind {
    fn request(&self, tokens: usize) -> Request {
        let request = Request {
            logprobs: Some(4),
            ignore_stops: true,
            ..Request::tokens(self.prompt.clone()).max_tokens(tokens).seed(self.seed)
        };
        if self.greedy { request.greedy() } else { request }
    }
}

/// Prompts that begin as one another, up to several pages and windows long.
fn kinds(seeded: &mut Seeded, vocabulary: usize, context: usize) -> Vec<Kind> {
    let mut kinds: Vec<Kind> = Vec::new();
    for index in 0..KINDS {
        let mut prompt = match index % 4 {
            0 => Vec::new(),
            _ => {
                let earlier = &kinds[seeded.below(index)].prompt;
                earlier[..1 + seeded.below(earlier.len())].to_vec()
            }
        };
        let more = 1 + seeded.below([20, 60, 200][index % 3]);
        // Few different tokens, so that answers repeat themselves and guesses come true.
        prompt.extend((0..more).map(|_| (300 + seeded.below(12)) as u32 % vocabulary as u32));
        prompt.truncate(context - MOST);
        let greedy = seeded.below(2) == 0;
        kinds.push(Kind { prompt, seed: seeded.bits() % 3, greedy });
    }
    kinds
}

/// What a plain engine answers, by kind: the longest answer, of which others are the beginning.
struct Expected {
    engine: Engine,
    answers: HashMap<usize, Vec<Token>>,
}

impl Expected {
    fn new(model: &'static [u8], sparse_attention: Option<SparseAttention>) -> Self {
        let options = EngineOptions {
            threads: Some(1),
            reuse_prefixes: false,
            speculation: Speculation::Off,
            cache_bytes: Some(32 << 20),
            sparse_attention,
            tune: Tune::Off,
            system_root: calm(),
            ..EngineOptions::default()
        };
        let engine = Engine::from_bytes_with(model, options).unwrap();
        Self { engine, answers: HashMap::new() }
    }

    fn of(&mut self, index: usize, kind: &Kind) -> &[Token] {
        let engine = &self.engine;
        let answer = || engine.generate(kind.request(MOST)).unwrap().tokens;
        self.answers.entry(index).or_insert_with(answer)
    }
}

/// A system that says nothing about its memory.
fn calm() -> PathBuf {
    PathBuf::from("/no/such/folder")
}

fn random_options(seeded: &mut Seeded, directory: &Path, tight: usize) -> EngineOptions {
    let cold = ColdTier { directory: directory.to_path_buf(), bytes: 2 << 20 };
    let some = |seeded: &mut Seeded| seeded.below(3) > 0;
    EngineOptions {
        threads: Some(1 + seeded.below(2)),
        cache_bytes: Some(tight * (2 + seeded.below(5)) / 2),
        warm_bytes: if some(seeded) { tight } else { 0 },
        cold: some(seeded).then_some(cold),
        eviction: PolicyKind::ALL[seeded.below(4)],
        repeat_bytes: [0, 20_000, 1 << 20][seeded.below(3)],
        reuse_prefixes: some(seeded) || some(seeded),
        speculation: [Speculation::Off, Speculation::Auto, Speculation::Always(4)][seeded.below(3)],
        max_rows: Some([3, 16, 128][seeded.below(3)]),
        prefill_chunk: Some([5, 32, 128][seeded.below(3)]),
        max_sequences: Some([1, 3, 16][seeded.below(3)]),
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
    limited(expected + seeded.below(expected / 8)).unwrap()
}

/// A request on its way.
struct Open {
    kind: usize,
    most: usize,
    stream: Stream,
    tokens: Vec<Token>,
    finish: Option<Finish>,
}

impl Open {
    fn take(&mut self, event: Event) {
        match event {
            Event::Token(token) => self.tokens.push(token),
            Event::End(end) => self.finish = Some(end.finish),
            _ => {}
        }
    }
}

/// One engine's life.
struct Run<'a> {
    engine: Engine,
    sessions: Vec<Session>,
    open: Vec<Open>,
    kinds: &'a [Kind],
    expected: &'a mut Expected,
    counts: &'a mut Counts,
    faults: usize,
}

/// What has happened, so that a run cannot pass by doing nothing.
#[derive(Debug, Default)]
struct Counts {
    answers: u64,
    cancelled: u64,
    faults: u64,
    preempted: u64,
    shared: u64,
    repeated: u64,
    hot: u64,
    warm: u64,
    cold: u64,
    drafts: u64,
    restored: u64,
    missed_experts: u64,
}

impl Run<'_> {
    fn step(&mut self, seeded: &mut Seeded) {
        match seeded.below(20) {
            0..7 => {
                let kind = seeded.below(self.kinds.len());
                // Now and then twice: the second one may wait for the first.
                (0..1 + seeded.below(5) / 4).for_each(|_| self.submit(kind, seeded));
            }
            7..13 => self.take_some(seeded),
            13..16 => self.finish_one(seeded),
            16 => self.cancel_one(seeded),
            17 => drop(self.take_open(seeded)), // cancels too
            18 => match self.sessions.len() {
                3.. => drop(self.sessions.swap_remove(seeded.below(3))),
                _ => self.sessions.push(self.engine.session()),
            },
            _ => self.fault(seeded),
        }
        if self.open.len() > MOST_OPEN {
            self.finish_one(seeded);
        }
    }

    fn submit(&mut self, kind: usize, seeded: &mut Seeded) {
        let most = seeded.below(MOST + 1);
        let request = self.kinds[kind].request(most);
        let request = Request { priority: seeded.below(3) as i32, ..request };
        let stream = match self.sessions.len() {
            n @ 1.. if seeded.below(3) == 0 => self.sessions[seeded.below(n)].submit(request),
            _ => self.engine.submit(request),
        };
        let stream = stream.unwrap();
        self.open.push(Open { kind, most, stream, tokens: Vec::new(), finish: None });
    }

    fn take_open(&mut self, seeded: &mut Seeded) -> Option<Open> {
        let n = self.open.len();
        (n > 0).then(|| self.open.swap_remove(seeded.below(n)))
    }

    /// Reads a few events of one answer.
    fn take_some(&mut self, seeded: &mut Seeded) {
        let Some(mut open) = self.take_open(seeded) else { return };
        for _ in 0..seeded.below(8) {
            match open.stream.next() {
                Some(event) => open.take(event),
                None => break,
            }
        }
        self.open.push(open);
    }

    fn finish_one(&mut self, seeded: &mut Seeded) {
        if let Some(open) = self.take_open(seeded) {
            self.finish(open);
        }
    }

    fn cancel_one(&mut self, seeded: &mut Seeded) {
        if let Some(open) = self.take_open(seeded) {
            open.stream.cancel();
            self.finish(open);
        }
    }

    /// Reads an answer to its end and holds it against the plain engine's.
    fn finish(&mut self, mut open: Open) {
        while let Some(event) = open.stream.next() {
            open.take(event);
        }
        let Open { kind, most, tokens: got, finish, .. } = open;
        let expected = self.expected.of(kind, &self.kinds[kind]);
        match finish {
            Some(Finish::Length) => assert_eq!(got.len(), most, "kind {kind}"),
            Some(Finish::Cancelled) => self.counts.cancelled += 1,
            other => panic!("kind {kind}: {other:?}"),
        }
        assert_eq!(got, expected[..got.len()], "kind {kind}, {:?}", self.kinds[kind]);
        self.counts.answers += 1;
    }

    /// A request that meets a fault; nobody else may notice.
    fn fault(&mut self, seeded: &mut Seeded) {
        let kind = seeded.below(self.kinds.len());
        let at = seeded.below(4);
        let fault = match seeded.below(8) {
            0..4 => Fault::Refused { at, times: 1 },
            4..7 => Fault::Nan { at },
            // A panic fails who happens to be in its step: nobody else may be.
            _ => {
                while let Some(open) = self.open.pop() {
                    self.finish(open);
                }
                Fault::Panic { at }
            }
        };
        let request = self.kinds[kind].request(8).with_fault(fault);
        let answer = self.engine.generate(request);
        if matches!(fault, Fault::Refused { .. }) {
            let expected = self.expected.of(kind, &self.kinds[kind]);
            assert_eq!(answer.unwrap().tokens, expected[..8]);
        }
        self.faults += 1;
    }

    /// Ends everything: no page is leaked, the books are in order.
    fn close(mut self) {
        while let Some(open) = self.open.pop() {
            self.finish(open);
        }
        self.sessions.clear();
        assert_eq!(self.engine.check_books().unwrap(), 0, "pages that nobody gave back");
        let metrics = self.engine.metrics();
        let tiers = metrics.tiers.counts;
        self.counts.preempted += metrics.preempted;
        self.counts.shared += metrics.shared_prefixes;
        self.counts.repeated += metrics.repeated_prompts;
        self.counts.hot += tiers.hot_hits;
        self.counts.warm += tiers.warm_hits;
        self.counts.cold += tiers.cold_hits + tiers.prefetched_pages;
        self.counts.drafts += metrics.drafted_tokens;
        self.counts.restored += tiers.cold.restored_slots;
        self.counts.faults += self.faults as u64;
        self.counts.missed_experts += metrics.experts.map_or(0, |experts| experts.misses);
    }
}

/// Bytes of the pages of one full context.
fn context_bytes(engine: &Engine, context: usize) -> usize {
    engine.check_books().unwrap(); // the engine has started, and its numbers are there
    let pages = engine.metrics().pages;
    pages.iter().map(|group| group.page_bytes * (context.div_ceil(16) + 1)).sum()
}

fn run(
    (model, sparse_attention): (&'static [u8], Option<SparseAttention>),
    steps: usize,
    seed: u64,
) -> Counts {
    let mut seeded = Seeded::new(seed);
    let mut expected = Expected::new(model, sparse_attention);
    let config = expected.engine.config();
    let context = expected.engine.context_len().min(360);
    let kinds = kinds(&mut seeded, config.vocabulary, context);
    let directory = tempfile::tempdir().unwrap();
    let packed = directory.path().join("model.oss");
    let container = Container::from_bytes("model", model, Vec::new()).unwrap();
    pack_to_file(&container, &Precision::default(), &packed, None).unwrap();
    let tight = context_bytes(&expected.engine, context);
    let mut counts = Counts::default();
    let mut left = steps;
    while left > 0 {
        let options = random_options(&mut seeded, directory.path(), tight);
        let options = EngineOptions { sparse_attention, ..options };
        let engine = load(model, &packed, options, &mut seeded);
        let (sessions, open) = (Vec::new(), Vec::new());
        let (kinds, expected, counts) = (&kinds, &mut expected, &mut counts);
        let mut run = Run { engine, sessions, open, kinds, expected, counts, faults: 0 };
        let life = left.min(LIFE / 2 + seeded.below(LIFE));
        (0..life).for_each(|_| run.step(&mut seeded));
        run.close();
        left -= life;
    }
    counts
}

#[test]
fn everything_together_gives_the_tokens_of_a_plain_engine() {
    let steps = std::env::var("OSS_ENGINE_TOGETHER_STEPS").ok();
    let begin = std::time::Instant::now();
    let steps = steps.map_or(STEPS, |steps| steps.parse().expect("a number of operations"));
    let mut seen = Vec::new();
    for (index, case) in CASES.into_iter().enumerate() {
        seen.push(run(case, steps / CASES.len(), 1 + index as u64));
    }
    println!("{seen:#?} {:?}", begin.elapsed());
    for counts in &seen {
        assert!(counts.answers > 0 && counts.hot > 0, "{counts:?}");
        // Which of the others happen depends on time; in a long run all do.
        let Counts { cancelled, faults, preempted, shared, repeated, .. } = counts;
        let Counts { warm, cold, drafts, restored, missed_experts, .. } = counts;
        let all = [cancelled, faults, preempted, shared, repeated, warm, cold, drafts, restored];
        let all = all.into_iter().chain([missed_experts]);
        assert!(steps < 10_000 || all.into_iter().all(|count| *count > 0), "{counts:?}");
    }
}
