//! How an engine is made.

use std::fmt;
use std::ops::ControlFlow;
use std::path::{self, Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use oss_cache::EvictionPolicy;
use oss_kernels::Activation;
use oss_kernels::attention::SparseAttention;
use oss_memory::Pages;
use oss_memory::placement::Placement;
use oss_quant::kv::{KvFormat, PAGE_TOKENS};
use oss_simd::Isa;
use oss_threads::{Team, TeamOptions};

use crate::error::{Error, Result};
use crate::tiers::ColdTier;

/// The most rows of a step, and of a chunk: as many as the longest contexts have. Scratch grows
/// with them.
const MOST_ROWS: usize = 1 << 20;
/// The most sequences that may run at once.
const MOST_SEQUENCES: usize = 1 << 16;
/// The most guesses that may be verified at once: a sequence can be shortened by less than a page
/// wherever it stands.
const MOST_DRAFTS: usize = PAGE_TOKENS - 1;

/// Called while weights are packed, from several threads: bytes done, of how many. Where it breaks,
/// loading ends with [`Error::LoadCancelled`]; of a model that is packed to a file, what was
/// written is kept for the next load.
///
/// ```
/// use std::ops::ControlFlow;
///
/// use oss_engine::{Engine, EngineOptions, Error, LoadProgress};
///
/// let progress = LoadProgress::new(|done, all| match 2 * done < all {
///     true => ControlFlow::Continue(()),
///     false => ControlFlow::Break(()),
/// });
/// let options = EngineOptions { progress: Some(progress), ..Default::default() };
/// let loaded = Engine::from_bytes_with(oss_demo::GGUF, options);
/// assert!(matches!(loaded, Err(Error::LoadCancelled)));
/// ```
#[derive(Clone)]
pub struct LoadProgress(Arc<dyn Fn(u64, u64) -> ControlFlow<()> + Send + Sync>);

impl LoadProgress {
    /// Tells it to `show`.
    pub fn new(show: impl Fn(u64, u64) -> ControlFlow<()> + Send + Sync + 'static) -> Self {
        Self(Arc::new(show))
    }

    pub(crate) fn shown(&self) -> oss_model::Progress<'_> {
        &*self.0
    }
}

impl fmt::Debug for LoadProgress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoadProgress").finish_non_exhaustive()
    }
}

/// Whether an answer's next tokens are guessed from the text so far and verified together.
///
/// It never changes tokens, log-probabilities or how an answer ends, only how long they take: each
/// token is drawn at its own place as it would be alone, and a guess counts where it is what was
/// drawn. Penalties, grammars and constraints see only what was drawn, so that nothing of them is
/// ever taken back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Speculation {
    /// As many guesses as pay: by how often they come true and what the observed steps cost.
    #[default]
    Auto,
    /// One token a step.
    Off,
    /// This many guesses (1 to 15) wherever the text so far suggests any.
    Always(usize),
}

impl fmt::Display for Speculation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Off => f.write_str("off"),
            Self::Always(guesses) => write!(f, "{guesses}"),
        }
    }
}

impl FromStr for Speculation {
    type Err = Error;

    /// Reads `auto`, `off` or a number of guesses, as they are displayed.
    fn from_str(text: &str) -> Result<Self> {
        match (text, text.parse::<usize>()) {
            ("auto", _) => Ok(Self::Auto),
            ("off", _) => Ok(Self::Off),
            (_, Ok(guesses)) if (1..=MOST_DRAFTS).contains(&guesses) => Ok(Self::Always(guesses)),
            _ => {
                let expected = format!("auto, off or 1 to {MOST_DRAFTS} guesses");
                Err(Error::Option { field: "speculation", got: text.to_owned(), expected })
            }
        }
    }
}

/// Whether the machine is measured for the options that are left open: threads, chunk and batch.
///
/// It never changes tokens, only how long they take.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Tune {
    /// Nothing is measured: usual numbers are taken.
    Off,
    /// Measured when the engine is loaded, in at most 200 ms.
    #[default]
    AtLoad,
    /// The same, unless this directory has the numbers of an earlier engine of the same build with
    /// the same weights on the same processor; they are kept there, unless a tight budget made
    /// them less exact.
    Stored(PathBuf),
}

