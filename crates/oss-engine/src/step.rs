//! The step thread: takes requests, runs steps of all sequences together, hands out events.
//!
//! One turn of the loop is: take what came in, drop what was cancelled or is late, admit what
//! waits, plan the rows of a step, run it. Nothing here decides bits: the forward pass gives a row
//! the same result in any batch and chunk, and a draw is a function of its logits, seed and
//! position.

mod admit;
mod at_least;
mod cost;
mod draft;
mod hold;
mod inject;
mod pace;
mod partway;
mod plan;
mod recover;
mod relief;
mod repeats;
mod retune;
mod run;
mod sessions;
mod speculate;
mod task;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError};
use std::time::Instant;

use oss_cache::KvCache;
use oss_model::{Model, State};
use oss_threads::{AffinityGuard, Team};

use crate::error::{Error, Result};
use crate::event::FinishReason;
use crate::metrics::{MemoryUse, PageUse, Recorder};
use crate::options::EngineOptions;
use crate::popularity::Kept;
use crate::tiers;
use crate::tuning::{Batching, Tuning};

pub(crate) use self::at_least::AtLeast;
pub(crate) use self::draft::Drafter;
pub(crate) use self::hold::Hold;
use self::pace::Pace;
use self::plan::Plan;
use self::relief::Relief;
use self::repeats::Repeats;
pub(crate) use self::retune::Tuner;
use self::run::catch;
pub(crate) use self::run::{HEAD_ROWS, contain, panic_message};
use self::sessions::Sessions;
pub(crate) use self::task::{Clock, Ends, PromptLogprobs, Task};

/// What the step thread is told.
pub(crate) enum Command {
    /// A new request.
    Submit(Box<Task>),
    /// Something changed: a stream was cancelled, or has room again.
    Wake,
    /// A session is over.
    Forget(u64),
    /// A test wants the books checked.
    #[cfg(feature = "fault-injection")]
    Check(Sender<Result<usize>>),
    /// A test wants the step thread to panic outside of any step.
    #[cfg(feature = "fault-injection")]
    Crash,
    /// Measure the machine anew.
    Tune(Sender<Result<Tuning>>),
    /// No handle is left.
    Close,
}

/// How an answer ends.
pub(crate) type Ending = Result<FinishReason>;

/// What a step thread is made of.
pub(crate) struct Setup {
    pub(crate) model: Arc<Model>,
    pub(crate) recorder: Arc<Recorder>,
    pub(crate) waiting: Arc<AtomicUsize>,
    pub(crate) pulse: Arc<AtomicU64>,
    team: Team,
    state: State,
    batching: Batching,
    cache: KvCache,
    cache_options: oss_cache::Options,
    pub(crate) tuner: Tuner,
    pub(crate) options: EngineOptions,
    vocabulary_bytes: usize,
    popularity: Option<Kept>,
}

impl Setup {
    /// # Errors
    /// When memory for scratch is refused.
    pub(crate) fn new(
        model: Arc<Model>,
        team: Team,
        (cache, cache_options): (KvCache, oss_cache::Options),
        tuner: Tuner,
        (options, vocabulary_bytes): (EngineOptions, usize),
        popularity: Option<Kept>,
    ) -> Result<Self> {
        let recorder = Arc::new(Recorder::new());
        let (waiting, pulse) = Default::default();
        let batching = tuner.tuning.lock().batching();
        let state = scratch(batching, &model, team.threads(), &pulse)?;
        Ok(Self {
            model,
            recorder,
            waiting,
            pulse,
            team,
            state,
            batching,
            cache,
            cache_options,
            tuner,
            options,
            vocabulary_bytes,
            popularity,
        })
    }
}

/// Memory for forward passes, each layer of which is a beat of the pulse.
///
/// # Errors
/// When it is refused.
fn scratch(
    batching: Batching,
    model: &Model,
    threads: usize,
    pulse: &Arc<AtomicU64>,
) -> Result<State> {
    let mut state = batching.state(model, threads)?;
    let pulse = Arc::clone(pulse);
    state.set_probe(Some(Box::new(move |_| {
        pulse.fetch_add(1, Ordering::Relaxed);
    })));
    Ok(state)
}

