//! What does a token cost? Decode and prefill of a model, as tokens per second, as gigabytes of
//! weights per second, and as the share of the read bandwidth that the same run measures.
//!
//! `cargo bench -p oss-model` measures the demo model. The environment chooses otherwise:
//! `OSS_BENCH_MODEL` (a model file), `OSS_BENCH_THREADS`, `OSS_BENCH_PROMPT` (tokens of prefill),
//! `OSS_BENCH_STEPS` (tokens of decode), `OSS_BENCH_DEPTH` (positions before the measurement),
//! `OSS_BENCH_SEQUENCES` (streams that decode together), `OSS_BENCH_REPEAT`.

use oss_cache::{KvCache, SequenceId};
use oss_kernels::Activation;
use oss_memory::{Buffer, Pages};
use oss_model::{Batch, HeadRequest, LoadOptions, Model, Row, State, forward, head};
use oss_quant::kv::KvFormat;
use oss_simd::{Isa, Kernel, Simd};
use oss_threads::Team;
use oss_weights::Container;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Instant;

/// Reads bytes and does next to nothing with them.
struct Read<'a>(&'a [u8]);

impl Kernel for Read<'_> {
    type Output = i32;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> i32 {
        let (lines, _) = self.0.as_chunks::<64>();
        let mut acc = [s.zero_i32(); 4];
        for four in lines.chunks_exact(4) {
            for (acc, line) in acc.iter_mut().zip(four) {
                *acc = s.or_i32(*acc, s.u8_as_i32(s.load_u8(line)));
            }
        }
        let sum = s.or_i32(s.or_i32(acc[0], acc[1]), s.or_i32(acc[2], acc[3]));
        s.reduce_add_i32(sum)
    }
}

/// Bytes per second that a team reads from memory: the best of a few passes.
fn read_bandwidth(isa: Isa, team: &Team, buffer: &Buffer, passes: usize) -> f64 {
    const UNIT: usize = 1 << 20;
    let sink = AtomicI32::new(0);
    let pass = |_| {
        let start = Instant::now();
        team.phase(buffer.len() / UNIT, (), |unit, ()| {
            let bytes = &buffer[unit.index * UNIT..][..UNIT];
            sink.fetch_or(isa.run(Read(bytes)), Ordering::Relaxed);
        });
        buffer.len() as f64 / start.elapsed().as_secs_f64()
    };
    let best = (0..passes).map(pass).fold(0.0, f64::max);
    std::hint::black_box(sink);
    best
}

fn number(name: &str, default: usize) -> usize {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

struct Bench {
    model: Model,
    team: Team,
    state: State,
    cache: KvCache,
}

impl Bench {
    fn open() -> Self {
        let container = match std::env::var("OSS_BENCH_MODEL") {
            Ok(path) => Container::open(Path::new(&path)),
            Err(_) => Container::from_bytes("demo", oss_demo::GGUF, Vec::new()),
        };
        let container = Arc::new(container.expect("a model file"));
        let isa = Isa::detect().expect("OSS_ISA");
        let activation = match std::env::var("OSS_BENCH_ACTIVATION").as_deref() {
            Ok("f32") => Activation::F32,
            Ok("bf16") => Activation::Bf16,
            _ => Activation::Int8,
        };
        let options = LoadOptions { isa, activation, kv_format: KvFormat::Bf16, progress: None };
        let start = Instant::now();
        let model = Model::load(container, options).expect("a model");
        println!("load: {:.2} s on {isa}", start.elapsed().as_secs_f64());
        let team = Team::new(number("OSS_BENCH_THREADS", 2)).expect("a team");
        let state = State::new(&model.config, 512, team.threads());
        let cache = KvCache::new(model.cache_shape(), 2 << 30).expect("a cache");
        Self { model, team, state, cache }
    }

    /// Runs rows of tokens that differ from sequence to sequence and position to position.
    fn step(&mut self, sequences: &[(SequenceId, usize)], wanted: bool) {
        let vocabulary = self.model.config.vocabulary;
        let mut rows = Vec::new();
        for (n, (sequence, count)) in sequences.iter().enumerate() {
            let len = self.cache.len(*sequence);
            rows.extend((0..*count).map(|i| Row {
                sequence: *sequence,
                position: len + i,
                token: (((len + i) * 7919 + n * 104_729 + 11) % vocabulary) as u32,
                wanted: wanted && i + 1 == *count,
            }));
        }
        let Self { model, team, state, cache } = self;
        let layers = 0..model.config.layers.len();
        forward(model, team, state, cache, Batch { rows: &rows }, layers).expect("a step");
        if wanted {
            head(model, team, state, 0..sequences.len(), HeadRequest::Full);
        }
    }

    fn prompt(&mut self, n: usize) -> SequenceId {
        let sequence = self.cache.create();
        let mut left = n;
        while left > 0 {
            let chunk = left.min(512);
            self.step(&[(sequence, chunk)], left == chunk);
            left -= chunk;
        }
        sequence
    }
}

fn main() {
    let mut bench = Bench::open();
    let (prompt, steps) = (number("OSS_BENCH_PROMPT", 256), number("OSS_BENCH_STEPS", 64));
    let (depth, streams) = (number("OSS_BENCH_DEPTH", 0), number("OSS_BENCH_SEQUENCES", 1));
    let mut buffer = Buffer::new(512 << 20, Pages::Huge).expect("memory");
    buffer.fill(1);
    let isa = bench.model.isa;
    let bytes = bench.model.weights.bytes_per_token(&bench.model.config) as f64;
    println!("{:.3} GB of weights per token, {} threads", bytes / 1e9, bench.team.threads());
    for _ in 0..number("OSS_BENCH_REPEAT", 3) {
        let bandwidth = read_bandwidth(isa, &bench.team, &buffer, 3);
        let sequences: Vec<(SequenceId, usize)> =
            (0..streams).map(|_| (bench.prompt(depth.max(1)), 1)).collect();
        let mut times = Vec::new();
        for _ in 0..steps {
            let start = Instant::now();
            bench.step(&sequences, true);
            times.push(start.elapsed().as_secs_f64());
        }
        let second = median(&mut times);
        let bandwidth = read_bandwidth(isa, &bench.team, &buffer, 3).max(bandwidth);
        println!(
            "decode at {depth}, {streams} streams: {:.2} tokens/s, {:.2} GB/s of weights, \
             {:.1} % of {:.1} GB/s",
            streams as f64 / second,
            bytes / second / 1e9,
            100.0 * bytes / second / bandwidth,
            bandwidth / 1e9
        );
        for (sequence, _) in sequences {
            bench.cache.remove(sequence);
        }
        if prompt > 0 {
            let start = Instant::now();
            let sequence = bench.prompt(prompt);
            let second = start.elapsed().as_secs_f64();
            println!("prefill of {prompt}: {:.2} tokens/s", prompt as f64 / second);
            bench.cache.remove(sequence);
        }
    }
}
