//! How the machine was measured, and what was chosen by it.
//!
//! Nothing here changes a result: threads, chunks, batches, the cutting of products and prefetching
//! decide when rows are computed, never what they give.

mod choose;
mod probe;
mod steps;
mod store;

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use oss_kernels::Activation;
use oss_model::{Model, State};
use oss_quant::{Dtype, Packing};
use oss_threads::Team;
use oss_threads::topology::Topology;
use serde::{Deserialize, Serialize};

pub use oss_model::Tiling;
pub use oss_simd::PrefetchPolicy;

use crate::budget::Spare;
use crate::error::Result;
use crate::options::{EngineOptions, Tune};

pub(crate) use self::choose::Batching;
pub(crate) use self::probe::Census;
pub use self::steps::{StepProfile, TiledStep};

/// What measuring at load may take.
const AT_LOAD: Duration = Duration::from_millis(120);
/// What measuring may take on request, for each number of threads.
const ON_REQUEST: Duration = Duration::from_millis(700);

/// What a machine does with so many threads.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ThreadProfile {
    /// Threads.
    pub threads: usize,
    /// Bytes a second that they read from memory together.
    pub read_bytes_per_s: f64,
    /// Multiplications a second, of eight rows with weights of the model's most common format.
    pub products_per_s: f64,
    /// Seconds that they take to meet: an empty phase.
    pub phase_s: f64,
}

/// What was measured of a machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Profile {
    /// By number of threads, ascending.
    pub threads: Vec<ThreadProfile>,
    /// Multiplications a second by kind of activation, with all those threads; measured on request
    /// only.
    pub peaks: Vec<(String, f64)>,
    /// Steps by how their products are computed; measured on request only, and not where experts
    /// are read from their file.
    pub steps: Option<StepProfile>,
    /// Seconds that measuring took.
    pub seconds: f64,
}

/// Where a profile is from.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Origin {
    /// Nothing was measured: measuring is off, all choices were given, the budget of memory has no
    /// room for it, or the model has no matrix that could stand for the others.
    Unmeasured,
    /// Measured while the engine was loaded.
    AtLoad,
    /// Measured by `Engine::tune`.
    OnRequest,
    /// Measured earlier, and kept in this file.
    Stored(PathBuf),
}

/// What was chosen, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice<T = usize> {
    /// The choice: a number, mostly.
    pub value: T,
    /// Whether it was given as an option, which is never overruled.
    pub given: bool,
    /// Why it is this one.
    pub reason: String,
}

/// What was measured and chosen; its text says it line by line.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Tuning {
    /// Where the profile is from.
    pub origin: Origin,
    /// The measured numbers.
    pub profile: Profile,
    /// Threads of the team.
    pub threads: Choice,
    /// The CPUs that they are bound to, the step thread's first; none where the system may move
    /// them.
    pub cpus: Choice<Vec<usize>>,
    /// The most prompt tokens of a step.
    pub prefill_chunk: Choice,
    /// The most rows of a step.
    pub max_batched_tokens: Choice,
    /// The most sequences that run at once.
    pub max_sequences: Choice,
    /// How products are cut into units of work.
    pub tiling: Choice<Tiling>,
    /// How weights are prefetched.
    pub prefetch: Choice<PrefetchPolicy>,
    /// What choosing goes on with: the times of the steps so far.
    pub observed: Observed,
}

/// What the steps of an engine have shown, and what follows for the next one.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Observed {
    /// Seconds of a step with one answer in it; 0 before the first.
    pub answer_step_s: f64,
    /// Seconds that each further answer, or guess, adds to a step.
    pub answer_row_s: f64,
    /// Seconds of a prompt token; 0 before the first prompt.
    pub prompt_row_s: f64,
    /// Prompt tokens that go through the layers together beside one answer, in a few steps each of
    /// which keeps to [`EngineOptions::max_prompt_step`].
    pub prompt_rows: usize,
    /// Sequences that may run now, to keep to [`EngineOptions::max_step`].
    pub sequences: usize,
}

/// What a profile is measured for.
pub(crate) struct Subject {
    isa: oss_simd::Isa,
    activation: Activation,
    /// The type that stands for the others, and the probe's matrix in it.
    common: Option<(Dtype, Packing)>,
    /// Bytes of all matrices, of those that one token needs, and the multiplications of a byte.
    needs: choose::Needs,
    /// Whether a part of the weights may stay in the file.
    has_experts: bool,
    /// Bytes of scratch for a row of a large step; 0 where that is so of none.
    row_bytes: usize,
    /// Bytes beside the matrices that are taken from the beginning: vectors and the vocabulary.
    others_bytes: usize,
}

