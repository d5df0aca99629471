//! How long streams wait for their next tokens while prompts are taken beside them, who gets rows,
//! and what is fetched for those who wait: the loop of the step thread without the thread, by a
//! clock that each step moves on by what its rows cost.

use std::cell::Cell;
use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use oss_model::LoadOptions;
use oss_sampler::Sampler;
use oss_simd::Isa;
use oss_weights::Container;

use super::*;
use crate::fault::Fault;
use crate::metrics::Back;
use crate::options::{Speculation, Tune};
use crate::output::Silent;
use crate::stream::{Link, Producer};
use crate::tuning::{self, Census, SharedTuning, Subject};

/// What a step beside streams may take, in seconds: so many that the milliseconds that it really
/// takes do not count.
const LIMIT: f64 = 10.0;
const STREAMS: usize = 4;

/// Seconds of a step: those of each, for every row, and of reading all experts, of which each row
/// needs an eighth.
#[derive(Clone, Copy, Debug)]
struct Cost {
    step: f64,
    answer: f64,
    prompt: f64,
    experts: f64,
}

const COST: Cost = Cost { step: 0.5, answer: 0.1, prompt: 0.2, experts: 0.0 };

impl Cost {
    fn seconds(self, answers: usize, prompt_rows: usize) -> f64 {
        let rows = self.answer * answers as f64 + self.prompt * prompt_rows as f64;
        let not_needed = 0.875_f64.powi((answers + prompt_rows) as i32);
        self.step + rows + self.experts * (1.0 - not_needed)
    }
}

/// What was seen of a stream: its tokens, and when the last one came.
type Seen = (usize, f64);

/// A step thread, made to go by a clock of its own.
struct Clocked {
    scheduler: Scheduler,
    cost: Cost,
    now: f64,
    seen: HashMap<u64, Seen>,
    next_id: u64,
}

impl Clocked {
    fn new(cost: Cost) -> Self {
        Self::with(cost, |_, _| {})
    }

    /// One of other options, whose cache has others too.
    fn with(cost: Cost, change: impl FnOnce(&mut EngineOptions, &mut oss_cache::Options)) -> Self {
        let mut options = EngineOptions {
            threads: Some(1),
            prefix_caching: false,
            speculation: Speculation::Off,
            max_prompt_step: Duration::from_secs_f64(LIMIT),
            max_batched_tokens: Some(264),
            prefill_chunk: Some(256),
            max_sequences: Some(16),
            tune: Tune::Off,
            system_root: "/no/such/folder".into(),
            ..EngineOptions::default()
        };
        let mut cache_options =
            oss_cache::Options { capacity_bytes: 32 << 20, ..Default::default() };
        change(&mut options, &mut cache_options);
        let load = LoadOptions {
            kv_format: options.kv_format,
            pages: options.pages,
            ..LoadOptions::new(Isa::detect().unwrap())
        };
        let container = Container::from_bytes("demo", oss_demo::GGUF, Vec::new()).unwrap();
        let census = Census::new(&container);
        let model = Arc::new(Model::load(Arc::new(container), load).unwrap());
        let subject = Subject::new(&census, &model, 0).unwrap();
        let tuning = SharedTuning::new(tuning::at_load(&subject, &options).unwrap());
        let cache = KvCache::with_options(model.cache_shape(), &cache_options).unwrap();
        let (team, tuner) = (Team::new(1).unwrap(), Tuner { subject, tuning });
        let caches = (cache, cache_options);
        let setup = Setup::new(model, team, caches, tuner, (options, 0), None).unwrap();
        let scheduler = Scheduler::new(setup, None);
        Self { scheduler, cost, now: 0.0, seen: HashMap::new(), next_id: 0 }
    }

    /// A request of so many tokens for as many others.
    fn submit(&mut self, prompt: usize, max_tokens: usize) {
        self.submit_as(0, prompt, max_tokens);
    }

    /// The same, of some priority.
    fn submit_as(&mut self, priority: i32, prompt: usize, max_tokens: usize) {
        let task = Task { priority, ..self.task(vec![500; prompt], max_tokens) };
        self.scheduler.queue.push(task);
    }