/// The life of the step thread, which is worker 0 of the team; `start` is told whether it begins.
pub(crate) fn run(setup: Setup, commands: Receiver<Command>, start: &Sender<Result<()>>) {
    // Who waits for the start is there until it is told.
    match setup.team.pin_caller() {
        Ok(affinity) => {
            let scheduler = Scheduler::new(setup, affinity);
            // An engine that is loaded tells what it has.
            scheduler.report();
            let _sent = start.send(Ok(()));
            scheduler.run(commands);
        }
        Err(error) => {
            let _sent = start.send(Err(error.into()));
        }
    }
}

/// How many first tokens of two texts are equal.
fn common(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// The step thread's state.
struct Scheduler {
    model: Arc<Model>,
    team: Team,
    /// This thread's CPU, where the team is bound.
    affinity: Option<AffinityGuard>,
    /// Scratch; none after a step that may have left anything in it: the next one makes it anew.
    state: Option<State>,
    cache: KvCache,
    cache_options: oss_cache::Options,
    tuner: Tuner,
    batching: Batching,
    options: EngineOptions,
    recorder: Arc<Recorder>,
    /// Requests that wait, shared with those who submit.
    waiting: Arc<AtomicUsize>,
    /// Grows with every turn of the loop and every part of a step; shared with those who watch.
    pulse: Arc<AtomicU64>,
    /// Tasks without pages.
    queue: Vec<Task>,
    /// Tasks with pages.
    running: Vec<Task>,
    sessions: Sessions,
    pace: Pace,
    plan: Plan,
    repeats: Repeats,
    /// What draws need, one after the other.
    draw_scratch: oss_sampler::Scratch,
    relief: Relief,
    /// What caches before this one have counted.
    counted: oss_cache::Stats,
    /// Bytes that pages on their way between the tiers may take.
    queue_bytes: usize,
    /// Bytes of the weights that are not packed, and of the vocabulary.
    vector_bytes: usize,
    vocabulary_bytes: usize,
    /// Where experts' popularity is kept for the next engine.
    popularity: Option<Kept>,
}

impl Scheduler {
    fn new(setup: Setup, affinity: Option<AffinityGuard>) -> Self {
        let Setup { model, recorder, waiting, pulse, team, state, batching, .. } = setup;
        let Setup { cache, cache_options, tuner, options, vocabulary_bytes, popularity, .. } =
            setup;
        Self {
            state: Some(state),
            pace: Pace::new(
                options.max_step,
                options.max_prompt_step,
                (model.config.layers.len(), model.weights.expert_use().is_some()),
            ),
            team,
            affinity,
            cache,
            cache_options,
            repeats: Repeats::new(if options.prefix_caching { options.repeat_bytes } else { 0 }),
            draw_scratch: oss_sampler::Scratch::new(model.config.vocabulary),
            relief: Relief::new(options.system_root.clone()),
            counted: oss_cache::Stats::default(),
            queue_bytes: tiers::queue_bytes(&model, &options),
            vector_bytes: model.weights.vector_bytes(),
            vocabulary_bytes,
            popularity,
            model,
            tuner,
            batching,
            options,
            recorder,
            waiting,
            pulse,
            queue: Vec::new(),
            running: Vec::new(),
            sessions: Sessions::default(),
            plan: Plan::default(),
        }
    }

    /// Runs until the engine is closed, or no handle is left; then keeps what is worth keeping.
    fn run(mut self, commands: Receiver<Command>) {
        let mut idle = true;
        while self.receive(&commands, idle) {
            self.pulse.fetch_add(1, Ordering::Relaxed);
            self.report();
            self.sweep();
            self.relieve();
            self.distrust();
            let admitted = self.admit();
            // What is read and given up for those who begin is no part of a step.
            let begin = Instant::now();
            let running = self.running.len();
            self.make_plan();
            // Where one was answered at once, or had to go, others may have room.
            idle = !admitted && self.plan.is_empty() && self.running.len() == running;
            if !self.plan.is_empty() {
                self.step(|_, _| begin.elapsed());
            } else if idle && self.cache.wait_for_tiers() {
                // What came may be what a request waits for.
                idle = false;
            }
        }
        self.close(commands);
        self.distrust();
        if let Err(error) = self.cache.persist() {
            tracing::warn!(%error, "keys and values could not be kept for the next process");
        }
        if let Some(kept) = &mut self.popularity
            && let Some(popularity) = self.model.weights.popularity()
        {
            kept.end(popularity);
        }
    }

    /// Ends all requests, those too that were submitted and not taken yet; who submits another one
    /// hears at once that nobody takes it. What requests and sessions have computed stays findable.
    fn close(&mut self, commands: Receiver<Command>) {
        let submitted = commands.try_iter().filter_map(|command| match command {
            Command::Submit(task) => Some(*task),
            _ => None,
        });
        self.queue.extend(submitted);
        drop(commands);
        self.queue.append(&mut self.running);
        for task in std::mem::take(&mut self.queue) {
            self.end(task, Err(Error::Closed));
        }
        while self.sessions.give_up_oldest(&mut self.cache) {}
    }

    /// Empties the file of keys and values once the model's files were found damaged, and goes on
    /// without: nobody knows since when they were, and the next process, which may find them whole
    /// again, would believe what they gave.
    fn distrust(&mut self) {
        if self.cache_options.cold.is_none() || self.model.weights.check_damage().is_ok() {
            return;
        }
        self.cache_options.cold = None;
        match self.cache.discard_file() {
            Ok(()) => tracing::warn!("damaged weights: the file of keys and values was emptied"),
            Err(error) => {
                tracing::error!(%error, "keys and values of damaged weights stay in their file");
            }
        }
    }

    /// Takes what came in; waits for it when there is nothing to do. `false`: it is over.
    fn receive(&mut self, commands: &Receiver<Command>, idle: bool) -> bool {
        if idle {
            self.report();
            let next = self.next_deadline().into_iter().chain(self.next_relief()).min();
            let command = match next {
                None => commands.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(at) => commands.recv_timeout(at.saturating_duration_since(Instant::now())),
            };
            match command {
                Ok(command) => {
                    if !self.obey(command) {
                        return false;
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return false,
            }
        }
        loop {
            match commands.try_recv() {
                Ok(command) => {
                    if !self.obey(command) {
                        return false;
                    }
                }
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
    }

    fn obey(&mut self, command: Command) -> bool {
        match command {
            Command::Submit(task) => self.queue.push(*task),
            Command::Wake => {}
            Command::Forget(session) => {
                self.sessions.forget(session, &mut self.cache);
                // What they leave is nobody's any more.
                for task in self.queue.iter_mut().chain(&mut self.running) {
                    task.session = task.session.filter(|id| *id != session);
                }
            }
            #[cfg(feature = "fault-injection")]
            Command::Check(answer) => {
                let _sent = answer.send(self.check_books());
            }
            #[cfg(feature = "fault-injection")]
            Command::Crash => panic!("a test wants it"),
            Command::Tune(reply) => {
                // What has been measured is taken over at the end, so a panic leaves what was.
                let tuned = self.unpinned(|this| catch(|| this.retune()));
                // Who asked may be gone.
                let _sent = reply.send(tuned);
            }
            Command::Close => return false,
        }
        true
    }

    /// Does what starts threads, or looks at the machine, while this thread is free: they would
    /// inherit its CPU, and it would find no other.
    fn unpinned<T>(&mut self, work: impl FnOnce(&mut Self) -> T) -> T {
        drop(self.affinity.take());
        let result = work(self);
        match self.team.pin_caller() {
            Ok(affinity) => self.affinity = affinity,
            Err(error) => tracing::error!(%error, "the step thread goes on unpinned"),
        }
        result
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.queue.iter().chain(&self.running).filter_map(|task| task.deadline).min()
    }

    /// Ends tasks that were cancelled or are late.
    fn sweep(&mut self) {
        let now = Instant::now();
        let mut over: Vec<(Task, Ending)> = Vec::new();
        for tasks in [&mut self.queue, &mut self.running] {
            for index in (0..tasks.len()).rev() {
                if let Some(ending) = tasks[index].ending(now) {
                    over.push((tasks.remove(index), ending));
                }
            }
        }
        for (task, ending) in over {
            self.end(task, ending);
        }
    }

    /// Ends a task: its pages go to its session, however it ends, or back; its stream gets the end.
    fn end(&mut self, mut task: Task, ending: Ending) {
        if let Some(sequence) = task.sequence.take() {
            match (task.session, self.cache.len(sequence)) {
                (Some(session), computed @ 1..) => {
                    // What was reserved for rows that have not come to their end goes back.
                    let kept = self.cache.truncate(sequence, computed);
                    debug_assert_eq!(kept.ok(), Some(computed), "it is as long as before");
                    let tokens = task.tokens[..computed].to_vec();
                    self.sessions.keep(session, sequence, tokens);
                }
                _ => self.cache.remove(sequence),
            }
        }
        if !task.was_admitted() {
            self.waiting.fetch_sub(1, Ordering::AcqRel);
        }
        let (events, ending) = task.close(ending);
        let mut metrics = self.recorder.lock();
        match &ending {
            Ok(FinishReason::Cancelled) => metrics.cancelled += 1,
            Ok(_) => metrics.completed += 1,
            Err(Error::Timeout) => metrics.timed_out += 1,
            Err(_) => metrics.failed += 1,
        }
        drop(metrics);
        let finish = ending.as_ref().map_or("error", |reason| reason.as_str());
        tracing::info!(parent: &task.span, finish, "request ended");
        task.end(events, ending);
    }

    /// Ends the running task `id`.
    fn end_running(&mut self, id: u64, ending: Ending) {
        if let Some(index) = self.running.iter().position(|task| task.id == id) {
            let task = self.running.remove(index);
            self.end(task, ending);
        }
    }

    /// Writes down what changes slowly.
    fn report(&self) {
        let groups = &self.cache.shape().groups;
        let pages = groups.iter().enumerate().map(|(index, group)| {
            let count = self.cache.pages(index);
            PageUse {
                window: group.window,
                in_use: count.in_use - count.idle,
                kept: count.idle,
                available: count.available,
                page_bytes: count.page_bytes,
            }
        });
        let mut metrics = self.recorder.lock();
        metrics.running = self.running.len();
        metrics.tiers.counts = self.counted;
        metrics.tiers.counts += self.cache.stats();
        metrics.tiers.warm_bytes = self.cache.warm_bytes();
        metrics.tiers.cold_pages = self.cache.cold_pages();
        metrics.pages.clear();
        metrics.pages.extend(pages);
        metrics.fragmentation = self.cache.fragmentation();
        metrics.experts = self.model.weights.expert_use();
        metrics.unusable_popularity = self.popularity.as_ref().map_or(0, |kept| kept.failures);
        metrics.memory = MemoryUse {
            weights: self.model.weights.resident_bytes(),
            vectors: self.vector_bytes,
            vocabulary: self.vocabulary_bytes,
            locked: self.model.weights.locked_bytes(),
            reserved: self.model.weights.reserved_bytes() + self.cache.bytes_reserved(),
            cache_limit: self.cache_options.capacity_bytes,
            cache: self.cache.bytes_resident(),
            warm: self.cache.warm_bytes(),
            queues: self.queue_bytes,
            repeats: self.repeats.bytes(),
            scratch: self.state.as_ref().map_or(0, State::bytes)
                + oss_sampler::Scratch::bytes(self.model.config.vocabulary),
            measuring: 0,
        };
    }
}
