//! The runs.

use crate::Arguments;
use anyhow::{Context, Result, ensure};
use oss_cache::{KvCache, Options, SequenceId};
use oss_engine::{Activation, Isa, Team};
use oss_examples::machine::{Energy, resident_peak};
use oss_machine::{ReadProbe, ReadWay, Sample, best_way, int8_peak};
use oss_model::{
    Batch, Config, Event, FeedForward, LoadOptions, Model, Probe, Row, State, describe, forward,
    head, memory_policy, team_options,
};
use oss_testing::median;
use oss_threads::topology::default_threads;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// Rows of a step, at most: prompts are taken in pieces of this size.
const MAX_ROWS: usize = 512;

/// Tokens of the prompt that warms up.
const WARM_UP: usize = 64;

/// What was measured.
pub(crate) struct Found {
    pub(crate) isa: Isa,
    pub(crate) activations: &'static str,
    pub(crate) threads: usize,
    pub(crate) architecture: &'static str,
    /// Bytes of weights that one token reads.
    pub(crate) bytes_per_token: usize,
    /// What one token of the prompt takes, on average.
    pub(crate) products_per_token: Products,
    pub(crate) load_s: f64,
    pub(crate) first_token_s: f64,
    pub(crate) resident_bytes: Option<u64>,
    /// Operations per second.
    pub(crate) int8_peak: f64,
    /// The way to read that was best, by its median.
    pub(crate) read_way: ReadWay,
    /// What it gave, in bytes per second, in order of time.
    pub(crate) read_rates: Vec<f64>,
    /// Bytes per second of the weights of a token, read where they lie and not used.
    pub(crate) weights_read_rates: Vec<f64>,
    /// Different experts that a step of decoding touches, the mean over steps and layers; `None` in
    /// models without experts.
    pub(crate) distinct_experts: Option<f64>,
    pub(crate) prefills: Vec<Run>,
    pub(crate) decodes: Vec<Run>,
}

impl Found {
    /// Bytes per second that can be read.
    pub(crate) fn read_rate(&self) -> f64 {
        median(self.read_rates.iter().copied()).unwrap_or(0.0)
    }

    /// Bytes per second that were read just before and just after a run, on average. In the way
    /// that was best in all samples: the best in these two would be the luckiest.
    pub(crate) fn read_rate_around(&self, run: &Run) -> f64 {
        (self.read_rates[run.before] + self.read_rates[run.before + 1]) / 2.0
    }
}

/// One prefill, or one decoding.
pub(crate) struct Run {
    pub(crate) tokens: usize,
    /// Seconds of each step.
    pub(crate) steps: Vec<f64>,
    /// Bytes of weights that the steps read: of the experts those that they touched.
    pub(crate) bytes: usize,
    touched: Touched,
    /// Which of the samples was taken just before; the next one was taken just after.
    pub(crate) before: usize,
    /// Bytes per second of the weights of a token, read just after.
    pub(crate) weights_read_rate: f64,
    pub(crate) joules: Option<f64>,
}

impl Run {
    pub(crate) fn seconds(&self) -> f64 {
        self.steps.iter().sum()
    }

    pub(crate) fn tokens_per_s(&self) -> f64 {
        self.tokens as f64 / self.seconds()
    }

    /// Bytes of weights that were read in a second.
    pub(crate) fn bytes_per_s(&self) -> f64 {
        self.bytes as f64 / self.seconds()
    }
}

/// How many different experts steps have touched, all layers together, and their bytes.
#[derive(Clone, Copy, Default)]
struct Touched {
    layers: usize,
    experts: usize,
    bytes: usize,
}

/// A loaded model and all that it runs with.
pub(crate) struct Bench {
    model: Model,
    team: Team,
    state: State,
    cache: KvCache,
    /// Counted while the model runs.
    touched: Arc<Mutex<Touched>>,
    probe: ReadProbe,
    energy: Option<Energy>,
    /// Idleness before each prefill and each decoding.
    pause: Duration,
    load_s: f64,
}