impl Subject {
    pub(crate) fn new(census: &Census, model: &Model, vocabulary_bytes: usize) -> Result<Self> {
        let weights = &model.weights;
        let (all_bytes, layers) = (weights.packed_bytes().max(1), model.config.layers.len());
        let needs = choose::Needs {
            all_bytes: all_bytes as f64,
            token_bytes: weights.bytes_per_token(&model.config) as f64,
            products_per_byte: census.elements as f64 / all_bytes as f64,
            phases: (layers * choose::PHASES_OF_A_LAYER) as f64,
        };
        let has_experts = weights.expert_room().is_some();
        let (isa, activation) = (model.isa, model.activation);
        let row_bytes = if has_experts { State::row_bytes(model)? } else { 0 };
        let others_bytes = weights.vector_bytes() + vocabulary_bytes;
        let common = census.common;
        Ok(Self { isa, activation, common, needs, has_experts, row_bytes, others_bytes })
    }
}

/// Measures, or reads what was measured before, and chooses: at most 200 ms.
///
/// # Errors
/// When the system refuses threads or memory.
pub(crate) fn at_load(subject: &Subject, options: &EngineOptions) -> Result<Tuning> {
    let choosing = Choosing::new(subject, options);
    let Some((dtype, packing)) = subject.common.filter(|_| choosing.wants_measuring()) else {
        return Ok(choosing.choose(Origin::Unmeasured, Profile::default()));
    };
    let key = store::key(subject, dtype, options.pin);
    if let Tune::Stored(directory) = &options.tune
        && let Some((path, profile)) = store::read(directory, &key)
        && choosing.counts().iter().all(|count| profile.of(*count).is_some())
    {
        return Ok(choosing.choose(Origin::Stored(path), profile));
    }
    let profile = choosing.measure(packing, probe::MEMORY[0], AT_LOAD)?;
    if let Tune::Stored(directory) = &options.tune {
        // A cache that cannot be written costs the next engine a fifth of a second.
        if let Err(error) = store::write(directory, &key, &profile) {
            tracing::warn!(%error, "the profile was not stored");
        }
    }
    Ok(choosing.choose(Origin::AtLoad, profile))
}

/// Bytes that measuring on request takes where it has all the room that it wants.
///
/// # Errors
/// When the system refuses memory.
pub(crate) fn wanted_bytes(
    subject: &Subject,
    options: &EngineOptions,
    model: &Model,
) -> Result<usize> {
    let choosing = Choosing { all: true, ..Choosing::new(subject, options) };
    let Some((_, packing)) = subject.common else { return Ok(0) };
    let threads = choosing.most_threads();
    let machine = probe::bytes(probe::MEMORY[0], packing, threads);
    match choosing.is_larger_than_memory() {
        true => Ok(machine),
        false => Ok(machine.max(steps::bytes(model, threads, steps::MOST_ROWS)?)),
    }
}