    /// A request for so many tokens after others.
    fn task(&mut self, tokens: Vec<u32>, max_tokens: usize) -> Task {
        let Scheduler { model, waiting, options, .. } = &mut self.scheduler;
        let (vocabulary, greedy) = (model.config.vocabulary, oss_sampler::Options::greedy());
        let guesses = options.speculation != Speculation::Off;
        waiting.fetch_add(1, Ordering::AcqRel);
        self.next_id += 1;
        Task {
            id: self.next_id - 1,
            priority: 0,
            session: None,
            prompt_len: tokens.len(),
            message_ends: Vec::new(),
            sequence: None,
            ends: Ends { max_tokens, stop_token_ids: Vec::new() },
            sampler: Sampler::new(greedy, vocabulary, 0).unwrap(),
            constraint: None,
            at_least: None,
            drafter: guesses.then(|| Drafter::new(&tokens)),
            tokens,
            output: Box::new(Silent),
            opening: Vec::new(),
            producer: Producer::new(Link::new(usize::MAX), model.weights.begin_use().unwrap()),
            prompt_logprobs: None,
            fault: None,
            deadline: None,
            clock: Clock::new(Instant::now()),
            cached_tokens: 0,
            repeat: None,
            back: Back::default(),
            hold: Hold::default(),
            span: tracing::Span::none(),
        }
    }

    /// Turns until nobody waits or runs.
    fn finish(&mut self) {
        while !(self.scheduler.queue.is_empty() && self.scheduler.running.is_empty()) {
            self.step();
        }
    }

    /// One turn; returns the step's seconds.
    fn step(&mut self) -> f64 {
        self.scheduler.admit();
        self.scheduler.make_plan();
        let Scheduler { plan, model, .. } = &self.scheduler;
        let (layers, prompt_rows) = (model.config.layers.len() as f64, plan.prompt_rows());
        let answers = plan.rows.len() - prompt_rows;
        let (alone, together) = match answers {
            0 => (0.0, self.cost.seconds(0, prompt_rows)),
            _ => (self.cost.seconds(answers, 0), self.cost.seconds(answers, prompt_rows)),
        };
        let (begin, last) = (Instant::now(), Cell::new(0.0));
        self.scheduler.step(|answers, prompts| {
            let alone = alone * (answers - prompts) as f64;
            last.set((alone + together * prompts as f64) / layers);
            begin.elapsed() + Duration::from_secs_f64(last.get())
        });
        self.now += last.get();
        last.get()
    }

    /// The longest time that a stream has been waiting for the token that it got now, or still
    /// waits for.
    fn longest_wait(&mut self) -> f64 {
        let mut longest: f64 = 0.0;
        for task in self.scheduler.running.iter().filter(|task| task.drawn() > 0) {
            let (tokens, last) = self.seen.entry(task.id).or_insert((0, self.now));
            longest = longest.max(self.now - *last);
            if task.drawn() > *tokens {
                (*tokens, *last) = (task.drawn(), self.now);
            }
        }
        longest
    }

    /// How many tokens of each prompt are left to compute, the oldest one's first.
    fn prompts_left(&self) -> Vec<usize> {
        let Scheduler { running, cache, .. } = &self.scheduler;
        let mut prompts: Vec<&Task> = running.iter().filter(|task| task.drawn() == 0).collect();
        prompts.sort_by_key(|task| task.id);
        prompts.into_iter().map(|task| task.left(cache)).collect()
    }

    fn prompts_are_taken(&self) -> bool {
        let Scheduler { queue, running, .. } = &self.scheduler;
        queue.is_empty() && running.iter().all(|task| task.drawn() > 0)
    }

    /// Streams that have been going on for a while.
    fn with_streams(cost: Cost) -> Self {
        let mut clocked = Self::new(cost);
        (0..STREAMS).for_each(|_| clocked.submit(3, 1000));
        while !clocked.prompts_are_taken() {
            clocked.step();
        }
        for _ in 0..10 {
            clocked.step();
            clocked.longest_wait();
        }
        clocked
    }
}

#[test]
fn no_stream_waits_longer_than_a_step_with_prompts_may_take() {
    let cases: [(Cost, &[usize]); 6] = [
        (COST, &[1500]),
        (COST, &[700, 40, 700]),
        (COST, &[40; 12]),
        // As many rows as there may be.
        (Cost { prompt: 0.02, ..COST }, &[1500]),
        // Answers take more than half of the limit themselves.
        (Cost { step: 3.0, answer: 0.8, ..COST }, &[900]),
        // Few rows read most of the experts.
        (Cost { experts: 8.0, ..COST }, &[600]),
    ];
    for (cost, prompts) in cases {
        let mut clocked = Clocked::with_streams(cost);
        prompts.iter().for_each(|tokens| clocked.submit(*tokens, 2));
        let mut longest_step: f64 = 0.0;
        while !clocked.prompts_are_taken() {
            // Requests that have come to their first token are streams too.
            let running = &clocked.scheduler.running;
            let streams = running.iter().filter(|task| task.drawn() > 0).count();
            longest_step = longest_step.max(clocked.step());
            let limit = LIMIT.max(2.0 * cost.seconds(streams, 0));
            let waited = clocked.longest_wait();
            // A step is planned by what the last one took, before others began to stream.
            assert!(waited <= 1.05 * limit, "{waited} s, {cost:?}, {prompts:?}");
        }
        // Nor are prompts slower than they have to be.
        let limit = LIMIT.max(2.0 * cost.seconds(STREAMS, 0));
        let most = cost.seconds(STREAMS, 256).min(limit);
        let enough = if prompts[0] > 100 { 0.85 } else { 0.6 } * most;
        assert!(longest_step >= enough, "{longest_step} s of {most}, {cost:?}, {prompts:?}");
    }
}

