//! The flags of the server.

use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Error, Result, anyhow, ensure};
use clap::{ArgAction, CommandFactory, Parser};
use oss_engine::{
    Activation, ColdTier, EngineOptions, EvictionPolicy, Isa, KvFormat, Pages, Placement,
    SparseAttention, Speculation, Tune, parse_bytes, parse_duration, with_flags,
};
use oss_server::ServerOptions;
use tracing::Level;

/// The variable that has the key where no flag has it.
const KEY_VARIABLE: &str = "OSS_SERVER_API_KEY";

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
    /// The instruction set, such as avx2; default: the best one here, or what OSS_ISA names
    #[arg(long, value_parser = Isa::from_name)]
    isa: Option<Isa>,
    /// Threads of the engine; default: one a performance core, or what is measured to be faster
    #[arg(long)]
    threads: Option<usize>,
    /// Binds each of them to a CPU of its own, one of each core first; refused where there are more
    /// threads than CPUs that this process may use
    #[arg(long)]
    pin: bool,
    /// Measuring the machine at load: off, on, or a directory where the numbers are kept, such as
    /// ./numbers
    #[arg(long, default_value_t)]
    tune: Tune,
    /// Guesses at an answer's next tokens that are verified together: auto, off, or how many (1 to
    /// 15); it never changes tokens
    #[arg(long, default_value_t)]
    speculation: Speculation,
    /// How activations meet weights: f32, bf16, int8 (in narrow models int16 where it matters most)
    /// or int16
    #[arg(long, alias = "activations", default_value_t = Activation::Int8)]
    activation: Activation,
    /// How keys and values are stored: f32, bf16, f16, int8 or int4
    #[arg(long, alias = "kv", default_value_t = KvFormat::Bf16)]
    kv_format: KvFormat,
    /// Memory for weights, keys and values and scratch together, such as 8GB or 500MiB; default: no
    /// limit
    #[arg(long, value_parser = parse_bytes)]
    max_memory: Option<usize>,
    /// Memory for keys and values; default: enough for eight full contexts, but at most 2GiB, or
    /// 4GiB for one context that needs them, and what --max-memory leaves
    #[arg(long, alias = "cache-memory", value_parser = parse_bytes)]
    cache_bytes: Option<usize>,
    /// Computes prompts whole, whatever earlier ones had of them
    #[arg(long)]
    no_prefix_caching: bool,
    /// Which of them go first when they must: lru, lfu, adaptive, or, to compare with, random
    #[arg(long, default_value_t)]
    eviction: EvictionPolicy,
    /// Memory for compressed keys and values
    #[arg(long, alias = "warm-memory", value_parser = parse_bytes, default_value = "0")]
    warm_bytes: usize,
    /// A directory where keys and values are kept for the next run
    #[arg(long, alias = "keep", value_name = "DIRECTORY")]
    cold: Option<PathBuf>,
    /// The most bytes of one file there; each model and choice of numbers has one
    #[arg(long, alias = "keep-bytes", requires = "cold")]
    #[arg(value_parser = parse_bytes, default_value = "4GiB")]
    cold_bytes: usize,
    /// For how long files there of other models and options stay that nobody uses, such as 30d;
    /// default: all stay
    #[arg(long, value_parser = parse_duration, requires = "cold")]
    keep_unused: Option<Duration>,
    /// From before --keep-unused
    #[arg(long, hide = true, requires = "cold", conflicts_with = "keep_unused")]
    keep_unused_days: Option<u16>,
    /// A directory where a model that is not packed is packed to at its first load; default: only
    /// a mixture larger than --max-memory is packed, to oss-engine/packed in XDG_CACHE_HOME or
    /// ~/.cache. Which experts of such a mixture were popular is kept there for the next run
    #[arg(long)]
    pack_directory: Option<PathBuf>,
    /// On which NUMA nodes weights lie: system, interleave, replicate, row-slab or first-touch; on
    /// a machine with one node all are the same
    #[arg(long, default_value_t)]
    placement: Placement,
    /// The pages of memory that lies in no file: transparent huge ones, reserved ones (set aside by
    /// vm.nr_hugepages; transparent where they are too few) or ordinary ones
    #[arg(long, default_value_t = Pages::Transparent)]
    pages: Pages,
    /// Whether the weights of a packed file are brought onto huge pages where there is room
    #[arg(long, default_value_t = true, action = ArgAction::Set)]
    huge_pages: bool,
    /// What tokens of long contexts see instead of everything, faster and at some loss: how many of
    /// the first and of the last positions, and how many of the best blocks of 64 between, such as
    /// 64,1024,32; default: everything
    #[arg(long)]
    sparse_attention: Option<SparseAttention>,
    /// The longest sequence in tokens, prompt and answer together; default: the model's own
    #[arg(long, alias = "context")]
    context_len: Option<usize>,
    /// The most requests that wait for the engine, and the most that wait to be read before; more
    /// are refused with 429
    #[arg(long, alias = "queue", default_value_t = 256)]
    queue_limit: usize,
    /// The most sequences that run at once; default: by measurement
    #[arg(long)]
    max_sequences: Option<usize>,
    /// The most tokens in a chunk of prompts; default: by measurement
    #[arg(long)]
    prefill_chunk: Option<usize>,
    /// How long a step may take: fewer sequences run where answers take longer
    #[arg(long, value_parser = parse_duration, default_value = "500ms")]
    max_step: Duration,
    /// From before --max-step
    #[arg(long, hide = true, conflicts_with = "max_step")]
    max_step_ms: Option<u32>,
    /// How long a step with prompts in it may take while answers are streaming
    #[arg(long, value_parser = parse_duration, default_value = "100ms")]
    max_prompt_step: Duration,
    /// From before --max-prompt-step
    #[arg(long, hide = true, conflicts_with = "max_prompt_step")]
    max_prompt_step_ms: Option<u32>,
    /// The most bytes of a request's body
    #[arg(long, value_parser = parse_bytes, default_value = "4MiB")]
    max_body: usize,
    /// The most connections at once
    #[arg(long, default_value_t = 1024)]
    max_connections: usize,
    /// How long a connection may be idle
    #[arg(long, value_parser = parse_duration, default_value = "75s")]
    idle_timeout: Duration,
    /// How long a request may take
    #[arg(long, value_parser = parse_duration, default_value = "3600s")]
    request_timeout: Duration,
    /// After so long without anything to send a stream gets a comment, so that nobody on the way
    /// takes it for dead; 0: none, for clients that cannot read comments
    #[arg(long, value_parser = parse_duration, default_value = "15s")]
    heartbeat: Duration,
    /// How long requests are still taken after SIGTERM, for routers to notice
    #[arg(long, value_parser = parse_duration, default_value = "5s")]
    drain_settle: Duration,
    /// How long requests may go on after that
    #[arg(long, value_parser = parse_duration, default_value = "30s")]
    drain_timeout: Duration,
    /// How long a layer of a step may take before /live says 503
    #[arg(long, value_parser = parse_duration, default_value = "120s")]
    stall_timeout: Duration,
    /// Tells models whose format has it today's date (UTC): prompts then differ from day to day
    #[arg(long)]
    tell_date: bool,
    /// What is logged to standard error: error, warn, info, debug or trace
    #[arg(long, default_value = "info")]
    pub(crate) log: Level,
}

