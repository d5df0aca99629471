//! The engine: a handle to a step thread.

use std::borrow::Cow;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;
use std::{fmt, thread};

use oss_cache::KvCache;
use oss_kernels::Activation;
use oss_memory::Pages;
use oss_memory::placement::Placement;
use oss_model::{Config, LoadOptions, Model, describe, memory_policy, team_options};
use oss_simd::Isa;
use oss_threads::Team;
use oss_weights::Container;

use crate::background::Background;
use crate::budget;
use crate::error::{Error, Result};
use crate::event::{Completion, Event};
use crate::grammar::Vocabulary;
use crate::metrics::{Metrics, Recorder};
use crate::options::{EngineOptions, LoadProgress, Speculation};
use crate::packing::{self, Packed};
use crate::popularity::Kept;
use crate::prepare::{self, Prepared};
use crate::request::Request;
use crate::session::Session;
use crate::step::{self, Command, Setup, Tuner};
use crate::stream::Stream;
use crate::text_side::Text;
use crate::tiers;
use crate::tuning::{self, Census, SharedTuning, Subject, Tuning};

/// A model ready to answer: load it once, clone the handle freely, ask from any thread.
///
/// The last handle or stream that goes ends the step thread. A handle, which [`Session`]s have too,
/// waits for that: for the step that runs, and with a [`ColdTier`](crate::ColdTier) until
/// everything worth keeping has been written. A stream waits for nothing, so that async code may
/// drop one.
#[derive(Clone)]
pub struct Engine {
    inner: Arc<Inner>,
}

/// What all handles and streams of an engine share.
pub(crate) struct Inner {
    pub(crate) model: Arc<Model>,
    pub(crate) text: Text,
    pub(crate) limits: Limits,
    pub(crate) recorder: Arc<Recorder>,
    /// Requests that wait, those on their way included.
    pub(crate) waiting: Arc<AtomicUsize>,
    /// See [`Engine::pulse`].
    pulse: Arc<AtomicU64>,
    tuning: SharedTuning,
    vocabulary: OnceLock<Option<Arc<Vocabulary>>>,
    commands: Sender<Command>,
    next_request: AtomicU64,
    next_session: AtomicU64,
    thread: OnceLock<JoinHandle<()>>,
    background: Option<Background>,
    /// Whether who drops it waits for its threads.
    waits: bool,
}

/// A stream's share of an engine. Where it is the last of all, it ends the engine, but waits for
/// nothing: streams go where nobody may wait, as in async code.
pub(crate) struct Guest(Option<Arc<Inner>>);

impl Guest {
    pub(crate) fn new(inner: Arc<Inner>) -> Self {
        Self(Some(inner))
    }

    /// The way to the step thread.
    pub(crate) fn commands(&self) -> Sender<Command> {
        self.0.as_ref().expect("it is taken when this goes").commands.clone()
    }

    /// Makes the step thread look around.
    pub(crate) fn wake(&self) {
        if let Some(inner) = &self.0 {
            inner.wake();
        }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        if let Some(mut last) = self.0.take().and_then(Arc::into_inner) {
            last.waits = false;
        }
    }
}

/// What requests are held against.
pub(crate) struct Limits {
    pub(crate) context_len: usize,
    pub(crate) queue: usize,
    pub(crate) stream_events: usize,
    pub(crate) speculates: bool,
}

impl Engine {
    /// Loads a model: a packed file, a GGUF file, a safetensors file, or a folder with safetensors.
    /// Blocks the calling thread for as long as that takes: from milliseconds for a packed file to
    /// minutes for a large one that has to be packed.
    ///
    /// The files are mapped for as long as the engine lives: replace them by renaming, never write
    /// them in place. What another program cuts off in the middle of a step kills the process
    /// (SIGBUS).
    ///
    /// # Errors
    /// When the files cannot be read, the model is not supported, or memory is refused.
    pub fn load(path: impl AsRef<Path>) -> Result<Self> {
        Self::load_with(path, EngineOptions::default())
    }