/// What may become of a prompt of which some layers have been computed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fate {
    GoesOn,
    Ends,
    IsPreempted,
    AllArePreempted,
    IsNoNumber,
    LosesScratch,
}

#[test]
fn prompts_that_take_several_steps_for_their_layers_give_the_same_tokens_whatever_becomes_of_one() {
    let prompt = |first: u32| (first..first + 12).collect::<Vec<u32>>();
    let firsts = [100, 200, 300];
    let alone = firsts.map(|first| {
        let mut clocked = Clocked::new(COST);
        let task = clocked.task(prompt(first), 4);
        clocked.scheduler.queue.push(task);
        for _ in 0..3 {
            clocked.step();
        }
        clocked.scheduler.running[0].tokens[12..].to_vec()
    });
    for fate in [
        Fate::GoesOn,
        Fate::Ends,
        Fate::IsPreempted,
        Fate::AllArePreempted,
        Fate::IsNoNumber,
        Fate::LosesScratch,
    ] {
        let mut clocked = Clocked::with_streams(COST);
        clocked.cost = Cost { prompt: 1.0, ..COST };
        let ids = firsts.map(|first| {
            let mut task = clocked.task(prompt(first), 1000);
            task.fault = (first == 200 && fate == Fate::IsNoNumber).then_some(Fault::Nan { at: 0 });
            let id = task.id;
            clocked.scheduler.queue.push(task);
            id
        });
        clocked.step();
        let Scheduler { plan, running, model, .. } = &clocked.scheduler;
        assert_eq!((plan.partway.rows(), plan.partway.parts.len()), (36, 3), "{fate:?}");
        let all = model.config.layers.len();
        assert!((1..all).contains(&plan.partway.layers), "{}", plan.partway.layers);
        let second = running.iter().position(|task| task.id == ids[1]).unwrap();
        match fate {
            Fate::GoesOn | Fate::IsNoNumber => {}
            Fate::Ends => clocked.scheduler.end_running(ids[1], Err(Error::Closed)),
            Fate::IsPreempted => clocked.scheduler.preempt(second),
            Fate::AllArePreempted => {
                let is_new = |task: &Task| task.drawn() == 0;
                while let Some(index) = clocked.scheduler.running.iter().position(is_new) {
                    clocked.scheduler.preempt(index);
                }
            }
            Fate::LosesScratch => {
                clocked.scheduler.retune().unwrap();
            }
        }
        while !clocked.prompts_are_taken() {
            clocked.step();
        }
        for _ in 0..3 {
            clocked.step();
        }
        let got = ids.map(|id| Task::find(&clocked.scheduler.running, id));
        for (index, (got, expected)) in got.into_iter().zip(&alone).enumerate() {
            let is_gone = index == 1 && matches!(fate, Fate::Ends | Fate::IsNoNumber);
            assert_eq!(got.is_none(), is_gone, "{fate:?}, prompt {index}");
            if let Some(task) = got {
                assert_eq!(task.tokens[12..][..expected.len()], **expected, "{fate:?}, {index}");
            }
        }
        clocked.scheduler.cache.validate().unwrap();
    }
}

#[test]
fn a_machine_that_becomes_slower_makes_streams_wait_for_a_few_steps_alone() {
    let mut clocked = Clocked::with_streams(COST);
    clocked.submit(1500, 2);
    let mut waits = Vec::new();
    while !clocked.prompts_are_taken() {
        if waits.len() == 15 {
            let Cost { step, answer, prompt, .. } = COST;
            let (step, answer, prompt) = (3.0 * step, 3.0 * answer, 3.0 * prompt);
            clocked.cost = Cost { step, answer, prompt, ..COST };
        }
        clocked.step();
        waits.push(clocked.longest_wait());
    }
    assert!(waits.len() > 30, "{waits:?}");
    assert!(waits[..15].iter().all(|wait| *wait <= 1.001 * LIMIT), "{waits:?}");
    assert!(waits[15] <= 3.001 * LIMIT, "nobody foresees it: {waits:?}");
    assert!(waits[20..].iter().all(|wait| *wait <= 1.05 * LIMIT), "{waits:?}");
}