impl Flags {
    pub(crate) fn server(&self) -> Result<ServerOptions> {
        let named = || {
            // What stands behind a dot in a directory's name is no ending: Llama-3.2-1B.
            let name = match self.model.is_dir() {
                true => self.model.file_name(),
                false => self.model.file_stem(),
            };
            name.map(|name| name.to_string_lossy().into_owned())
        };
        Ok(ServerOptions {
            address: SocketAddr::new(self.host, self.port),
            model_name: self.model_name.clone().or_else(named).unwrap_or_else(|| "model".into()),
            api_key: key(self.api_key.clone(), std::env::var_os(KEY_VARIABLE))?,
            max_body: self.max_body,
            max_unread: self.queue_limit,
            max_connections: self.max_connections,
            idle_timeout: self.idle_timeout,
            request_timeout: self.request_timeout,
            heartbeat: self.heartbeat,
            drain_settle: self.drain_settle,
            drain_timeout: self.drain_timeout,
            stall_timeout: self.stall_timeout,
            tell_date: self.tell_date,
        })
    }

    pub(crate) fn engine(&self) -> EngineOptions {
        let bytes = self.cold_bytes as u64;
        let days = |days: u16| DAY * u32::from(days);
        let milliseconds = |number: u32| Duration::from_millis(number.into());
        EngineOptions {
            isa: self.isa,
            threads: self.threads,
            pin: self.pin,
            tune: self.tune.clone(),
            speculation: self.speculation,
            activation: self.activation,
            kv_format: self.kv_format,
            max_memory: self.max_memory,
            cache_bytes: self.cache_bytes,
            prefix_caching: !self.no_prefix_caching,
            eviction: self.eviction,
            warm_bytes: self.warm_bytes,
            cold: self.cold.clone().map(|directory| ColdTier { directory, bytes }),
            keep_unused: self.keep_unused.or(self.keep_unused_days.map(days)),
            pack_directory: self.pack_directory.clone(),
            placement: self.placement,
            pages: self.pages,
            huge_pages: self.huge_pages,
            sparse_attention: self.sparse_attention,
            context_len: self.context_len,
            queue_limit: self.queue_limit,
            max_sequences: self.max_sequences,
            prefill_chunk: self.prefill_chunk,
            max_step: self.max_step_ms.map_or(self.max_step, milliseconds),
            max_prompt_step: self.max_prompt_step_ms.map_or(self.max_prompt_step, milliseconds),
            ..EngineOptions::default()
        }
    }
}