    /// Loads a model with options.
    ///
    /// # Errors
    /// As [`Engine::load`], and when an option is out of its range.
    pub fn load_with(path: impl AsRef<Path>, options: EngineOptions) -> Result<Self> {
        Self::from_container(Arc::new(Container::open(path.as_ref())?), options)
    }

    /// Loads a model that lies in memory, such as one inside the program: a GGUF or a packed file,
    /// which hold everything. For safetensors, which have files beside them, there are
    /// [`Container::from_bytes`] and [`Engine::from_container`].
    ///
    /// # Errors
    /// As [`Engine::load`].
    pub fn from_bytes(file: impl Into<Cow<'static, [u8]>>) -> Result<Self> {
        Self::from_bytes_with(file, EngineOptions::default())
    }

    /// As [`Engine::from_bytes`], with options.
    ///
    /// # Errors
    /// As [`Engine::load_with`].
    pub fn from_bytes_with(
        file: impl Into<Cow<'static, [u8]>>,
        options: EngineOptions,
    ) -> Result<Self> {
        let container = Container::from_bytes("model in memory", file, Vec::new())?;
        Self::from_container(Arc::new(container), options)
    }

    /// Loads a model from files that are already open.
    ///
    /// # Errors
    /// As [`Engine::load_with`].
    pub fn from_container(container: Arc<Container>, options: EngineOptions) -> Result<Self> {
        options.check()?;
        check_context(&container, &options)?;
        budget::ask_for_small(0)?;
        let text = Text::from_container(&container)?;
        let vocabulary_bytes = budget::vocabulary_bytes(&text);
        let Packed { container, made, directory } =
            packing::packed_where_wanted(container, &options, vocabulary_bytes)?;
        let kept = directory.as_deref().zip(container.packed());
        let mut kept = kept.map(|(directory, file)| Kept::new(directory, file.source()));
        let isa = match options.isa {
            Some(isa) => isa,
            None => Isa::detect()?,
        };
        let progress = options.progress.clone();
        let load = LoadOptions {
            isa,
            activation: options.activation,
            kv_format: options.kv_format,
            pages: options.pages,
            sparse_attention: options.sparse_attention,
            progress: progress.as_ref().map(LoadProgress::shown),
        };
        let policy = memory_policy(options.placement, &options.system_root)?;
        if options.placement != Placement::System {
            let (asked, in_force) = (options.placement, policy.placement());
            tracing::info!(%asked, %in_force, nodes = policy.nodes().len(), "placement of weights");
        }
        let census = Census::new(&container);
        let mut model = Model::load(container, load)?;
        budget::ask_for_small(0)?;
        let subject = Subject::new(&census, &model, vocabulary_bytes)?;
        let mut tuning = tuning::at_load(&subject, &options)?;
        let team = match &options.team {
            Some(team) => team.clone(),
            None => Team::with_options(&team_options(tuning.threads.value, options.pin, &policy))?,
        };
        tuning.tell_cpus(&team, &options);
        let context_len = options.context_len.unwrap_or(model.config.context_len);
        let (threads, batching) = (team.threads(), tuning.batching());
        let (copies, max_batched_tokens) = (policy.copies(), batching.max_batched_tokens);
        let (lengths, copied) = ((context_len, threads), (batching, copies));
        let shares = budget::share(&model, &options, lengths, copied, vocabulary_bytes)?;
        match shares.slots {
            Some(slots) => {
                let begin = |kept: &mut Kept| kept.begin(&model.weights);
                let popularity = kept.as_mut().map_or_else(Vec::new, begin);
                model.weights.keep_experts_in_slots(slots, &policy, &popularity)?;
            }
            None => model.weights.place(&policy)?,
        }
        let cache_options = tiers::cache_options(&model, &options, shares.cache_bytes, policy)?;
        budget::ask_for_small(shares.cache_bytes)?;
        let cache = KvCache::with_options(model.cache_shape(), &cache_options)?;
        let rows = max_batched_tokens.min(budget::ALWAYS_ROWS);
        tell_reserved(&model, &cache, &options);
        let longest = cache.longest(rows);
        if longest == 0 {
            let expected = budget::context_bytes(&model, 1, rows);
            let got = shares.cache_bytes;
            return Err(oss_cache::Error::Capacity { got, expected }.into());
        }
        if longest < context_len && options.context_len.is_some() {
            let expected = budget::context_bytes(&model, context_len, rows);
            return Err(Error::Context { context_len, got: shares.cache_bytes, expected });
        }
        if longest < context_len {
            tracing::info!(context_len, longest, "no room for a whole context");
        }
        let limits = Limits {
            context_len: context_len.min(longest),
            queue: options.queue_limit,
            stream_events: options.stream_events,
            speculates: options.speculation != Speculation::Off,
        };
        let tuner = Tuner { subject, tuning: SharedTuning::new(tuning) };
        let model = Arc::new(model);
        let cache = (cache, cache_options);
        let options = (options, vocabulary_bytes);
        let setup = Setup::new(model, team, cache, tuner, options, kept)?;
        budget::ask_for_small(0)?;
        let background = Background::start(&setup.model, &setup.options, made)?;
        Self::start(setup, text, limits, background)
    }