/// Measures at length, in what memory there is to spare, and chooses; `team` gives the team of so
/// many threads, with which the engine goes on. Where the options say so the result is kept for
/// other engines, unless there was too little memory for numbers that hold for them.
///
/// # Errors
/// When the system refuses threads or memory, there is too little to spare, the weights are
/// damaged, or the profile cannot be stored.
pub(crate) fn on_request(
    subject: &Subject,
    options: &EngineOptions,
    (model, spare): (&Model, &Spare<'_>),
    team: impl FnOnce(usize) -> Result<Team>,
) -> Result<(Tuning, Team)> {
    let begin = Instant::now();
    let choosing = Choosing { all: true, ..Choosing::new(subject, options) };
    let Some((dtype, packing)) = subject.common else {
        let tuning = choosing.choose(Origin::Unmeasured, Profile::default());
        let team = team(tuning.threads.value)?;
        return Ok((tuning, team));
    };
    let limit = ON_REQUEST * choosing.counts().len() as u32;
    let threads = choosing.most_threads();
    let bytes = |memory: usize| probe::bytes(memory, packing, threads);
    let [full, .., least] = probe::MEMORY;
    let memory = probe::MEMORY.into_iter().find(|memory| spare.holds(bytes(*memory)));
    let memory = memory.unwrap_or(least);
    let profile = {
        let _taken = spare.take("memory to measure the machine in", bytes(memory))?;
        choosing.measure(packing, memory, limit)?
    };
    let Tuning { threads, prefill_chunk, mut profile, .. } =
        choosing.choose(Origin::OnRequest, profile);
    let team = team(threads.value)?;
    if !choosing.is_larger_than_memory() {
        let _affinity = team.pin_caller()?;
        profile.steps = Some(steps::measure(model, &team, prefill_chunk.value, spare)?);
    }
    profile.seconds = begin.elapsed().as_secs_f64();
    if let Tune::Stored(directory) = &options.tune {
        if memory == full {
            store::write(directory, &store::key(subject, dtype, options.pin), &profile)?;
        } else {
            // A cache may hold so little: engines with more room should not go by its speed.
            let wanted = full;
            tracing::warn!(memory, wanted, "measured in a tight budget: the profile is not stored");
        }
    }
    Ok((choosing.choose(Origin::OnRequest, profile), team))
}

/// Threads that the machine has room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Room {
    /// One a performance core: what is usual.
    usual: usize,
    /// One a core of any kind.
    cores: usize,
    /// One a hardware thread.
    cpus: usize,
}

impl Room {
    fn here() -> Self {
        // It also knows the quotas of control groups of version 1, and of other systems.
        let available = std::thread::available_parallelism().map_or(1, usize::from);
        let alike = Self { usual: available, cores: available, cpus: available };
        Topology::read().map_or(alike, |topology| Self::of(&topology, available))
    }

    fn of(topology: &Topology, available: usize) -> Self {
        let [usual, cores] = [topology.default_threads(), topology.core_threads()];
        let cores = cores.min(available);
        let cpus = topology.cpu_threads().min(available);
        Self { usual: usual.min(available), cores, cpus }
    }
}

/// The subject, the options, and the machine.
struct Choosing<'a> {
    subject: &'a Subject,
    options: &'a EngineOptions,
    room: Room,
    /// Whether every sensible number of threads is measured.
    all: bool,
}

impl<'a> Choosing<'a> {
    fn new(subject: &'a Subject, options: &'a EngineOptions) -> Self {
        Self { subject, options, room: Room::here(), all: false }
    }

    /// Threads that are not ours to choose.
    fn given_threads(&self) -> Option<usize> {
        let shared = self.options.team.as_ref().map(Team::threads);
        shared.or(self.options.threads)
    }

    fn wants_measuring(&self) -> bool {
        let EngineOptions { tune, prefill_chunk, max_sequences, max_memory, .. } = self.options;
        let Subject { needs, others_bytes, .. } = self.subject;
        let taken = needs.all_bytes as usize + others_bytes + probe::MEMORY[0];
        let open =
            self.given_threads().is_none() || prefill_chunk.is_none() || max_sequences.is_none();
        open && *tune != Tune::Off && max_memory.is_none_or(|most| most >= taken)
    }

    /// Whether some of the weights have to be read again and again.
    fn is_larger_than_memory(&self) -> bool {
        let all = self.subject.needs.all_bytes as usize;
        self.subject.has_experts && self.options.max_memory.is_some_and(|most| most < all)
    }

    /// The numbers of threads to be measured, ascending.
    fn counts(&self) -> Vec<usize> {
        if let Some(given) = self.given_threads() {
            return vec![given];
        }
        // What else runs at load should not leave cores unused for good: fewer threads than cores
        // are tried on request alone.
        let Room { usual, cores, cpus } = self.room;
        let mut counts = vec![usual, cores, cpus];
        if self.all {
            let halves = std::iter::successors(Some(cpus), |n| (*n > 1).then_some(n / 2));
            counts.extend(halves);
            counts.extend([1, cores * 3 / 4]);
        }
        counts.retain(|count| (1..=oss_threads::MAX_THREADS).contains(count));
        counts.sort_unstable();
        counts.dedup();
        counts
    }

    /// The most threads that are measured.
    fn most_threads(&self) -> usize {
        self.counts().into_iter().max().unwrap_or(1).max(self.room.cores)
    }