impl Bench {
    /// Loads the model.
    pub(crate) fn load(arguments: &Arguments) -> Result<Self> {
        let model = &arguments.model;
        let (batch, depth) = (arguments.batch, arguments.depth);
        ensure!(arguments.repeat > 0, "--repeat: got 0, expected at least 1");
        let fits = (1..=MAX_ROWS).contains(&batch);
        ensure!(fits, "--batch: got {batch}, expected 1 to {MAX_ROWS}, which fit a step");
        let isa = model.isa.map_or_else(Isa::detect, Ok)?;
        let threads = model.threads.unwrap_or_else(default_threads);
        // What is refused is told before anything is made that takes time or memory.
        let start = Instant::now();
        let container = Arc::new(model.file.container()?);
        let behind = arguments.gen_tokens.max(arguments.prompt_tokens).max(1);
        let context = depth.saturating_add(behind);
        let most = describe(&container)?.0.context_len;
        let flags = "--depth with --gen-tokens or --prompt-tokens";
        ensure!(context <= most, "{flags}: got {context} positions, expected at most {most}");
        let opened = start.elapsed();
        let policy = memory_policy(model.placement, Path::new("/"))?;
        let team = Team::with_options(&team_options(threads, model.pin, &policy))?;
        // Before the model, so that its memory is a constant part of what is resident.
        let probe = ReadProbe::new(isa, threads)?;
        let start = Instant::now();
        let (activation, kv_format) = (model.activation, model.kv_format);
        let (pages, sparse_attention, progress) = (model.pages, model.sparse_attention, None);
        let options = LoadOptions { isa, activation, kv_format, pages, sparse_attention, progress };
        let mut model = Model::load(container, options)?;
        model.weights.place(&policy)?;
        let load_s = (opened + start.elapsed()).as_secs_f64();
        let mut state = State::new(&model, MAX_ROWS.max(batch), threads)?;
        let touched = Arc::new(Mutex::new(Touched::default()));
        state.set_probe(Some(count_experts(&model, Arc::clone(&touched))));
        let tokens = batch * (depth + arguments.gen_tokens) + arguments.prompt_tokens.max(WARM_UP);
        let capacity_bytes = cache_bytes(&model, batch, tokens);
        let options = Options { capacity_bytes, memory: policy, ..Options::default() };
        let cache = KvCache::with_options(model.cache_shape(), &options)?;
        let energy = Energy::find();
        let pause = arguments.pause;
        Ok(Self { model, team, state, cache, touched, probe, energy, pause, load_s })
    }

    /// Measures everything.
    pub(crate) fn run(mut self, arguments: &Arguments) -> Result<Found> {
        // This thread is worker 0 of the team.
        let _affinity = self.team.pin_caller()?;
        let first_token_s = self.first_token(arguments.prompt_tokens.max(1))?;
        if arguments.model.huge_pages {
            self.model.weights.promote(|_| true)?;
        }
        // Enough tokens that almost every expert has been touched before anything is measured.
        self.first_token(WARM_UP.min(self.model.config.context_len))?;
        let sequences: Vec<SequenceId> =
            (0..arguments.batch).map(|n| self.prompt(n, arguments.depth)).collect::<Result<_>>()?;
        let mut peak = int8_peak(self.model.isa, &self.team);
        let mut samples = vec![self.probe.sample()];
        let (mut prefills, mut decodes) = (Vec::new(), Vec::new());
        let pause = self.pause;
        for _ in 0..arguments.repeat {
            if arguments.gen_tokens > 0 {
                thread::sleep(pause);
                let run = self.decode(&sequences, arguments.gen_tokens)?;
                decodes.push(self.sampled(run, &mut samples));
            }
            if arguments.prompt_tokens > 0 {
                thread::sleep(pause);
                let run = self.prefill(sequences[0], arguments.prompt_tokens)?;
                prefills.push(self.sampled(run, &mut samples));
                peak = peak.max(int8_peak(self.model.isa, &self.team));
            }
        }
        let (read_way, read_rates) = best_way(&samples).context("no way to read")?;
        let own = self.probe.bytes() as u64;
        Ok(Found {
            isa: self.model.isa,
            activations: self.model.activation.name(),
            threads: self.team.threads(),
            architecture: self.model.config.architecture,
            bytes_per_token: self.model.weights.bytes_per_token(&self.model.config),
            products_per_token: Products::of(&self.model, arguments.prompt_tokens),
            load_s: self.load_s,
            first_token_s,
            resident_bytes: resident_peak().map(|peak| peak.saturating_sub(own)),
            int8_peak: peak,
            read_way,
            read_rates,
            weights_read_rates: decodes.iter().map(|run| run.weights_read_rate).collect(),
            distinct_experts: distinct_experts(&decodes),
            prefills,
            decodes,
        })
    }

    /// What the steps since the last call have touched.
    fn touched(&mut self) -> Touched {
        std::mem::take(&mut self.touched.lock().expect("no holder panics"))
    }