    /// Starts the step thread.
    fn start(
        setup: Setup,
        text: Text,
        limits: Limits,
        background: Option<Background>,
    ) -> Result<Self> {
        let (commands, receiver) = std::sync::mpsc::channel();
        let (model, recorder) = (setup.model.clone(), setup.recorder.clone());
        let (waiting, tuning) = (setup.waiting.clone(), setup.tuner.tuning.clone());
        let pulse = setup.pulse.clone();
        let (start, started) = std::sync::mpsc::channel();
        let run = move || step::run(setup, receiver, &start);
        let builder = thread::Builder::new().name("oss-step".to_owned());
        let handle = builder.spawn(run).map_err(|error| Error::Spawn(Arc::new(error)))?;
        started.recv().unwrap_or(Err(Error::Closed))?;
        let inner = Inner {
            model,
            text,
            limits,
            recorder,
            waiting,
            pulse,
            tuning,
            vocabulary: OnceLock::new(),
            commands,
            next_request: AtomicU64::new(0),
            next_session: AtomicU64::new(0),
            thread: OnceLock::from(handle),
            background,
            waits: true,
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Hands a request over and returns its events. What becomes of it later is told by the last of
    /// them: [`Event::End`], or the error that it failed with.
    ///
    /// The prompt is tokenised, and a grammar compiled, on the thread that calls, before this
    /// returns: that takes milliseconds for a long prompt, and longer for the first grammar. Async
    /// code submits where it may block.
    ///
    /// Events wait in the stream until they are taken. Where [`EngineOptions::stream_events`] of
    /// them wait (256, some 128 tokens, unless it is given), the sequence pauses until half of them
    /// are taken. Nobody else waits for that: another request leaves the queue meanwhile. So
    /// whoever submits many requests and reads one stream after the other has more of them begun
    /// than [`EngineOptions::max_sequences`], and those that pause may lose their keys and values
    /// to others; what no tier has kept is computed again. Reading all streams at once avoids it,
    /// and so do streams that hold a whole answer.
    ///
    /// # Errors
    /// When the request cannot be served: a prompt that is empty or too long, options out of
    /// range, a grammar that cannot be held, no tokenizer or chat format; [`Error::Overloaded`]
    /// when the queue is full, [`Error::Closed`] when it is and the step thread is over.
    pub fn submit(&self, request: Request) -> Result<Stream> {
        self.submit_in(request, None)
    }

    /// Answers a request. Blocks the calling thread until its end.
    ///
    /// # Errors
    /// As [`Engine::submit`], and what ended the request before its end.
    pub fn generate(&self, request: Request) -> Result<Completion> {
        self.submit(request)?.collect_all()
    }

    /// Answers a request and shows every event as it comes; where `show` breaks, the request is
    /// cancelled, and the answer is what there was until then. Blocks the calling thread until the
    /// end.
    ///
    /// # Errors
    /// As [`Engine::generate`].
    pub fn generate_with(
        &self,
        request: Request,
        show: impl FnMut(&Event) -> ControlFlow<()>,
    ) -> Result<Completion> {
        let (completion, outcome) = self.submit(request)?.collect_with(show);
        outcome.map(|()| completion)
    }

    /// A conversation whose keys and values are kept between requests.
    #[must_use]
    pub fn session(&self) -> Session {
        let id = self.inner.next_session.fetch_add(1, Ordering::Relaxed);
        Session::new(self.clone(), id)
    }

    pub(crate) fn submit_in(&self, request: Request, session: Option<u64>) -> Result<Stream> {
        let inner = &self.inner;
        let place = inner.claim_place()?;
        let id = inner.next_request.fetch_add(1, Ordering::Relaxed);
        let prepared = prepare::prepare(inner, request, id, session)?;
        let Prepared { task, link, prompt_token_ids, seed } = prepared;
        let stream = Stream::new(link, inner.clone(), id, (prompt_token_ids, seed));
        inner.recorder.submitted.fetch_add(1, Ordering::Relaxed);
        // A step thread that is gone drops the task, which ends the stream as closed.
        if inner.commands.send(Command::Submit(task)).is_ok() {
            place.leave_to_step_thread();
        }
        Ok(stream)
    }

    pub(crate) fn forget_session(&self, id: u64) {
        let _sent = self.inner.commands.send(Command::Forget(id));
    }

    /// The text side of the model: tokenizer, chat format, defaults.
    #[must_use]
    pub fn text(&self) -> &Text {
        &self.inner.text
    }

    /// The model's numbers.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.inner.model.config
    }

    /// How activations meet weights.
    #[must_use]
    pub fn activation(&self) -> Activation {
        self.inner.model.activation
    }

    /// The instruction set in use.
    #[must_use]
    pub fn isa(&self) -> Isa {
        self.inner.model.isa
    }

    /// The longest sequence, prompt and answer together: what the model and the options allow, and
    /// what the memory for keys and values can hold.
    #[must_use]
    pub fn context_len(&self) -> usize {
        self.inner.limits.context_len
    }

    /// Counts every reference to pages anew and returns how many pages requests and sessions hold:
    /// for tests. What was cancelled before holds none.
    ///
    /// # Errors
    /// When the books are not in order, or the engine is closed.
    #[cfg(feature = "fault-injection")]
    pub fn check_books(&self) -> Result<usize> {
        let (answer, answered) = std::sync::mpsc::channel();
        let _sent = self.inner.commands.send(Command::Check(answer));
        answered.recv().unwrap_or(Err(Error::Closed))
    }

    /// Makes the step thread panic outside of any step, as only a bug can: for tests. The engine is
    /// closed then.
    #[cfg(feature = "fault-injection")]
    pub fn crash(&self) {
        let _sent = self.inner.commands.send(Command::Crash);
    }

    /// What was measured of the machine, what was chosen, and why.
    #[must_use]
    pub fn tuning(&self) -> Tuning {
        self.inner.tuning.lock().clone()
    }

    /// Measures the machine at length, and blocks the calling thread meanwhile (about a second for
    /// each number of threads, then a few for how products are best cut, on the model itself),
    /// chooses anew what the options left open, and keeps the numbers where
    /// [`Tune::Stored`](crate::Tune) says. Answers pause meanwhile and then go on as if nothing had
    /// happened. Measuring takes 64 MiB, and then scratch and pages for 256 rows at most. Under
    /// [`EngineOptions::max_memory`] pages that are kept for reuse go where there is no room for
    /// that, and where that is not enough it measures with less: numbers of less than 64 MiB hold
    /// for this engine alone and are not kept.
    ///
    /// # Errors
    /// When the system refuses threads or memory, the budget has no room for 16 MiB or for 16 rows,
    /// the weights are damaged, or the numbers cannot be stored: then nothing has changed.
    pub fn tune(&self) -> Result<Tuning> {
        let (reply, answer) = std::sync::mpsc::channel();
        let _sent = self.inner.commands.send(Command::Tune(reply));
        answer.recv().unwrap_or(Err(Error::Closed))
    }

    /// Says whether the queue has room for one more request: what [`Engine::submit`] would find
    /// now, before a prompt is made for it.
    ///
    /// # Errors
    /// [`Error::Overloaded`] and [`Error::Closed`].
    pub fn check_queue(&self) -> Result<()> {
        let Inner { waiting, limits, .. } = &*self.inner;
        match waiting.load(Ordering::Acquire) < limits.queue {
            true => Ok(()),
            false => self.inner.claim_place().map(drop),
        }
    }

    /// Ends the engine now, though handles are left: requests that wait, run or come end as closed
    /// ([`Error::Closed`]) at once, and then what is kept in files is written, with what sessions
    /// and those requests have computed. Blocks the calling thread until that is done, which may
    /// take a while; without it, dropping the last handle does the same.
    pub fn close(&self) {
        let inner = &self.inner;
        let _sent = inner.commands.send(Command::Close);
        let is_own = |handle: &JoinHandle<()>| handle.thread().id() == thread::current().id();
        while !inner.is_over() && !inner.thread.get().is_some_and(is_own) {
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Wakes the step thread for one iteration of its loop and returns a counter of its progress,
    /// which grows with every iteration and every request begun, and within a step with every layer
    /// and every few rows of logits; `None` when the thread has ended, so that no request will be
    /// answered. A counter that stays the same for much longer than a layer of the largest step
    /// takes, or than [`tune`](Self::tune), means that the thread hangs.
    #[must_use]
    pub fn pulse(&self) -> Option<u64> {
        let is_over = self.inner.is_over();
        self.inner.wake();
        (!is_over).then(|| self.inner.pulse.load(Ordering::Relaxed))
    }

    /// Says whether the model's files were found damaged: requests are refused from then on. Asks
    /// no file.
    ///
    /// # Errors
    /// With what was found.
    pub fn check_integrity(&self) -> Result<()> {
        Ok(self.inner.model.weights.check_damage()?)
    }

    /// What the engine has done so far.
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        let mut metrics = self.inner.recorder.snapshot();
        // The step thread has counted those that ran before.
        metrics.queued += self.inner.waiting.load(Ordering::Relaxed);
        metrics
    }
}

impl Inner {
    /// Makes the step thread look around.
    pub(crate) fn wake(&self) {
        let _sent = self.commands.send(Command::Wake);
    }

    /// Whether the step thread is over.
    fn is_over(&self) -> bool {
        self.thread.get().is_none_or(JoinHandle::is_finished)
    }

    /// The tokens as grammars want them; the first call makes them.
    ///
    /// # Errors
    /// [`Error::NoTokenizer`]; [`Error::Unsupported`] where there are too many tokens, or too long
    /// ones.
    pub(crate) fn vocabulary(&self) -> Result<&Arc<Vocabulary>> {
        let (tokenizer, size) = (self.text.tokenizer()?, self.model.config.vocabulary);
        let make = || Vocabulary::new(tokenizer, size).map(Arc::new);
        self.vocabulary.get_or_init(make).as_ref().ok_or_else(|| Error::Unsupported {
            what: "a grammar for this vocabulary",
            got: format!("{size} tokens"),
            expected: "fewer, or shorter ones".to_owned(),
        })
    }

    /// Takes a place in the queue.
    fn claim_place(&self) -> Result<Place<'_>> {
        let limit = self.limits.queue;
        let more = |waiting| (waiting < limit).then_some(waiting + 1);
        match self.waiting.fetch_update(Ordering::AcqRel, Ordering::Acquire, more) {
            Ok(_) => Ok(Place { waiting: &self.waiting }),
            // Nobody leaves the queue any more.
            Err(_) if self.is_over() => Err(Error::Closed),
            Err(waiting) => {
                self.recorder.rejected.fetch_add(1, Ordering::Relaxed);
                Err(Error::Overloaded { waiting, limit })
            }
        }
    }
}

/// Refuses a context that is longer than the model's before anything is loaded for it.
fn check_context(container: &Container, options: &EngineOptions) -> Result<()> {
    let Some(asked) = options.context_len else { return Ok(()) };
    let most = describe(container)?.0.context_len;
    if asked <= most {
        return Ok(());
    }
    let (got, expected) = (asked.to_string(), format!("at most the model's {most} tokens"));
    Err(Error::Option { field: "context_len", got, expected })
}

/// Says so where there were too few huge pages set aside for those that were asked for.
fn tell_reserved(model: &Model, cache: &KvCache, options: &EngineOptions) {
    if options.pages != Pages::Reserved {
        return;
    }
    let (weights, keys_and_values) = (model.weights.reserved_bytes(), cache.bytes_reserved());
    if keys_and_values == 0
        || (!model.weights.are_mapped() && weights < model.weights.resident_bytes())
    {
        tracing::warn!(
            weights,
            keys_and_values,
            "bytes on huge pages that are set aside (vm.nr_hugepages); the rest, for which there \
             are too few, lies on transparent ones"
        );
    }
}

/// A place in the queue, given back when dropped.
struct Place<'a> {
    waiting: &'a AtomicUsize,
}

