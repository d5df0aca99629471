//! The flags of the server.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use oss_engine::{
    ColdTier, EngineOptions, Pages, Placement, PolicyKind, SparseAttention, Tune, parse_bytes,
};
use oss_server::ServerOptions;
use tracing::Level;

/// Serves a model over HTTP, as OpenAI's API describes it.
#[derive(Parser)]
#[command(version)]
pub(crate) struct Flags {
    /// A GGUF file, a packed .oss file or a safetensors directory
    #[arg(long)]
    pub(crate) model: PathBuf,
    /// The address to listen on; others than loopback let the whole network in
    #[arg(long, default_value = "127.0.0.1")]
    host: IpAddr,
    /// The port; 0 takes any that is free
    #[arg(long, default_value_t = 8000)]
    port: u16,
    /// The model's name in requests; default: the file's, without its ending, or the directory's
    #[arg(long)]
    model_name: Option<String>,
    /// What clients have to show as `Authorization: Bearer KEY`; better set by OSS_SERVER_API_KEY,
    /// which other users of the machine cannot read
    #[arg(long)]
    api_key: Option<String>,
    /// Threads of the engine; default: one a performance core, or what is measured to be faster
    #[arg(long)]
    threads: Option<usize>,
    /// Binds each of them to a CPU of its own, one of each core first; refused where there are more
    /// threads than CPUs that this process may use
    #[arg(long)]
    pin: bool,
    /// Measuring the machine at load: off, on, or a directory where the numbers are kept
    #[arg(long, value_parser = tune, default_value = "on")]
    tune: Tune,
    /// Memory for weights, keys and values and scratch together, such as 8GB or 500MiB
    #[arg(long, value_parser = parse_bytes)]
    max_memory: Option<usize>,
    /// Memory for keys and values
    #[arg(long, value_parser = parse_bytes)]
    cache_memory: Option<usize>,
    /// Which of them go first when they must: lru, lfu, adaptive, or, to compare with, random
    #[arg(long, default_value_t)]
    eviction: PolicyKind,
    /// Memory for compressed keys and values
    #[arg(long, value_parser = parse_bytes, default_value = "0")]
    warm_memory: usize,
    /// A directory where keys and values are kept for the next run
    #[arg(long)]
    keep: Option<PathBuf>,
    /// The most bytes kept there
    #[arg(long, value_parser = parse_bytes, default_value = "4GiB", requires = "keep")]
    keep_bytes: usize,
    /// Days for which files there of other models and options stay that nobody uses; default: all
    /// stay
    #[arg(long, requires = "keep")]
    keep_unused_days: Option<u32>,
    /// A directory where a model that is not packed is packed to at its first load; default: only
    /// a mixture larger than --max-memory is packed, to oss-engine/packed in XDG_CACHE_HOME or
    /// ~/.cache
    #[arg(long)]
    pack_directory: Option<PathBuf>,
    /// On which NUMA nodes weights lie: system, interleave, replicate, row-slab or first-touch; on
    /// a machine with one node all are the same
    #[arg(long, default_value_t)]
    placement: Placement,
    /// The pages of memory that lies in no file: transparent huge ones, reserved ones (set aside by
    /// vm.nr_hugepages; transparent where they are too few) or ordinary ones
    #[arg(long, default_value_t = Pages::Huge)]
    pages: Pages,
    /// What tokens of long contexts see instead of everything, faster and at some loss: how many of
    /// the first and of the last positions, and how many of the best blocks of 64 between, such as
    /// 64,1024,32; default: everything
    #[arg(long)]
    sparse_attention: Option<SparseAttention>,
    /// The longest sequence in tokens, prompt and answer together; default: the model's own
    #[arg(long)]
    context: Option<usize>,
    /// The most requests that wait for the engine, and the most that wait to be read before; more
    /// are refused with 429
    #[arg(long, default_value_t = 256)]
    queue: usize,
    /// The most sequences that run at once; default: by measurement
    #[arg(long)]
    max_sequences: Option<usize>,
    /// The most prompt tokens in one step; default: by measurement
    #[arg(long)]
    prefill_chunk: Option<usize>,
    /// How long a step may take, in milliseconds: fewer sequences run where answers take longer
    #[arg(long, default_value_t = 500)]
    max_step_ms: u64,
    /// How long a step with prompts in it may take while answers are streaming, in milliseconds
    #[arg(long, default_value_t = 100)]
    max_prompt_step_ms: u64,
    /// The most bytes of a request's body
    #[arg(long, value_parser = parse_bytes, default_value = "4MiB")]
    max_body: usize,
    /// The most connections at once
    #[arg(long, default_value_t = 1024)]
    max_connections: usize,
    /// How long a connection may be idle
    #[arg(long, value_parser = seconds, default_value = "75s")]
    idle_timeout: Duration,
    /// How long a request may take
    #[arg(long, value_parser = seconds, default_value = "3600s")]
    request_timeout: Duration,
    /// How long requests are still taken after SIGTERM, for routers to notice
    #[arg(long, value_parser = seconds, default_value = "5s")]
    drain_settle: Duration,
    /// How long requests may go on after that
    #[arg(long, value_parser = seconds, default_value = "30s")]
    drain_timeout: Duration,
    /// How long a step may take before /live says 503
    #[arg(long, value_parser = seconds, default_value = "120s")]
    stall_timeout: Duration,
    /// Tells models whose format has it today's date (UTC): prompts then differ from day to day
    #[arg(long)]
    tell_date: bool,
    /// What is logged to standard error: error, warn, info, debug or trace
    #[arg(long, default_value = "info")]
    pub(crate) log: Level,
}