    /// Takes a sample after a run and tells the run where it lies among them.
    fn sampled(&self, mut run: Run, samples: &mut Vec<Vec<Sample>>) -> Run {
        run.before = samples.len() - 1;
        samples.push(self.probe.sample());
        run.weights_read_rate = self.weights_read_rate();
        run
    }

    /// Bytes per second of the weights of one token, read where they lie: memory need not be
    /// equally fast everywhere, least of all that of a virtual machine.
    fn weights_read_rate(&self) -> f64 {
        let Model { weights, config, .. } = &self.model;
        let (bytes, sections) = (weights.bytes_per_token(config), weights.sections());
        let (dense, experts) = sections.split_at(1.min(sections.len()));
        let dense_bytes = bytes.min(dense.iter().map(|section| section.len()).sum());
        let mut seconds = dense_bytes as f64 / self.probe.rate_of(dense);
        if bytes > dense_bytes {
            seconds += (bytes - dense_bytes) as f64 / self.probe.rate_of(experts);
        }
        bytes as f64 / seconds
    }

    /// Seconds from the loaded model to the logits of a first prompt.
    fn first_token(&mut self, tokens: usize) -> Result<f64> {
        let sequence = self.cache.create();
        let start = Instant::now();
        self.take(sequence, 0, tokens)?;
        let seconds = start.elapsed().as_secs_f64();
        self.cache.remove(sequence);
        Ok(seconds)
    }

    /// A new sequence with so many positions.
    fn prompt(&mut self, salt: usize, tokens: usize) -> Result<SequenceId> {
        let sequence = self.cache.create();
        self.take(sequence, salt, tokens)?;
        Ok(sequence)
    }

    /// Appends a prompt to a sequence, and computes the logits of its last token.
    fn take(&mut self, sequence: SequenceId, salt: usize, tokens: usize) -> Result<()> {
        let end = self.cache.len(sequence) + tokens;
        while self.cache.len(sequence) < end {
            let position = self.cache.len(sequence);
            let n = MAX_ROWS.min(end - position);
            let rows: Vec<Row> = (position..position + n)
                .map(|at| self.row(sequence, salt, at, at + 1 == end))
                .collect();
            self.step(&rows)?;
        }
        Ok(())
    }

    /// Seconds of a prompt after what `parent` has.
    fn prefill(&mut self, parent: SequenceId, tokens: usize) -> Result<Run> {
        let sequence = self.cache.fork(parent)?;
        let run = self.watch(tokens, |bench| {
            let start = Instant::now();
            bench.take(sequence, 1, tokens)?;
            Ok(vec![start.elapsed().as_secs_f64()])
        });
        self.cache.remove(sequence);
        run
    }

    /// Seconds of each step in which all sequences generate a token after what `parents` have, and
    /// which experts that took.
    fn decode(&mut self, parents: &[SequenceId], tokens: usize) -> Result<Run> {
        let forks = parents.iter().map(|parent| self.cache.fork(*parent));
        let sequences: Vec<SequenceId> = forks.collect::<Result<_, _>>()?;
        self.touched();
        let mut run = self.watch(tokens * sequences.len(), |bench| {
            let step = |_| {
                let rows = bench.rows(&sequences);
                let start = Instant::now();
                bench.step(&rows)?;
                Ok(start.elapsed().as_secs_f64())
            };
            (0..tokens).map(step).collect()
        })?;
        for sequence in sequences {
            self.cache.remove(sequence);
        }
        run.touched = self.touched();
        run.bytes = tokens * self.model.weights.dense_bytes() + run.touched.bytes;
        Ok(run)
    }

    /// Runs steps that give their seconds, and reads the counters of energy around them.
    fn watch(
        &mut self,
        tokens: usize,
        work: impl FnOnce(&mut Self) -> Result<Vec<f64>>,
    ) -> Result<Run> {
        let before = self.energy.as_ref().and_then(Energy::read);
        let steps = work(self)?;
        let energy = self.energy.as_ref().zip(before);
        let joules = energy.and_then(|(energy, before)| energy.joules_since(&before));
        let touched = Touched::default();
        Ok(Run { tokens, steps, bytes: 0, touched, before: 0, weights_read_rate: 0.0, joules })
    }

    /// The next token of each sequence.
    fn rows(&self, sequences: &[SequenceId]) -> Vec<Row> {
        let numbered = sequences.iter().enumerate();
        numbered.map(|(salt, id)| self.row(*id, salt, self.cache.len(*id), true)).collect()
    }