impl Place<'_> {
    /// The step thread gives it back when the request leaves the queue.
    fn leave_to_step_thread(self) {
        std::mem::forget(self);
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.waiting.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let _sent = self.commands.send(Command::Close);
        if !self.waits {
            if let Some(background) = self.background.take() {
                background.leave();
            }
            return;
        }
        if let Some(handle) = self.thread.take()
            && handle.thread().id() != thread::current().id()
            && let Err(panic) = handle.join()
        {
            let reason = step::panic_message(&*panic);
            tracing::error!(%reason, "the step thread panicked: its requests ended as closed");
        }
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("model", &self.inner.model.config.architecture)
            .field("isa", &self.inner.model.isa)
            .field("context_len", &self.inner.limits.context_len)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use super::*;
    use crate::options::Tune;

    #[test]
    fn who_submits_waits_for_no_lock_of_the_step_thread() {
        let (threads, cache_bytes) = (Some(1), Some(8 << 20));
        let options = EngineOptions { queue_limit: 1, tune: Tune::Off, ..Default::default() };
        let options = EngineOptions { threads, cache_bytes, ..options };
        let engine = Engine::from_bytes_with(oss_demo::GGUF, options).unwrap();
        let held = engine.inner.recorder.lock();
        let (submitting, (answer, answered)) = (engine.clone(), channel());
        thread::spawn(move || {
            let request = || Request::text("Once").max_tokens(1);
            answer.send((submitting.submit(request()), submitting.submit(request()))).unwrap();
        });
        let (first, second) = answered.recv_timeout(Duration::from_secs(20)).unwrap();
        assert!(matches!(second, Err(Error::Overloaded { .. })));
        drop(held);
        first.unwrap().collect_all().unwrap();
        let metrics = engine.metrics();
        assert_eq!((metrics.submitted, metrics.rejected), (1, 1));
    }
}
