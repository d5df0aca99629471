//! Writes synthetic checkpoints: real shapes, random weights, any size, without holding them.
//!
//! What a checkpoint holds depends on its options alone, not on threads or time: each megabyte of
//! each tensor has a random stream of its own. Nothing in a file repeats, so caches cannot help.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};
use clap::{Args, ValueEnum};
use oss_memory::file;
use oss_quant::Dtype;
use oss_weights::{TensorPlan, gguf, safetensors};
use rayon::prelude::*;

mod config;
mod fill;
mod plan;
mod shape;
mod vocabulary;

use fill::CHUNK;
use plan::Entry;
use shape::Family;
pub(crate) use shape::Shape;
use vocabulary::Tokens;

/// Raised where the same options give another file than before: names of kept files have it.
pub(crate) const GENERATOR: u32 = 1;

/// Which file to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// One GGUF file.
    Gguf,
    /// A folder with model.safetensors and its side files.
    Safetensors,
}

/// How often each expert is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Routing {
    /// All alike.
    Uniform,
    /// The r-th most popular of a layer about 1/r as often as the first.
    Zipf,
}

/// What to write.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// gpt-oss-20b, gpt-oss-120b, tiny, small, tinyllama, smollm2, llama3-8b or tiny-llama
    #[arg(long)]
    pub(crate) shape: String,
    #[arg(long, value_enum, default_value = "gguf")]
    pub(crate) format: Format,
    /// Type of the matrices outside the experts: q8_0 by default in GGUF, bf16 in safetensors
    #[arg(long, value_parser = dtype)]
    dense: Option<Dtype>,
    /// Type of the output matrix, when it is another than the dense one
    #[arg(long, value_parser = dtype)]
    pub(crate) head: Option<Dtype>,
    #[arg(long, value_enum, default_value = "uniform")]
    pub(crate) routing: Routing,
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// The GGUF file, or the folder of a safetensors checkpoint
    #[arg(long)]
    pub(crate) output: PathBuf,
    /// Another number of layers than the shape's
    #[arg(long)]
    pub(crate) layers: Option<usize>,
    /// Another number of experts per token than the shape's
    #[arg(long)]
    pub(crate) chosen: Option<usize>,
    /// A tokenizer.json of byte-level BPE instead of the demo model's
    #[arg(long)]
    pub(crate) tokenizer: Option<PathBuf>,
    /// The pre-tokeniser that a GGUF file names for it
    #[arg(long, default_value = "gpt-4o")]
    pub(crate) pre: String,
}

fn dtype(name: &str) -> Result<Dtype> {
    let wanted = name.to_ascii_lowercase();
    let found = Dtype::all().find(|dtype| dtype.name().eq_ignore_ascii_case(&wanted));
    found.filter(|dtype| dtype.is_weight()).with_context(|| {
        let known: Vec<_> = Dtype::all().filter(|d| d.is_weight()).map(Dtype::name).collect();
        format!("no weight type `{name}`; there are {}", known.join(", "))
    })
}

impl Options {
    /// A shape in a format, everything else as by default.
    pub(crate) fn new(shape: &str, format: Format, output: PathBuf) -> Options {
        Options {
            shape: shape.into(),
            format,
            dense: None,
            head: None,
            routing: Routing::Uniform,
            seed: 1,
            output,
            layers: None,
            chosen: None,
            tokenizer: None,
            pre: "gpt-4o".into(),
        }
    }

    /// The type of the matrices outside the experts.
    pub(crate) fn dense(&self) -> Dtype {
        self.dense.unwrap_or(match self.format {
            Format::Gguf => Dtype::Q8_0,
            Format::Safetensors => Dtype::Bf16,
        })
    }

    /// The shape, with what the options change of it.
    pub(crate) fn shape(&self) -> Result<Shape> {
        let mut shape = Shape::named(&self.shape)?;
        shape.layers = self.layers.unwrap_or(shape.layers);
        ensure!(shape.layers > 0, "a model has at least one layer");
        if let Some(chosen) = self.chosen {
            let most = shape.experts;
            ensure!(most > 0, "--chosen: {} has no experts", shape.name);
            ensure!((1..=most).contains(&chosen), "--chosen: got {chosen}, expected 1 to {most}");
            shape.top = chosen;
        }
        Ok(shape)
    }

    fn tokens(&self) -> Result<Tokens> {
        match &self.tokenizer {
            None => Tokens::read(oss_demo::TOKENIZER),
            Some(path) => {
                let bytes = fs::read(path).with_context(|| path.display().to_string())?;
                Tokens::read(&bytes)
            }
        }
    }
}