impl Flags {
    pub(crate) fn server(&self) -> ServerOptions {
        let named = || {
            // What stands behind a dot in a directory's name is no ending: Llama-3.2-1B.
            let name = match self.model.is_dir() {
                true => self.model.file_name(),
                false => self.model.file_stem(),
            };
            name.map(|name| name.to_string_lossy().into_owned())
        };
        let from_environment = || std::env::var("OSS_SERVER_API_KEY").ok();
        ServerOptions {
            address: SocketAddr::new(self.host, self.port),
            model_name: self.model_name.clone().or_else(named).unwrap_or_else(|| "model".into()),
            api_key: self.api_key.clone().or_else(from_environment).filter(|key| !key.is_empty()),
            max_body: self.max_body,
            max_unread: self.queue,
            max_connections: self.max_connections,
            idle_timeout: self.idle_timeout,
            request_timeout: self.request_timeout,
            drain_settle: self.drain_settle,
            drain_timeout: self.drain_timeout,
            stall_timeout: self.stall_timeout,
            tell_date: self.tell_date,
        }
    }

    pub(crate) fn engine(&self) -> EngineOptions {
        let bytes = self.keep_bytes as u64;
        EngineOptions {
            threads: self.threads,
            pin: self.pin,
            tune: self.tune.clone(),
            max_memory: self.max_memory,
            cache_bytes: self.cache_memory,
            eviction: self.eviction,
            warm_bytes: self.warm_memory,
            cold: self.keep.clone().map(|directory| ColdTier { directory, bytes }),
            keep_unused: self.keep_unused_days.map(|days| DAY * days),
            pack_directory: self.pack_directory.clone(),
            placement: self.placement,
            pages: self.pages,
            sparse_attention: self.sparse_attention,
            context_len: self.context,
            queue_limit: self.queue,
            max_sequences: self.max_sequences,
            prefill_chunk: self.prefill_chunk,
            max_step: Duration::from_millis(self.max_step_ms),
            max_prompt_step: Duration::from_millis(self.max_prompt_step_ms),
            ..EngineOptions::default()
        }
    }
}

#[expect(clippy::unnecessary_wraps, reason = "the shape of a parser of flags")]
fn tune(text: &str) -> Result<Tune, String> {
    Ok(match text {
        "off" => Tune::Off,
        "on" => Tune::AtLoad,
        directory => Tune::Stored(directory.into()),
    })
}

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// A number of seconds, with or without `s`.
fn seconds(text: &str) -> Result<Duration, String> {
    let number = text.strip_suffix('s').unwrap_or(text);
    let seconds = number.parse().ok().filter(|seconds| (0.0..=1e8).contains(seconds));
    seconds
        .map(Duration::from_secs_f64)
        .ok_or_else(|| format!("got {text}, expected a number of seconds such as 30s"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_have_a_unit() {
        assert_eq!(seconds("5s"), Ok(Duration::from_secs(5)));
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        assert!(seconds("5m").is_err());
    }

    #[test]
    fn the_flags_are_sound_and_the_name_is_the_files() {
        let model = ["oss-server", "--model", "a/b.gguf", "--sparse-attention", "64,1024,32"];
        let memory =
            ["--placement", "row-slab", "--pages", "reserved", "--eviction", "lfu", "--pin"];
        let keep = ["--keep", "kept", "--keep-unused-days", "30"];
        let flags = Flags::try_parse_from(model.into_iter().chain(memory).chain(keep));
        let flags = flags.unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(flags.server().model_name, "b");
        assert_eq!(flags.server().max_unread, flags.engine().queue_limit);
        assert_eq!(flags.engine().placement, Placement::RowSlab);
        assert_eq!(flags.engine().pages, Pages::Reserved);
        assert_eq!(flags.engine().eviction, PolicyKind::Lfu);
        assert_eq!(flags.engine().keep_unused, Some(Duration::from_secs(2_592_000)));
        assert!(flags.engine().pin);
        let sparse = SparseAttention { first: 64, window: 1024, blocks: 32 };
        assert_eq!(flags.engine().sparse_attention, Some(sparse));
    }

    #[test]
    fn the_name_of_a_directory_is_the_whole_of_it() {
        let directory = std::env::temp_dir().join(format!("oss-{}-3.2-1B", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let flags = Flags::try_parse_from(["oss-server", "--model", directory.to_str().unwrap()]);
        let name = flags.unwrap_or_else(|error| panic!("{error}")).server().model_name;
        std::fs::remove_dir(&directory).unwrap();
        assert!(name.ends_with("-3.2-1B"), "{name}");
    }
}