    /// A token that depends on the place, as different from the others as those of a text.
    fn row(&self, sequence: SequenceId, salt: usize, position: usize, wanted: bool) -> Row {
        let token = (position * 7919 + salt * 104_729 + 11) % self.model.config.vocabulary;
        Row { sequence, position, token: token as u32, wanted, draft: false }
    }

    /// One step of the model: the forward pass, and the logits of the wanted rows.
    fn step(&mut self, rows: &[Row]) -> Result<()> {
        let Self { model, team, state, cache, .. } = self;
        let layers = 0..model.config.layers.len();
        forward(model, team, state, cache, Batch { rows }, layers)?;
        let wanted = rows.iter().filter(|row| row.wanted).count();
        if wanted > 0 {
            let logits = head(model, team, state, 0..wanted);
            std::hint::black_box(logits);
        }
        Ok(())
    }
}

/// Different experts that a step touches, the mean over steps and layers; `None` without experts.
fn distinct_experts(decodes: &[Run]) -> Option<f64> {
    let sum = |of: fn(&Touched) -> usize| decodes.iter().map(|run| of(&run.touched)).sum::<usize>();
    let layers = sum(|touched| touched.layers);
    (layers > 0).then(|| sum(|touched| touched.experts) as f64 / layers as f64)
}

/// Counts the experts that steps touch.
fn count_experts(model: &Model, to: Arc<Mutex<Touched>>) -> Probe {
    let bytes: Vec<usize> =
        (0..model.config.layers.len()).map(|layer| model.weights.expert_bytes(layer)).collect();
    let mut seen = vec![false; model.config.max_experts()];
    Box::new(move |event| {
        if let Event::Routing { layer, experts, .. } = event {
            seen.fill(false);
            experts.iter().for_each(|expert| seen[*expert as usize] = true);
            let n = seen.iter().filter(|seen| **seen).count();
            let mut to = to.lock().expect("no holder panics");
            *to = Touched {
                layers: to.layers + 1,
                experts: to.experts + n,
                bytes: to.bytes + n * bytes[layer],
            };
        }
    })
}

/// Enough for so many positions in all, with a page more for each sequence and its fork.
fn cache_bytes(model: &Model, batch: usize, tokens: usize) -> usize {
    let shape = model.cache_shape();
    let pages = tokens.div_ceil(shape.page_tokens) + 2 * (batch + 1);
    let slots: usize = shape.groups.iter().map(|group| group.layers.len()).sum();
    // Windowed layers need less, but groups round up; memory that is not used costs nothing.
    2 * pages * slots * shape.n_kv_heads * shape.slot_bytes
}

/// Products of weights and activations.
pub(crate) struct Products {
    pub(crate) all: f64,
    /// Of bytes: each plane of 8-bit codes has products of its own. Floats have none.
    pub(crate) of_bytes: Option<f64>,
}

impl Products {
    /// In one token of a prompt, on average: all matrices but the head. What the last layer has
    /// behind queries, keys and values works on the prompt's last token alone.
    fn of(model: &Model, prompt_tokens: usize) -> Self {
        let (qkv, behind) = products_per_token(&model.config, prompt_tokens);
        let [first, others] = [model.qkv_activation(), model.activation].map(Activation::planes);
        let of_bytes = qkv * first as f64 + behind * others as f64;
        Self { all: qkv + behind, of_bytes: (others > 0).then_some(of_bytes) }
    }
}

/// Those for queries, keys and values, and those behind them.
fn products_per_token(config: &Config, prompt_tokens: usize) -> (f64, f64) {
    let (hidden, q) = (config.hidden_dim, config.q_dim());
    let qkv = config.layers.len() * hidden * config.qkv_dim();
    let behind = config.layers.iter().map(|layer| {
        q * hidden
            + match layer.feed_forward {
                FeedForward::Dense { intermediate_dim } => 3 * hidden * intermediate_dim,
                FeedForward::Experts { intermediate_dim, n_experts, top_k } => {
                    hidden * n_experts + top_k * 3 * hidden * intermediate_dim
                }
            }
    });
    let behind: Vec<usize> = behind.collect();
    let last = behind.last().copied().unwrap_or(0);
    let each = behind.iter().sum::<usize>() - last;
    (qkv as f64, each as f64 + last as f64 / prompt_tokens.max(1) as f64)
}
