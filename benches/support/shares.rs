//! Kernels beside what bounds them: criterion measures, and a table at the end tells for each
//! kernel and instruction set how many GB/s or GOP/s it reaches, and what share that is of what the
//! same run reaches when it does nothing else.
//!
//! Kernels stand under `scalar` too: the same code for any processor, vectorised as the compiler
//! can. `OSS_BENCH_THREADS` (one a core) chooses the threads of what reads memory.
#![allow(dead_code, reason = "no bench has kernels of all kinds")]

use criterion::{Criterion, SamplingMode, Throughput};
use oss_machine::{ReadProbe, Sample, best_way, cached_read_rate, f32_peak, int8_peak};
use oss_simd::Isa;
use oss_testing::median;
use oss_threads::Team;
use oss_threads::topology::default_threads;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Measurements of a kernel, after those that warm it up.
const SAMPLES: usize = 10;

/// Samples of reading memory by which the best way to read it is known at first.
const FIRST_SAMPLES: usize = 5;

/// What bounds a kernel.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Bound {
    /// Bytes read from memory by the threads that do it best, in the best of many ways, by its
    /// median.
    Memory,
    /// Bytes of as large a working set read by one thread, over and over.
    Cache,
    /// Products of bytes and their sums, by one thread, out of registers.
    Int8,
    /// Multiply-adds of single precision, by one thread, out of registers.
    F32,
}

impl Bound {
    const fn is_bytes(self) -> bool {
        matches!(self, Self::Memory | Self::Cache)
    }

    const fn unit(self) -> &'static str {
        if self.is_bytes() { "GB/s" } else { "GOP/s" }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Memory => "reading memory",
            Self::Cache => "reading as much in cache",
            Self::Int8 => "products of bytes",
            Self::F32 => "multiply-adds",
        }
    }
}

/// What a call of a kernel does.
#[derive(Clone, Copy)]
pub(crate) struct Work {
    pub(crate) bound: Bound,
    /// Bytes that are read and written, or operations: a product and its addition are two.
    pub(crate) amount: usize,
    /// How many things a call does, of which times are told, and what one is called.
    pub(crate) things: (usize, &'static str),
}

/// What this machine does at most.
struct Limits {
    threads: usize,
    probe: Option<ReadProbe>,
    /// What it gave, in order of time.
    samples: Vec<Vec<Sample>>,
    /// By instruction set, and by bytes of the working set where they matter.
    found: HashMap<(Isa, Bound, usize), f64>,
}

impl Limits {
    /// Bytes or operations per second. Memory is measured anew each time, since its speed changes
    /// with what the neighbours do.
    fn rate(&mut self, isa: Isa, Work { bound, amount, .. }: Work) -> f64 {
        let bytes = match bound {
            Bound::Memory => return self.memory(),
            Bound::Cache => amount,
            Bound::Int8 | Bound::F32 => 0,
        };
        let alone = || Team::new(1).expect("a team of the calling thread");
        *self.found.entry((isa, bound, bytes)).or_insert_with(|| match bound {
            Bound::Int8 => int8_peak(isa, &alone()),
            Bound::F32 => f32_peak(isa, &alone()),
            Bound::Memory | Bound::Cache => cached_read_rate(isa, bytes),
        })
    }

    fn memory(&mut self) -> f64 {
        let probe = self.probe.get_or_insert_with(|| {
            let best = *Isa::available().last().expect("scalar is always there");
            ReadProbe::new(best, self.threads).expect("memory and threads")
        });
        let missing = FIRST_SAMPLES.saturating_sub(self.samples.len()).max(1);
        self.samples.extend((0..missing).map(|_| probe.sample()));
        let (_, rates) = best_way(&self.samples).expect("a probe has ways");
        rates[rates.len() - 1]
    }
}

/// Measures kernels and collects the table.
pub(crate) struct Shares {
    criterion: Criterion,
    /// For kernels that are bound by memory.
    pub(crate) team: Team,
    limits: Limits,
    table: Vec<String>,
}

impl Shares {
    /// Begins as the command line says.
    pub(crate) fn new() -> Self {
        let criterion = Criterion::default()
            .sample_size(SAMPLES)
            .warm_up_time(Duration::from_millis(50))
            .measurement_time(Duration::from_millis(200))
            .nresamples(1000)
            .configure_from_args();
        let chosen = std::env::var("OSS_BENCH_THREADS").ok();
        let threads = chosen.map_or_else(default_threads, |n| n.parse().expect("a number"));
        let team = Team::new(threads).expect("threads");
        let limits = Limits { threads, probe: None, samples: Vec::new(), found: HashMap::new() };
        Self { criterion, team, limits, table: Vec::new() }
    }

    /// Measures a kernel on an instruction set.
    pub(crate) fn kernel(&mut self, name: &str, isa: Isa, work: Work, mut run: impl FnMut()) {
        self.timed(name, isa, work, |calls| {
            let start = Instant::now();
            (0..calls).for_each(|_| run());
            start.elapsed()
        });
    }

    /// The same for what tells itself how long so many calls took.
    pub(crate) fn timed(
        &mut self,
        name: &str,
        isa: Isa,
        work: Work,
        mut run: impl FnMut(u64) -> Duration,
    ) {
        let Self { criterion, limits, table, .. } = self;
        let (mut seconds, mut limit) = (Vec::new(), 0.0);
        let mut group = criterion.benchmark_group(name);
        group.sampling_mode(SamplingMode::Flat).throughput(if work.bound.is_bytes() {
            Throughput::Bytes(work.amount as u64)
        } else {
            Throughput::Elements(work.amount as u64)
        });
        group.bench_function(isa.name(), |bencher| {
            if seconds.is_empty() {
                limit = limits.rate(isa, work);
            }
            bencher.iter_custom(|calls| {
                let spent = run(calls);
                seconds.push(spent.as_secs_f64() / calls as f64);
                spent
            });
        });
        group.finish();
        let last = seconds.len().saturating_sub(SAMPLES);
        // Nothing was measured where the command line asks for other kernels.
        let Some(seconds) = median(seconds.drain(last..)) else { return };
        let limit = f64::midpoint(limit, limits.rate(isa, work)) / 1e9;
        let Work { bound, amount, things: (things, thing) } = work;
        let rate = amount as f64 / seconds / 1e9;
        let (share, time) = (100.0 * rate / limit, time(seconds / things as f64));
        let (unit, bound) = (bound.unit(), bound.name());
        println!("{:24}share:  {rate:.1} {unit}, {share:.1} % of {limit:.1}, {bound}\n", "");
        table.push(format!(
            "| {name} | {isa} | {time} a {thing} | {rate:.1} {unit} | {share:.1} % | {limit:.1}, \
             {bound} |"
        ));
    }

    /// Prints the table.
    pub(crate) fn finish(self) {
        self.criterion.final_summary();
        if !self.table.is_empty() {
            println!("memory is read by up to {} threads\n", self.limits.threads);
            println!("| kernel | instruction set | time | rate | share | of |");
            println!("|---|---|---:|---:|---:|---|");
            self.table.iter().for_each(|row| println!("{row}"));
        }
    }
}

/// Seconds in the unit that suits them.
fn time(seconds: f64) -> String {
    match seconds {
        _ if seconds < 1e-6 => format!("{:.1} ns", seconds * 1e9),
        _ if seconds < 1e-3 => format!("{:.1} us", seconds * 1e6),
        _ => format!("{:.1} ms", seconds * 1e3),
    }
}