impl fmt::Display for Tune {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::AtLoad => f.write_str("on"),
            Self::Stored(directory) => write!(f, "{}", directory.display()),
        }
    }
}

impl FromStr for Tune {
    type Err = Error;

    /// Reads `off`, `on` or a directory. One that is not there yet needs a separator in its name,
    /// such as `./numbers`: a mistyped word would become a directory otherwise.
    fn from_str(text: &str) -> Result<Self> {
        let is_directory = text.contains(path::is_separator) || Path::new(text).is_dir();
        match text {
            "off" => Ok(Self::Off),
            "on" => Ok(Self::AtLoad),
            directory if is_directory => Ok(Self::Stored(directory.into())),
            other => {
                let expected = format!("off, on or a directory (./{other})");
                Err(Error::Option { field: "tune", got: other.to_owned(), expected })
            }
        }
    }
}

/// How an engine is made. The default suits one program that has the machine to itself.
///
/// Options are fields; what is not said is the default's. This engine keeps to a budget and leaves
/// keys and values to the next one:
///
/// ```
/// use oss_engine::{ColdTier, Engine, EngineOptions};
///
/// # fn main() -> oss_engine::Result<()> {
/// # let directory = std::env::temp_dir().join(format!("oss-options-{}", std::process::id()));
/// let cold = ColdTier { directory: directory.clone(), bytes: 1 << 30 };
/// let options = EngineOptions {
///     max_memory: Some(64 << 20),
///     cold: Some(cold),
///     ..Default::default()
/// };
/// let engine = Engine::from_bytes_with(oss_demo::GGUF, options)?;
/// assert!(engine.metrics().memory.total() <= 64 << 20);
/// # drop(engine);
/// # std::fs::remove_dir_all(directory).ok();
/// # Ok(())
/// # }
/// ```
///
/// Several engines of a process may share their threads:
///
/// ```
/// use oss_engine::{Engine, EngineOptions, Team, TeamOptions};
///
/// # fn main() -> oss_engine::Result<()> {
/// let team = Team::with_options(&TeamOptions::new(2))?;
/// let load = || {
///     let options = EngineOptions { team: Some(team.clone()), ..Default::default() };
///     Engine::from_bytes_with(oss_demo::GGUF, options)
/// };
/// let (one, other) = (load()?, load()?);
/// assert_eq!((one.tuning().threads.value, other.tuning().threads.value), (2, 2));
/// # Ok(())
/// # }
/// ```
///
/// `activation`, `kv_format` and `sparse_attention` decide the bits of the results; the others
/// never do.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// A team of workers to share with other engines; `None`: the engine makes its own. Where it is
    /// bound to CPUs, the step thread takes the first of them, which is worker 0's.
    pub team: Option<Team>,
    /// Threads of the engine's own team, the step thread included; `None`: one a performance core
    /// (any core, where all are alike) that this process may use, or another number where it is
    /// measured to be clearly faster.
    pub threads: Option<usize>,
    /// Whether each thread of the engine's own team, the step thread included, is bound to a CPU of
    /// its own among those that this process may use: one of each core first, performance cores
    /// before others. It helps where the system would move threads about, and harms where other
    /// programs want the same cores. Refused where there are fewer such CPUs than threads (or the
    /// quota of the control group allows fewer), beside a team that is given ([`TeamOptions::pin`]
    /// binds that one), and on systems other than Linux.
    pub pin: bool,
    /// The instruction set; `None`: the best one here, or what `OSS_ISA` names.
    pub isa: Option<Isa>,
    /// How activations meet weights; where they are 8-bit codes, some in narrow models are 16-bit
    /// ones, see [`ModelConfig::qkv_activation`](crate::ModelConfig::qkv_activation).
    pub activation: Activation,
    /// How keys and values are stored.
    pub kv_format: KvFormat,
    /// What tokens of long contexts see in layers that would see everything: the first positions,
    /// the last ones and the best blocks between. Long contexts then take less time, at some loss,
    /// and keys and values 4 bytes more for each sixteen numbers of a head. `None`: everything.
    /// Sequences that are no longer than what is seen are computed to the same bits either way.
    pub sparse_attention: Option<SparseAttention>,
    /// Whether the weights of a packed file are brought onto huge pages in the background, where
    /// the system says that there is room: decoding gains some 15 %. Linux keeps files on huge
    /// pages itself on some file systems; elsewhere the weights are copied, to memory that is this
    /// process's own and not shared with others that map the file.
    pub huge_pages: bool,
    /// The pages on which weights lie that are in memory of the process's own (packed in memory,
    /// placed, or experts in slots), and resident keys and values: transparent huge pages
    /// ([`Pages::Transparent`]), those that the administrator has set aside (`vm.nr_hugepages`,
    /// [`Pages::Reserved`]), or ordinary ones ([`Pages::Ordinary`]). Where too few are set aside,
    /// transparent ones do, and a warning says so; [`MemoryUse::reserved`](crate::MemoryUse) counts
    /// those that were had. They are taken when the engine is loaded, and pressure does not shrink
    /// what lies on them.
    pub pages: Pages,
    /// The longest sequence, prompt and answer together, no longer than the model's own; keys and
    /// values of so many tokens have to have room in [`EngineOptions::cache_bytes`] and
    /// [`EngineOptions::max_memory`]. `None`: the model's own, shorter where there is no room for
    /// it: [`Engine::context_len`](crate::Engine::context_len) tells.
    pub context_len: Option<usize>,
    /// Bytes for keys and values; `None`: enough for eight full contexts but at most 2 GiB, or 4
    /// GiB for one context that needs them. With [`EngineOptions::max_memory`] as much of that, and
    /// of 2 GiB at least, as it leaves; where experts are in slots, one context in a sixteenth of
    /// what is left. Always enough for an [`EngineOptions::context_len`] that is given. Memory is
    /// taken as it is used.
    pub cache_bytes: Option<usize>,
    /// Which keys and values go first when they must, in each tier: resident ones, compressed ones,
    /// and those of the file. Each tier orders its own, by how they have been used since the engine
    /// was loaded; what a file holds from before is in the order in which it was written. It never
    /// changes tokens, only how many are found again.
    pub eviction: EvictionPolicy,
    /// Bytes of compressed keys and values that are kept when resident ones must go; 0: none. A
    /// thread of its own compresses them, bf16 to about two thirds; other formats hardly shrink and
    /// are not kept.
    pub warm_bytes: usize,
    /// A folder for keys and values that leave memory, found again by the next process; `None`:
    /// nothing is written. Threads of their own write and read.
    pub cold: Option<ColdTier>,
    /// For how long that folder keeps the files of other models and options that nobody has opened
    /// or written to: older ones are removed when the engine is loaded, but for those that another
    /// engine uses. `None`: all stay until somebody deletes them.
    pub keep_unused: Option<Duration>,
    /// Bytes for the logits after whole prompts: a prompt that comes again then needs no step of
    /// its own. 0: none are kept.
    pub repeat_bytes: usize,
    /// Bytes for weights, the vocabulary (as grammars want it, too), keys and values (compressed
    /// and waiting ones too), and scratch together; `None`: no limit. Where a mixture of experts is
    /// larger, as many experts as there is room for are in memory and the others are read from its
    /// packed file when they are needed: [`crate::Metrics::experts`] tell how often. Speed then
    /// depends on the disk; tokens are the same.
    pub max_memory: Option<usize>,
    /// A folder where a model that is not packed is packed to when it is loaded first: this engine
    /// and later ones map that file. `None`: weights are packed in memory at each load; but a model
    /// with experts that is larger than [`EngineOptions::max_memory`] is packed to the user's
    /// folder of caches, `oss-engine/packed` in `XDG_CACHE_HOME` or else in `.cache` in `HOME`.
    /// Where experts are read from their file, the folder, which may be given for a packed model
    /// too, also has a small one that tells how often each was needed: written when an engine ends
    /// with its last handle, so that the next one begins with the popular ones in memory. It never
    /// changes tokens. Such files are never deleted here: who has no use for a model any more may
    /// do it.
    pub pack_directory: Option<PathBuf>,
    /// On which NUMA nodes weights lie; with [`Placement::Interleave`] keys and values too. On a
    /// machine with one node, or where this process may use the CPUs of one alone, every choice is
    /// as [`Placement::System`]. With several, a packed file is read into memory of this process's
    /// own instead of mapped, and under [`Placement::Replicate`] weights count once for each node
    /// (a mixture of experts that is then larger than [`EngineOptions::max_memory`] is refused).
    /// [`Placement::RowSlab`] and [`Placement::FirstTouch`] are for one thread a core, to which the
    /// engine's own team is then bound as by [`EngineOptions::pin`]; a team that is given should
    /// be, too.
    pub placement: Placement,
    /// The folder that holds `proc` and `sys`, in which the system says how short of memory it is
    /// (what is kept for reuse shrinks then) and which NUMA nodes it has. Other than `/` for tests.
    pub system_root: PathBuf,
    /// The most rows (tokens of all sequences) in one step, up to 1,048,576; `None`: a chunk beside
    /// all sequences. Scratch for them is taken when the engine is loaded.
    pub max_batched_tokens: Option<usize>,
    /// The most tokens in a chunk of prompts; `None`: by measurement, or, where experts are read
    /// from their file, as many as a 64th of [`EngineOptions::max_memory`] is scratch for (512 to
    /// 4,096): each step reads the experts that it misses once. Requests that come meanwhile wait
    /// for its end and share the next one, which is as large; beside answers that are streaming,
    /// chunks are smaller, see [`EngineOptions::max_prompt_step`]. At most 1,048,576.
    pub prefill_chunk: Option<usize>,
    /// The most sequences that run at once, up to 65,536; further requests wait. `None`: by
    /// measurement, and fewer (never below 16) while steps take longer than
    /// [`EngineOptions::max_step`]. Those that pause, as nobody takes their events
    /// ([`EngineOptions::stream_events`]), do not count, though they keep their pages while nobody
    /// else needs them; when they are read again they go on at once, also where more run then.
    pub max_sequences: Option<usize>,
    /// Whether the machine is measured for what is left open here.
    pub tune: Tune,
    /// Whether a request takes over what earlier ones have computed of the same prompt. It never
    /// changes tokens.
    pub prefix_caching: bool,
    /// Whether several tokens of an answer may come out of one step.
    pub speculation: Speculation,
    /// How long a step may take: fewer sequences run at once where answers alone take longer.
    pub max_step: Duration,
    /// How long a step with prompts in it may take while answers are streaming: prompts go through
    /// as many of the model's layers as there is time for, at least one, and go on in the next
    /// step. Where answers alone take half of it or longer, twice as long as they do. Longer steps
    /// bring prompts to their end sooner, and answers stall for as long.
    pub max_prompt_step: Duration,
    /// How many requests may wait; more are refused with [`Error::Overloaded`].
    pub queue_limit: usize,
    /// How many events a stream holds before its sequence pauses, until half of them are taken.
    /// Others run meanwhile: see [`Engine::submit`](crate::Engine::submit).
    pub stream_events: usize,
    /// Told how loading goes on.
    pub progress: Option<LoadProgress>,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            team: None,
            threads: None,
            pin: false,
            isa: None,
            activation: Activation::Int8,
            huge_pages: true,
            pages: Pages::Transparent,
            kv_format: KvFormat::Bf16,
            sparse_attention: None,
            context_len: None,
            cache_bytes: None,
            eviction: EvictionPolicy::Adaptive,
            warm_bytes: 0,
            cold: None,
            keep_unused: None,
            repeat_bytes: 16 << 20,
            max_memory: None,
            pack_directory: None,
            placement: Placement::System,
            system_root: PathBuf::from("/"),
            max_batched_tokens: None,
            prefill_chunk: None,
            max_sequences: None,
            tune: Tune::AtLoad,
            prefix_caching: true,
            speculation: Speculation::Auto,
            max_step: Duration::from_millis(500),
            max_prompt_step: Duration::from_millis(100),
            queue_limit: 256,
            stream_events: 256,
            progress: None,
        }
    }
}

