//! Flags: of a model's file, of how it is run, and of the engine that runs it. A program has those
//! that it heeds.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use clap::{ArgAction, Args};
use oss_engine::{
    Activation, ColdTier, Container, Engine, EngineOptions, EvictionPolicy, Isa, KvFormat,
    LoadProgress, Pages, Placement, SparseAttention, Speculation, Tune, parse_bytes,
};

use crate::{bar, download};

/// The file of a model.
#[derive(Args, Clone, Debug)]
pub struct FileArgs {
    /// A GGUF file, a packed .oss file, a safetensors directory, or (with the feature `download`)
    /// a Hugging Face repository id; without it, the embedded demo model
    #[arg(long)]
    pub model: Option<String>,
}

/// A model and how it is run, whoever runs it.
#[derive(Args, Clone, Debug)]
pub struct ModelArgs {
    /// The model.
    #[command(flatten)]
    pub file: FileArgs,
    /// How activations meet weights: f32, bf16, int8 (in narrow models int16 where it matters most)
    /// or int16
    #[arg(long, alias = "activations", default_value_t = Activation::Int8)]
    pub activation: Activation,
    /// How keys and values are stored: f32, bf16, f16, int8 or int4
    #[arg(long, alias = "kv", default_value_t = KvFormat::Bf16)]
    pub kv_format: KvFormat,
    /// What tokens of long contexts see instead of everything, faster and at some loss: how many of
    /// the first and of the last positions, and how many of the best blocks of 64 between, such as
    /// 64,1024,32; default: everything
    #[arg(long)]
    pub sparse_attention: Option<SparseAttention>,
    /// The instruction set, such as avx2; default: the best one here, or what OSS_ISA names. It
    /// never changes tokens
    #[arg(long, value_parser = Isa::from_name)]
    pub isa: Option<Isa>,
    /// Threads; default: one per performance core; an engine that measures the machine takes what
    /// is clearly faster
    #[arg(long)]
    pub threads: Option<usize>,
    /// Binds each thread to a CPU of its own, one of each core first; refused where there are more
    /// threads than CPUs that this process may use. It never changes tokens
    #[arg(long)]
    pub pin: bool,
    /// Whether the weights of a packed file are brought onto huge pages where there is room; it
    /// never changes tokens
    #[arg(long, default_value_t = true, action = ArgAction::Set)]
    pub huge_pages: bool,
    /// On which NUMA nodes weights lie: system, interleave, replicate, row-slab or first-touch; on
    /// a machine with one node all are the same. It never changes tokens
    #[arg(long, default_value_t)]
    pub placement: Placement,
    /// The pages of memory that lies in no file: transparent huge ones, reserved ones (set aside by
    /// vm.nr_hugepages; transparent where they are too few) or ordinary ones. It never changes
    /// tokens
    #[arg(long, default_value_t = Pages::Transparent)]
    pub pages: Pages,
}

/// A model and how an engine runs it.
#[derive(Args, Clone, Debug)]
pub struct EngineArgs {
    /// The model.
    #[command(flatten)]
    pub model: ModelArgs,
    /// Guesses at an answer's next tokens that are verified together: auto, off, or how many (1 to
    /// 15); it never changes tokens
    #[arg(long, default_value_t)]
    pub speculation: Speculation,
    /// Measuring the machine at load: off, on, or a directory where the numbers are kept, such as
    /// ./numbers; it never changes tokens
    #[arg(long, default_value_t)]
    pub tune: Tune,
    /// The longest sequence in tokens; default: the model's own
    #[arg(long, alias = "context")]
    pub context_len: Option<usize>,
    /// Memory for weights, keys and values and scratch together, such as 8GB or 500MiB; experts for
    /// which there is no room stay in the packed file. It never changes tokens
    #[arg(long, value_parser = parse_bytes)]
    pub max_memory: Option<usize>,
    /// A directory where a model that is not packed is packed to at its first load: later ones map
    /// that file, in a fraction of a second; default: only a mixture larger than --max-memory is
    /// packed, to oss-engine/packed in XDG_CACHE_HOME or ~/.cache. Which experts of such a mixture
    /// were popular is kept there for the next run
    #[arg(long)]
    pub pack_directory: Option<PathBuf>,
    /// Which keys and values go first when they must leave memory: lru, lfu, adaptive, or, to
    /// compare with, random. It never changes tokens
    #[arg(long, default_value_t)]
    pub eviction: EvictionPolicy,
    /// Computes prompts whole, whatever earlier ones had of them; it never changes tokens
    #[arg(long)]
    pub no_prefix_caching: bool,
    /// A directory where keys and values of prompts are kept for the next run; it never changes
    /// tokens
    #[arg(long, alias = "keep", value_name = "DIRECTORY")]
    pub cold: Option<PathBuf>,
    /// The most bytes of one file there; each model and choice of numbers has one
    #[arg(long, value_parser = parse_bytes, default_value = "4GiB", requires = "cold")]
    pub cold_bytes: usize,
}

impl FileArgs {
    /// Opens the files without loading weights.
    ///
    /// # Errors
    /// When there is no model at the place, or its headers are not sound.
    pub fn container(&self) -> Result<Container> {
        let Some(model) = &self.model else {
            return Ok(Container::from_bytes("the demo model", oss_demo::GGUF, Vec::new())?);
        };
        let path = self.path(model)?;
        Container::open(&path).with_context(|| format!("cannot open {}", path.display()))
    }

    fn path(&self, model: &str) -> Result<PathBuf> {
        let path = Path::new(model);
        if path.exists() {
            return Ok(path.to_owned());
        }
        let mut parts = model.split('/');
        let id = parts.by_ref().take(2).all(|part| !part.is_empty()) && parts.next().is_none();
        if id && model.contains('/') {
            return download::fetch(model);
        }
        bail!("--model: got {model}, expected a file, a directory or a repository id (owner/name)")
    }
}

impl EngineArgs {
    /// Loads the model, with a progress bar where somebody looks.
    ///
    /// # Errors
    /// When the model cannot be loaded.
    pub fn load(&self) -> Result<Engine> {
        self.load_with(|options| options)
    }

    /// As [`EngineArgs::load`], with other options changed.
    ///
    /// # Errors
    /// When the model cannot be loaded, or an option is out of its range.
    pub fn load_with(&self, change: impl FnOnce(EngineOptions) -> EngineOptions) -> Result<Engine> {
        let model = &self.model;
        let container = Arc::new(model.file.container()?);
        let bar = bar(0, "packing");
        let shown = bar.clone();
        let bytes = self.cold_bytes as u64;
        let options = EngineOptions {
            isa: model.isa,
            threads: model.threads,
            pin: model.pin,
            speculation: self.speculation,
            tune: self.tune.clone(),
            context_len: self.context_len,
            prefix_caching: !self.no_prefix_caching,
            max_memory: self.max_memory,
            huge_pages: model.huge_pages,
            placement: model.placement,
            eviction: self.eviction,
            pages: model.pages,
            pack_directory: self.pack_directory.clone(),
            cold: self.cold.clone().map(|directory| ColdTier { directory, bytes }),
            activation: model.activation,
            kv_format: model.kv_format,
            sparse_attention: model.sparse_attention,
            progress: Some(LoadProgress::new(move |done, total| {
                shown.set_length(total);
                shown.set_position(done);
                ControlFlow::Continue(())
            })),
            ..EngineOptions::default()
        };
        let engine = Engine::from_container(container, change(options))?;
        bar.finish_and_clear();
        Ok(engine)
    }
}