/// Writes a checkpoint and says how large it is.
pub(crate) fn run(options: &Options) -> Result<()> {
    let start = Instant::now();
    let bytes = write(options)?;
    let seconds = start.elapsed().as_secs_f64();
    let gigabytes = bytes as f64 / 1e9;
    println!("{}: {gigabytes:.3} GB in {seconds:.1} s", options.output.display());
    Ok(())
}

/// Writes a checkpoint and returns the bytes of its tensors.
pub(crate) fn write(options: &Options) -> Result<u64> {
    let shape = options.shape()?;
    let tokens = options.tokens()?;
    let entries = plan::entries(options, &shape);
    for entry in &entries {
        let columns = *entry.plan.shape.last().expect("tensors have dimensions");
        if entry.plan.dtype.row_bytes(columns).is_none() {
            let (kind, name) = (entry.plan.dtype.name(), &entry.plan.name);
            bail!("{name}: rows of {columns} cannot be stored as {kind}");
        }
    }
    match options.format {
        Format::Gguf => {
            let metadata = config::metadata(options, &shape, &tokens)?;
            file::Writer::remove_stale(&options.output)?;
            let mut writer = gguf::Writer::create(&options.output, &metadata, &plans(&entries))?;
            let bytes = stream(&entries, options.seed, |bytes| Ok(writer.tensor_bytes(bytes)?))?;
            writer.finish()?;
            Ok(bytes)
        }
        Format::Safetensors => folder(options, &shape, &tokens, &entries),
    }
}

fn plans(entries: &[Entry]) -> Vec<TensorPlan> {
    entries.iter().map(|entry| entry.plan.clone()).collect()
}

/// The safetensors folder: weights last, so that a folder with weights is complete.
fn folder(options: &Options, shape: &Shape, tokens: &Tokens, entries: &[Entry]) -> Result<u64> {
    let directory = options.output.as_path();
    fs::create_dir_all(directory).with_context(|| directory.display().to_string())?;
    let side = |name: &str, bytes: &[u8]| -> Result<()> {
        let path: &Path = &directory.join(name);
        fs::write(path, bytes).with_context(|| path.display().to_string())
    };
    let config = config::config(options, shape, tokens)?;
    side("config.json", serde_json::to_string_pretty(&config)?.as_bytes())?;
    side("tokenizer.json", &tokens.padded_json(shape.vocabulary)?)?;
    let [begin, end, pad] = tokens.marks()?;
    let generation = serde_json::json!({
        "bos_token_id": begin, "do_sample": true, "eos_token_id": [end, pad], "pad_token_id": pad,
    });
    side("generation_config.json", serde_json::to_string_pretty(&generation)?.as_bytes())?;
    if shape.family == Family::GptOss && options.tokenizer.is_none() {
        side("chat_template.jinja", oss_demo::CHAT_TEMPLATE.as_bytes())?;
        let name = "tokenizer_config.json";
        side(name, oss_demo::file(name).context("the demo model lacks a file")?)?;
    }
    // Wide types first: safetensors aligns nothing by itself.
    let mut sorted = entries.to_vec();
    sorted.sort_by_key(|entry| entry.plan.dtype == Dtype::U8);
    let notes = [("format".to_owned(), "pt".to_owned())];
    let path = directory.join("model.safetensors");
    file::Writer::remove_stale(&path)?;
    let mut writer = safetensors::Writer::create(&path, &notes, &plans(&sorted))?;
    let bytes = stream(&sorted, options.seed, |bytes| Ok(writer.tensor_bytes(bytes)?))?;
    writer.finish()?;
    Ok(bytes)
}

/// Makes all tensors' bytes in order, a few chunks at a time in parallel.
fn stream(entries: &[Entry], seed: u64, mut write: impl FnMut(&[u8]) -> Result<()>) -> Result<u64> {
    let mut written = 0;
    let at_once = 4 * rayon::current_num_threads();
    for (index, entry) in entries.iter().enumerate() {
        let chunks: Vec<usize> =
            (0..entry.plan.shape.iter().product::<usize>().div_ceil(CHUNK)).collect();
        for some in chunks.chunks(at_once) {
            let made: Vec<Result<Vec<u8>>> =
                some.par_iter().map(|chunk| fill::chunk(entry, index, *chunk, seed)).collect();
            for bytes in made {
                let bytes = bytes?;
                write(&bytes)?;
                written += bytes.len() as u64;
            }
        }
    }
    Ok(written)
}

#[cfg(test)]
mod tests;