#[test]
fn every_prompt_and_every_answer_goes_on_where_a_step_has_one_row() {
    let mut clocked = Clocked::with(COST, |options, _| options.max_batched_tokens = Some(1));
    clocked.submit(1, 1000);
    clocked.step();
    (0..2).for_each(|_| clocked.submit(40, 1));
    let drawn = |clocked: &Clocked| clocked.scheduler.running[0].drawn();
    let before = drawn(&clocked);
    for _ in 0..60 {
        clocked.step();
    }
    assert_eq!(clocked.prompts_left(), [25, 25]);
    assert_eq!(drawn(&clocked), before + 30);
}

#[test]
fn prompts_share_a_step_with_those_that_are_as_urgent_and_others_get_what_is_left() {
    let mut clocked = Clocked::new(Cost { prompt: 0.02, ..COST });
    for priority in [0, 1, 1, 0] {
        clocked.submit_as(priority, 200, 1);
    }
    clocked.step();
    assert_eq!(clocked.prompts_left(), [200, 72, 72, 200]);
    clocked.step();
    assert_eq!(clocked.prompts_left(), [144, 144]);
}

/// Options of an engine with a file of pages, and so long a queue of reads.
fn read_from_file(
    directory: &Path,
    queue: usize,
) -> impl FnOnce(&mut EngineOptions, &mut oss_cache::Options) {
    let (path, bytes) = (directory.join("pages"), 64 << 20);
    move |options, cache| {
        options.prefix_caching = true;
        cache.cold = Some(oss_cache::ColdOptions { path, bytes, queue, content_key: 1 });
    }
}

/// Leaves the pages of a prompt of so many tokens in the file.
fn keep_in_file(directory: &Path, prompt: usize) {
    let mut first = Clocked::with(Cost { prompt: 0.02, ..COST }, read_from_file(directory, 4));
    first.submit(prompt, 1);
    first.finish();
    first.scheduler.cache.persist().unwrap();
}

#[test]
fn who_waits_for_room_is_not_overtaken_though_its_pages_lie_in_the_file() {
    let directory = tempfile::tempdir().unwrap();
    keep_in_file(directory.path(), 700);
    let mut clocked = Clocked::with(Cost { prompt: 0.02, ..COST }, |options, cache| {
        read_from_file(directory.path(), 4)(options, cache);
        cache.capacity_bytes = 1 << 20;
    });
    clocked.submit(300, 150);
    clocked.scheduler.queue[0].tokens.fill(7);
    clocked.step();
    clocked.submit(700, 1);
    let long_one = clocked.next_id - 1;
    // While its pages are read others may go first; then nobody does.
    let mut overtook_last = 0;
    for turn in 0.. {
        clocked.submit(3, 1);
        let waiting = clocked.scheduler.queue.len();
        clocked.step();
        clocked.scheduler.cache.wait_for_tiers();
        let Scheduler { queue, .. } = &clocked.scheduler;
        if queue.iter().all(|task| task.id != long_one) {
            assert!(turn > 100, "it waits for the answer to end, {turn} turns");
            break;
        }
        if queue.len() < waiting {
            overtook_last = turn;
        }
    }
    assert!(overtook_last < 60, "{overtook_last}");
}

#[test]
fn a_prefix_larger_than_the_queue_of_reads_is_fetched_before_there_is_a_place_for_it() {
    let directory = tempfile::tempdir().unwrap();
    let queue = 4;
    keep_in_file(directory.path(), 700);

    let mut second = Clocked::with(COST, |options, cache| {
        read_from_file(directory.path(), queue)(options, cache);
        options.max_sequences = Some(1);
    });
    second.submit(3, 1000);
    second.step();
    second.submit(700, 1);
    let Scheduler { cache, queue: waiting, .. } = &second.scheduler;
    let found = cache.lookup(&waiting[0].tokens);
    assert!(cache.missing(&found) > 10 * queue, "{} pages", cache.missing(&found));
    for _ in 0..200 {
        second.scheduler.admit();
        second.scheduler.cache.wait_for_tiers();
    }
    let Scheduler { cache, queue: waiting, running, .. } = &second.scheduler;
    assert_eq!((running.len(), waiting.len()), (1, 1), "it has no place yet");
    assert_eq!(cache.missing(&cache.lookup(&waiting[0].tokens)), 0);
}