    /// Measures the machine by reading so many bytes again and again, and by multiplying.
    fn measure(&self, packing: Packing, memory: usize, limit: Duration) -> Result<Profile> {
        let begin = Instant::now();
        let Subject { isa, activation, .. } = *self.subject;
        let counts = self.counts();
        let pin = self.options.pin;
        let mut probe = probe::Probe::new(isa, activation, packing, memory, (pin, limit))?;
        let mut threads = Vec::with_capacity(counts.len());
        // The other kinds of activation, measured at the end, get as much time as a count.
        let others = usize::from(self.all);
        for (index, count) in counts.iter().enumerate() {
            let share = 1.0 / (counts.len() - index + others) as f64;
            threads.push(probe.measure(*count, share)?);
        }
        let mut peaks = Vec::new();
        for activation in Activation::ALL {
            if self.all {
                probe = probe.with_activation(activation);
                let measured = probe.measure(self.room.cores, 0.3)?;
                peaks.push((activation.name().to_owned(), measured.products_per_s));
            }
        }
        let seconds = begin.elapsed().as_secs_f64();
        Ok(Profile { threads, peaks, steps: None, seconds })
    }
}

impl Profile {
    /// What was measured with so many threads.
    #[must_use]
    pub fn of(&self, threads: usize) -> Option<&ThreadProfile> {
        self.threads.iter().find(|profile| profile.threads == threads)
    }
}

/// The tuning of an engine: its handles read it, its step thread changes it.
#[derive(Clone)]
pub(crate) struct SharedTuning(Arc<Mutex<Tuning>>);

impl SharedTuning {
    pub(crate) fn new(tuning: Tuning) -> Self {
        Self(Arc::new(Mutex::new(tuning)))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Tuning> {
        // Whatever panicked under the lock left numbers and texts whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Display for Tuning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.origin {
            Origin::Unmeasured => writeln!(f, "nothing was measured")?,
            Origin::Stored(path) => writeln!(f, "measured earlier: {}", path.display())?,
            Origin::AtLoad | Origin::OnRequest => {
                writeln!(f, "measured in {:.0} ms", self.profile.seconds * 1e3)?;
            }
        }
        for ThreadProfile { threads, read_bytes_per_s, products_per_s, phase_s } in
            &self.profile.threads
        {
            let (read, products) = (read_bytes_per_s / 1e9, products_per_s / 1e9);
            writeln!(
                f,
                "  {threads} threads: read {read:.1} GB/s, multiply {products:.1} G/s, meet in \
                 {:.1} us",
                phase_s * 1e6
            )?;
        }
        for (activation, products) in &self.profile.peaks {
            writeln!(f, "  {activation} activations: multiply {:.1} G/s", products / 1e9)?;
        }
        let choices = [
            ("threads", &self.threads),
            ("prefill_chunk", &self.prefill_chunk),
            ("max_batched_tokens", &self.max_batched_tokens),
            ("max_sequences", &self.max_sequences),
        ];
        for (name, choice) in choices {
            writeln!(f, "{name} = {}: {}", choice.value, choice.reason)?;
        }
        let cpus: Vec<String> = self.cpus.value.iter().map(ToString::to_string).collect();
        let cpus = if cpus.is_empty() { "any".to_owned() } else { cpus.join(", ") };
        writeln!(f, "cpus = {cpus}: {}", self.cpus.reason)?;
        let Choice { value: Tiling { input_rows, matrix_rows, wide_rows }, reason, .. } =
            &self.tiling;
        writeln!(f, "tiling = {input_rows} x {matrix_rows}, {wide_rows}: {reason}")?;
        let Choice { value, reason, .. } = &self.prefetch;
        writeln!(f, "prefetch = {}: {reason}", value.name().unwrap_or("another way"))?;
        self.observed.fmt(f)
    }
}

impl fmt::Display for Observed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.answer_step_s == 0.0 {
            return Ok(());
        }
        let [step, row, prompt] =
            [self.answer_step_s, self.answer_row_s, self.prompt_row_s].map(|seconds| seconds * 1e3);
        write!(f, "steps so far: {step:.2} ms with one answer, {row:.2} ms for each other, ")?;
        writeln!(f, "{prompt:.2} ms a prompt token")?;
        let Self { prompt_rows, sequences, .. } = self;
        write!(f, "{prompt_rows} prompt tokens go through the layers together beside one, ")?;
        writeln!(f, "and {sequences} sequences may run")
    }
}