impl EngineOptions {
    pub(crate) fn check(&self) -> Result<()> {
        let positive = [
            ("max_batched_tokens", self.max_batched_tokens.unwrap_or(1)),
            ("prefill_chunk", self.prefill_chunk.unwrap_or(1)),
            ("max_sequences", self.max_sequences.unwrap_or(1)),
            ("queue_limit", self.queue_limit),
            ("stream_events", self.stream_events),
            ("context_len", self.context_len.unwrap_or(1)),
            ("threads", self.threads.unwrap_or(1)),
            ("sparse_attention.window", self.sparse_attention.map_or(1, |sparse| sparse.window)),
        ];
        if let Speculation::Always(got) = self.speculation
            && !(1..=MOST_DRAFTS).contains(&got)
        {
            let (got, expected) = (got.to_string(), format!("1 to {MOST_DRAFTS} guesses"));
            return Err(Error::Option { field: "speculation", got, expected });
        }
        let team = self.team.is_some();
        let alone = self.keep_unused.is_some() && self.cold.is_none();
        let bound = "cannot be combined with `team`; build the team with `TeamOptions::pin`";
        let own = "cannot be combined with `team`, which has threads of its own";
        let apart = [
            (self.pin && team, "pin", bound),
            (self.threads.is_some() && team, "threads", own),
            (alone, "keep_unused", "needs `cold`"),
        ];
        if let Some((_, field, reason)) = apart.into_iter().find(|(wrong, ..)| *wrong) {
            return Err(Error::Conflict { field, reason });
        }
        if let Some((field, _)) = positive.iter().find(|(_, value)| *value == 0) {
            let (got, expected) = ("0".to_owned(), "at least 1".to_owned());
            return Err(Error::Option { field, got, expected });
        }
        let bounded = [
            ("max_batched_tokens", self.max_batched_tokens, MOST_ROWS),
            ("prefill_chunk", self.prefill_chunk, MOST_ROWS),
            ("max_sequences", self.max_sequences, MOST_SEQUENCES),
        ];
        for (field, value, most) in bounded {
            if let Some(got) = value.filter(|got| *got > most) {
                let (got, expected) = (got.to_string(), format!("at most {most}"));
                return Err(Error::Option { field, got, expected });
            }
        }
        // Threads that cannot be bound are refused before anything is loaded for them.
        let threads = self.threads.unwrap_or(1);
        TeamOptions { pin: self.pin, ..TeamOptions::new(threads) }.cpus()?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speculation_is_read_as_it_is_displayed() {
        for speculation in [Speculation::Auto, Speculation::Off, Speculation::Always(15)] {
            assert_eq!(speculation.to_string().parse::<Speculation>().unwrap(), speculation);
        }
        for wrong in ["", "0", "16", "on"] {
            let error = wrong.parse::<Speculation>().unwrap_err().to_string();
            let expected = "expected auto, off or 1 to 15 guesses";
            assert_eq!(error, format!("option speculation: got {wrong}, {expected}"));
        }
    }

    #[test]
    fn a_mistyped_word_is_no_directory_for_numbers() {
        for tune in [Tune::Off, Tune::AtLoad, Tune::Stored("./of".into()), Tune::Stored(".".into())]
        {
            assert_eq!(tune.to_string().parse::<Tune>().unwrap(), tune);
        }
        let error = "of".parse::<Tune>().unwrap_err().to_string();
        assert_eq!(error, "option tune: got of, expected off, on or a directory (./of)");
    }

    #[test]
    fn sizes_beyond_their_bounds_are_refused() {
        let rows = Some(MOST_ROWS);
        let largest = EngineOptions {
            max_batched_tokens: rows,
            prefill_chunk: rows,
            max_sequences: Some(MOST_SEQUENCES),
            ..EngineOptions::default()
        };
        largest.check().unwrap();
        let larger = [
            (
                "max_batched_tokens",
                EngineOptions { max_batched_tokens: Some(MOST_ROWS + 1), ..largest.clone() },
            ),
            ("prefill_chunk", EngineOptions { prefill_chunk: Some(usize::MAX), ..largest.clone() }),
            ("max_sequences", EngineOptions { max_sequences: Some(1_000_000), ..largest }),
        ];
        for (field, options) in larger {
            let error = options.check().unwrap_err();
            assert_eq!(error.field(), Some(field), "{error}");
            assert!(error.to_string().contains("expected at most "), "{error}");
        }
    }
}