#[test]
fn no_more_requests_are_answered_in_one_turn_than_may_run() {
    let mut clocked = Clocked::with(COST, |options, _| options.prefix_caching = true);
    clocked.submit(40, 1);
    clocked.finish();
    (0..40).for_each(|_| clocked.submit(40, 1));
    let scheduler = &mut clocked.scheduler;
    let beats = |scheduler: &Scheduler| scheduler.pulse.load(Ordering::Relaxed);
    for left in [24, 8, 0] {
        let (before, waited) = (beats(scheduler), scheduler.queue.len());
        assert!(scheduler.admit(), "the next turn is at once");
        assert_eq!((scheduler.queue.len(), scheduler.running.len()), (left, 0));
        assert_eq!(beats(scheduler) - before, (waited - left) as u64);
    }
    assert!(!scheduler.admit());
    assert_eq!(scheduler.recorder.lock().repeated_prompts, 40);
}

#[test]
fn nobody_loses_pages_to_one_who_has_no_room_even_so() {
    // Of 64 pages the session keeps 14, and the one that runs takes 36: the next one wants more
    // than there are, or 24.
    for (prompt, is_kept) in [(700, true), (150, false)] {
        let mut clocked = Clocked::with(Cost { prompt: 0.02, ..COST }, |_, cache| {
            cache.capacity_bytes = 1 << 20;
        });
        let kept = vec![7; 100];
        let of_session = Task { session: Some(1), ..clocked.task(kept.clone(), 1) };
        clocked.scheduler.queue.push(of_session);
        clocked.finish();
        for (token, prompt) in [(8, 250), (9, prompt)] {
            let task = clocked.task(vec![token; prompt], 20);
            clocked.scheduler.queue.push(task);
            clocked.step();
        }
        let Scheduler { queue, running, sessions, .. } = &clocked.scheduler;
        let seen = (running.len(), queue.len(), sessions.common(1, &kept));
        assert_eq!(seen, if is_kept { (1, 1, 100) } else { (2, 0, 0) }, "{prompt}");
    }
}

#[test]
fn guesses_are_made_where_they_pay() {
    let demo = Container::from_bytes("demo", oss_demo::GGUF, Vec::new()).unwrap();
    let text = crate::Text::from_container(&demo).unwrap();
    let refrain = "Tom has a red ball. ".repeat(6);
    let tokens = text.tokenizer().unwrap().encode(&refrain, oss_text::Special::AsText);
    let drafted = |cost| {
        let mut clocked = Clocked::with(cost, |options, _| options.speculation = Speculation::Auto);
        // The model's own stories repeat themselves too.
        let task = clocked.task(tokens.clone(), 400);
        clocked.scheduler.queue.push(task);
        clocked.finish();
        clocked.scheduler.recorder.lock().drafted_tokens
    };
    let cheap = drafted(Cost { answer: 0.01, ..COST });
    let dear = drafted(Cost { step: 0.0, answer: 1.0, ..COST });
    assert!(cheap > 100 && dear < cheap / 2, "{cheap}, {dear}");
}

#[test]
fn a_closed_engine_ends_all_requests_and_takes_none() {
    let mut clocked = Clocked::new(COST);
    clocked.submit(3, 1000);
    clocked.step();
    clocked.submit(3, 1);
    let of_session = Task { session: Some(1), ..clocked.task(vec![7; 40], 1000) };
    clocked.scheduler.queue.push(of_session);
    clocked.step();
    let submitted = Box::new(clocked.task(vec![7; 40], 1));
    let scheduler = &mut clocked.scheduler;
    assert!(scheduler.running.len() > 1);
    let (sender, commands) = std::sync::mpsc::channel();
    sender.send(Command::Submit(submitted)).unwrap();
    let before = scheduler.recorder.lock().failed;
    scheduler.close(commands);
    assert!(sender.send(Command::Wake).is_err());
    assert!(scheduler.queue.is_empty() && scheduler.running.is_empty());
    assert_eq!(scheduler.waiting.load(Ordering::Acquire), 0);
    assert!(scheduler.recorder.lock().failed - before > 2);
    let groups = 0..scheduler.cache.shape().groups.len();
    let pages = groups.map(|group| scheduler.cache.pages(group));
    assert!(pages.into_iter().all(|pages| pages.in_use == pages.idle), "nobody holds any");
}