/// The key that clients have to show, out of the flag or the variable. One that was given and is
/// none is an error: the server would be open otherwise.
fn key(flag: Option<String>, variable: Option<OsString>) -> Result<Option<String>> {
    if let Some(key) = flag {
        ensure!(!key.is_empty(), "--api-key: got an empty key, expected one, or no flag");
        return Ok(Some(key));
    }
    let Some(key) = variable else { return Ok(None) };
    let no_text = |_| anyhow!("{KEY_VARIABLE}: got a key that is not UTF-8, expected one that is");
    let key = key.into_string().map_err(no_text)?;
    ensure!(!key.is_empty(), "{KEY_VARIABLE}: got an empty key, expected one, or no variable");
    Ok(Some(key))
}

/// An error with all that led to it, where options of the library are called by the flags that set
/// them.
pub(crate) fn told(error: &Error) -> String {
    let message = format!("{error:#}")
        .replace("option max_unread: ", "--queue-limit: ")
        .replace("option api_key: ", &format!("--api-key or {KEY_VARIABLE}: "));
    let flags = Flags::command();
    with_flags(&message, flags.get_arguments().filter_map(clap::Arg::get_long))
}

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flags_are_sound_and_the_name_is_the_files() {
        let model = ["oss-server", "--model", "a/b.gguf", "--sparse-attention", "64,1024,32"];
        let memory =
            ["--placement", "row-slab", "--pages", "reserved", "--eviction", "lfu", "--pin"];
        let keep = ["--cold", "kept", "--keep-unused", "30d", "--huge-pages", "false"];
        let numbers = ["--activation", "int16", "--kv-format", "int8", "--speculation", "4"];
        let flags = model.into_iter().chain(memory).chain(keep).chain(numbers);
        let flags = Flags::try_parse_from(flags).unwrap_or_else(|error| panic!("{error}"));
        let server = flags.server().unwrap();
        assert_eq!(server.model_name, "b");
        assert_eq!(server.max_unread, flags.engine().queue_limit);
        assert_eq!(flags.engine().activation, Activation::Int16);
        assert_eq!(flags.engine().kv_format, KvFormat::Int8);
        assert_eq!(flags.engine().speculation, Speculation::Always(4));
        assert!(!flags.engine().huge_pages);
        assert_eq!(flags.engine().placement, Placement::RowSlab);
        assert_eq!(flags.engine().pages, Pages::Reserved);
        assert_eq!(flags.engine().eviction, EvictionPolicy::Lfu);
        assert_eq!(flags.engine().keep_unused, Some(Duration::from_secs(2_592_000)));
        assert!(flags.engine().pin);
        let sparse = SparseAttention { first: 64, window: 1024, blocks: 32 };
        assert_eq!(flags.engine().sparse_attention, Some(sparse));
    }

    #[test]
    fn flags_of_before_are_still_heeded_and_shown_nowhere() {
        let pairs = [
            ("--activations=int16", "--activation=int16"),
            ("--kv=int8", "--kv-format=int8"),
            ("--cache-memory=1GB", "--cache-bytes=1GB"),
            ("--warm-memory=1GB", "--warm-bytes=1GB"),
            ("--keep=kept", "--cold=kept"),
            ("--keep-bytes=1GB", "--cold-bytes=1GB"),
            ("--keep-unused-days=2", "--keep-unused=2d"),
            ("--context=64", "--context-len=64"),
            ("--queue=3", "--queue-limit=3"),
            ("--max-step-ms=70", "--max-step=70ms"),
            ("--max-prompt-step-ms=70", "--max-prompt-step=70ms"),
        ];
        let engine = |flags: Vec<&str>| {
            let flags = ["oss-server", "--model", "a.gguf"].into_iter().chain(flags);
            let flags = Flags::try_parse_from(flags).unwrap_or_else(|error| panic!("{error}"));
            format!("{:?} {:?}", flags.server().unwrap(), flags.engine())
        };
        let before = engine(pairs.iter().map(|pair| pair.0).collect());
        assert_eq!(before, engine(pairs.iter().map(|pair| pair.1).collect()));
        assert_ne!(before, engine(Vec::new()));
        let help = Flags::command().render_long_help().to_string();
        for (before, now) in pairs {
            let shown =
                |flag: &str| help.contains(&format!("{} ", flag.split('=').next().unwrap()));
            assert!(shown(now) && !shown(before), "{help}");
        }
    }

    #[test]
    fn what_is_not_given_is_the_engines_own_default() {
        let flags = Flags::try_parse_from(["oss-server", "--model", "a.gguf"]);
        let engine = flags.unwrap_or_else(|error| panic!("{error}")).engine();
        let defaults = EngineOptions::default();
        assert_eq!(engine.tune, defaults.tune);
        assert_eq!(engine.speculation, defaults.speculation);
        assert_eq!(engine.activation, defaults.activation);
        assert_eq!(engine.kv_format, defaults.kv_format);
        assert_eq!(engine.huge_pages, defaults.huge_pages);
        assert_eq!(engine.prefix_caching, defaults.prefix_caching);
        assert_eq!(engine.max_step, defaults.max_step);
        assert_eq!(engine.max_prompt_step, defaults.max_prompt_step);
        assert_eq!(engine.isa, defaults.isa);
    }

    #[test]
    fn what_is_no_kind_of_activations_is_told_with_those_there_are() {
        let flags = ["oss-server", "--model", "a.gguf", "--activation", "int9"];
        let error = Flags::try_parse_from(flags).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains("'int9'") && error.contains("bf16, int8 or int16"), "{error}");
    }

    #[test]
    fn a_key_that_was_given_and_is_none_is_an_error() {
        let flag = |key: &str| Some(key.to_owned());
        let variable = |key: &str| Some(OsString::from(key));
        assert_eq!(key(None, None).unwrap(), None);
        assert_eq!(key(flag("a"), variable("b")).unwrap(), flag("a"));
        assert_eq!(key(None, variable("b")).unwrap(), flag("b"));
        let error = key(flag(""), variable("b")).unwrap_err().to_string();
        assert_eq!(error, "--api-key: got an empty key, expected one, or no flag");
        let error = key(None, variable("")).unwrap_err().to_string();
        assert_eq!(error, "OSS_SERVER_API_KEY: got an empty key, expected one, or no variable");
    }

    #[cfg(unix)]
    #[test]
    fn a_key_that_is_no_text_is_an_error() {
        use std::os::unix::ffi::OsStringExt as _;
        let error = key(None, Some(OsString::from_vec(vec![0xff]))).unwrap_err().to_string();
        assert!(error.starts_with("OSS_SERVER_API_KEY: got a key that is not UTF-8"), "{error}");
    }

    #[test]
    fn an_error_names_the_flag_of_its_option() {
        for (library, flag) in [
            ("option context_len: got 0", "--context-len: got 0"),
            ("option max_unread: got 0", "--queue-limit: got 0"),
            ("option api_key: got one", "--api-key or OSS_SERVER_API_KEY: got one"),
            ("budget (`max_memory`): got 1", "budget (--max-memory): got 1"),
            ("option temperature: got 0", "option temperature: got 0"),
        ] {
            assert_eq!(told(&Error::msg(library).context("loading")), format!("loading: {flag}"));
        }
    }

    #[test]
    fn the_name_of_a_directory_is_the_whole_of_it() {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path().join("Llama-3.2-1B");
        std::fs::create_dir(&directory).unwrap();
        let flags = Flags::try_parse_from(["oss-server", "--model", directory.to_str().unwrap()]);
        let name = flags.unwrap_or_else(|error| panic!("{error}")).server().unwrap().model_name;
        assert_eq!(name, "Llama-3.2-1B");
    }
}
