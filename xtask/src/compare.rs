//! Measures this engine and llama.cpp in turn, on the same file, and prints both beside each other.
//!
//! One process runs at a time. For each row llama.cpp first shows which of its settings suits it
//! best, each tried some times in turn; then the two take turns, and turns at being the first of a
//! pair, so that a drifting machine treats both alike. What one keeps in memory may push the
//! other's file out of it, so each one's file is read through before it runs, into huge pages for
//! both where the system has such for files.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;
use oss_memory::file::{Advice, Map};
use oss_testing::median;
use serde_json::{Value as Json, json};

use crate::bench::Bench;
use crate::llama::{Llama, PACKAGE};
use crate::quiet;
use crate::record::Record;
use crate::shell::{self, Profile};

mod measure;
mod rows;

use measure::{Found, Ours, Theirs, Variant};
use rows::{Figure, ROWS, Row};

/// Fewer say too little to be kept.
const PAIRS_OF_A_RECORD: usize = 5;
/// What to compare.
#[derive(Args)]
pub(crate) struct Options {
    /// Builds llama.cpp and ends
    #[arg(long)]
    build: bool,
    /// The GGUF file that both run
    #[arg(long, required_unless_present = "build")]
    model: Option<PathBuf>,
    /// The same weights as a packed file, for us
    #[arg(long)]
    packed: Option<PathBuf>,
    /// Rows to measure, such as decode,prefill; by default all that llama.cpp is measured in, too
    #[arg(long, value_delimiter = ',')]
    rows: Vec<String>,
    /// Threads of both; by default as many as there are CPUs that this process may use
    #[arg(long)]
    threads: Option<usize>,
    /// How often each side is measured in turn; a record takes at least 5
    #[arg(long, default_value_t = PAIRS_OF_A_RECORD)]
    pairs: usize,
    /// How often each of llama.cpp's settings is tried: one run may meet a slow minute, the middle
    /// of three less often; but far into a context a try takes five minutes
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..))]
    tries: u64,
    /// Tokens that each sequence generates
    #[arg(long, default_value_t = 64)]
    gen_tokens: usize,
    /// How our activations meet weights; by default as the model would
    #[arg(long = "activation", alias = "activations")]
    activations: Option<String>,
    /// Leaves out the settings of llama.cpp that keep a second copy of the weights in memory
    #[arg(long)]
    no_repack: bool,
    /// Keeps the result in benches/record under this name
    #[arg(long)]
    record: Option<String>,
}

/// Measures and prints.
pub(crate) fn run(options: &Options) -> Result<()> {
    check_pairs(options.pairs, options.record.is_some())?;
    let chosen = chosen(&options.rows)?;
    // Whole paths: the programs do not run where this one does.
    let whole = |path: &Option<PathBuf>| path.as_ref().map(std::path::absolute).transpose();
    let (model, packed) = (whole(&options.model)?, whole(&options.packed)?);
    for path in model.iter().chain(&packed) {
        ensure!(path.exists(), "no file or folder {}", path.display());
    }
    let name = options.record.as_ref().map(|name| format!("compare-{name}"));
    let record = name.as_deref().map(Record::begin).transpose()?;
    let llama = Llama::build(options.build)?;
    if options.build {
        return Ok(());
    }
    let model = model.as_deref().context("give --model")?;
    let threads = match options.threads {
        Some(threads) => threads,
        None => std::thread::available_parallelism()?.get(),
    };
    let ours = Ours {
        bench: Bench::build()?,
        generate: shell::example("generate", Profile::Release)?,
        model: packed.as_deref().unwrap_or(model),
        threads,
        gen_tokens: options.gen_tokens,
        activations: options.activations.as_deref(),
    };
    let theirs = Theirs { llama: &llama, model, threads, gen_tokens: options.gen_tokens };
    let busy = quiet::wait();
    let load = load_average();
    for path in [ours.model, theirs.model] {
        cool(path)?;
    }
    let mut lines = Vec::new();
    let mut found = Json::Null;
    for rows in chosen.chunk_by(|a, b| a.shares_their_process(b)) {
        for row in rows {
            eprintln!("{}: {}", row.name, row.what);
        }
        lines.extend(compare(rows, options, &ours, &theirs)?);
        found = json!({
            "model": model,
            "packed": packed,
            "llama_cpp": PACKAGE,
            "threads": threads,
            "gen_tokens": options.gen_tokens,
            "pairs": options.pairs,
            "tries": options.tries,
            "our_activations": options.activations,
            "load_average_before": load,
            "busy_cpus_before": busy,
            "rows": lines.iter().map(Line::json).collect::<Vec<_>>(),
        });
        // After each process, so that a run that is stopped leaves what it has found.
        if let Some(record) = &record {
            record.write(found.clone())?;
        }
    }
    println!("{}\n{found:#}", table(&lines));
    Ok(())
}

/// Refuses too few pairs, before anything is built or measured.
fn check_pairs(got: usize, recorded: bool) -> Result<()> {
    let expected = if recorded { PAIRS_OF_A_RECORD } else { 1 };
    let what = if recorded { "--pairs beside --record" } else { "--pairs" };
    ensure!(got >= expected, "{what}: got {got}, expected at least {expected}");
    Ok(())
}

/// How many threads have wanted to run in the last minute, where the system tells.
fn load_average() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/loadavg").ok()?;
    text.split_whitespace().next()?.parse().ok()
}

fn chosen(names: &[String]) -> Result<Vec<&'static Row>> {
    if names.is_empty() {
        return Ok(ROWS.iter().filter(|row| row.llama).collect());
    }
    let find = |name: &String| {
        let known = || ROWS.iter().map(|row| row.name).collect::<Vec<_>>().join(", ");
        let row = ROWS.iter().find(|row| row.name == *name);
        row.with_context(|| format!("no row `{name}`; there are {}", known()))
    };
    names.iter().map(find).collect()
}

/// One row, measured.
struct Line {
    row: &'static Row,
    /// llama.cpp's best settings, where it is measured.
    variant: Option<Variant>,
    /// llama.cpp's settings and what each gave when they were tried: the middle of its tries.
    tried: Vec<(Variant, f64)>,
    /// Settings of llama.cpp that do not run here, and what they end with.
    failed: Vec<(Variant, String)>,
    pairs: Vec<Pair>,
}

/// One turn of each.
struct Pair {
    ours: Found,
    theirs: Option<Found>,
    /// Ours of the row that this one is held beside.
    beside: Option<Found>,
}

/// Rows that share a process.
fn compare(
    rows: &[&'static Row],
    options: &Options,
    ours: &Ours,
    theirs: &Theirs,
) -> Result<Vec<Line>> {
    let variants = if rows[0].llama { Variant::all(!options.no_repack) } else { Vec::new() };
    let Tried { found, failed } = try_settings(rows, (&variants, options.tries), |variant| {
        warm(theirs.model)?;
        let found = theirs.measure(rows, variant)?;
        Ok(found.into_iter().map(|found| found.value).collect())
    })?;
    let line = |(n, row): (usize, &&'static Row)| {
        let middle = |(variant, values): &(Variant, Vec<Vec<f64>>)| {
            Some((*variant, median(values[n].iter().copied())?))
        };
        let tried: Vec<(Variant, f64)> = found.iter().filter_map(middle).collect();
        let best = tried.iter().copied().reduce(|a, b| if row.better(b.1, a.1) { b } else { a });
        let variant = best.map(|(variant, _)| variant);
        Line { row, variant, tried, failed: failed.clone(), pairs: Vec::new() }
    };
    let mut lines: Vec<Line> = rows.iter().enumerate().map(line).collect();
    // Those that share their settings stand together.
    lines.sort_by_key(|line| line.variant.map(|variant| variant.to_string()));
    for pair in 1..=options.pairs {
        for lines in lines.chunk_by_mut(|a, b| a.variant == b.variant) {
            let rows: Vec<&Row> = lines.iter().map(|line| line.row).collect();
            let our_turn = || -> Result<_> {
                warm(ours.model)?;
                own(&rows, ours, pair)
            };
            let variant = lines[0].variant;
            let their_turn = || -> Result<Vec<Found>> {
                let Some(variant) = variant else { return Ok(Vec::new()) };
                warm(theirs.model)?;
                theirs.measure(&rows, variant)
            };
            let (own, others) = in_turn(pair, our_turn, their_turn)?;
            let mut others = others.into_iter();
            for (line, (ours, beside)) in lines.iter_mut().zip(own) {
                let found = Pair { ours, theirs: others.next(), beside };
                eprintln!("  pair {pair}, {}: {}", line.row.name, found.shown(line.row));
                line.pairs.push(found);
            }
        }
    }
    Ok(lines)
}

/// What llama.cpp's settings gave when they were tried.
#[derive(Debug)]
struct Tried {
    /// The settings that run here, and what each row gave with them, try by try.
    found: Vec<(Variant, Vec<Vec<f64>>)>,
    /// Those that do not, and what they end with.
    failed: Vec<(Variant, String)>,
}

/// Tries settings of llama.cpp in turn, round by round. What fails is left out; an error where
/// nothing is left.
fn try_settings(
    rows: &[&Row],
    (variants, tries): (&[Variant], u64),
    mut measure: impl FnMut(Variant) -> Result<Vec<f64>>,
) -> Result<Tried> {
    let mut found: Vec<(Variant, Vec<Vec<f64>>)> =
        variants.iter().map(|variant| (*variant, vec![Vec::new(); rows.len()])).collect();
    let mut failed = Vec::new();
    for _ in 0..tries {
        for (variant, mut values) in std::mem::take(&mut found) {
            match measure(variant) {
                Ok(given) => {
                    for ((row, values), value) in rows.iter().zip(&mut values).zip(given) {
                        eprintln!("  llama.cpp, {variant}, {}: {}", row.name, row.shown(value));
                        values.push(value);
                    }
                    found.push((variant, values));
                }
                Err(error) => {
                    let error = format!("{error:#}");
                    eprintln!("  llama.cpp, {variant}, is left out: {error}");
                    failed.push((variant, error));
                }
            }
        }
    }
    if let ([], [.., (variant, error)]) = (found.as_slice(), failed.as_slice()) {
        bail!("llama.cpp runs with none of its settings; with {variant}: {error}");
    }
    Ok(Tried { found, failed })
}

/// Both of a pair. Whoever comes first finds the machine rested: odd pairs, of which there may be
/// one more, begin with what ours is held beside.
fn in_turn<A, B>(
    pair: usize,
    ours: impl FnOnce() -> Result<A>,
    other: impl FnOnce() -> Result<B>,
) -> Result<(A, B)> {
    if pair.is_multiple_of(2) {
        return Ok((ours()?, other()?));
    }
    let other = other()?;
    Ok((ours()?, other))
}

/// Ours in a pair, each with that of the row that it is held beside.
fn own(rows: &[&Row], ours: &Ours, pair: usize) -> Result<Vec<(Found, Option<Found>)>> {
    let mut all = Vec::new();
    for rows in rows.chunk_by(|a, b| a.shares_our_process(b)) {
        let beside = || -> Result<Vec<Option<Found>>> {
            let one = |row: &Row| Ok(ours.measure(&[row])?.pop());
            rows.iter().map(|row| row.beside.map_or(Ok(None), one)).collect()
        };
        let (found, beside) = in_turn(pair, || ours.measure(rows), beside)?;
        all.extend(found.into_iter().zip(beside));
    }
    Ok(all)
}

/// Reads a file, or all files of a folder, so that they lie in memory: on huge pages, where the
/// system can keep files there.
fn warm(path: &Path) -> Result<()> {
    each_file(path, &|map| {
        let all = 0..map.bytes().len();
        let _hint = map.advise(all.clone(), Advice::HugePage);
        Ok(map.advise(all, Advice::PopulateRead)?)
    })
}

/// Has the system drop what it keeps of a file, or of all files of a folder.
fn cool(path: &Path) -> Result<()> {
    each_file(path, &|map| Ok(map.evict(0..map.bytes().len())?))
}

fn each_file(path: &Path, act: &dyn Fn(&Map) -> Result<()>) -> Result<()> {
    if !path.is_dir() {
        return act(&Map::open(path)?);
    }
    for entry in std::fs::read_dir(path)? {
        each_file(&entry?.path(), act)?;
    }
    Ok(())
}

impl Pair {
    /// All of it, with units.
    fn shown(&self, row: &Row) -> String {
        let mut text = row.shown(self.ours.value);
        for (found, whose) in [(&self.theirs, "llama.cpp's"), (&self.beside, "our own")] {
            if let Some(found) = found {
                text += &format!(" beside {whose} {}", row.shown(found.value));
            }
        }
        text
    }
}

/// Fast and slow minutes differ by less.
const BROKEN: f64 = 3.0;

/// Medians of what ours are held beside.
struct Against {
    value: f64,
    /// How many times better ours are: the middle of the pairs, of those that count.
    ratio: f64,
    /// How many pairs do not: those in which what ours are held beside was more than [`BROKEN`]
    /// times worse than in the middle of them, as when its file has been put out of memory.
    left_out: usize,
    /// The most memory that it had resident, in bytes.
    resident: u64,
}

impl Line {
    fn ours(&self) -> f64 {
        median(self.pairs.iter().map(|pair| pair.ours.value)).unwrap_or(f64::NAN)
    }

    fn theirs(&self) -> Option<Against> {
        self.against(|pair| pair.theirs.as_ref())
    }

    /// Ours of the row that this one is held beside.
    fn beside(&self) -> Option<Against> {
        self.against(|pair| pair.beside.as_ref())
    }

    fn against(&self, other: fn(&Pair) -> Option<&Found>) -> Option<Against> {
        let pairs: Vec<(&Found, &Found)> =
            self.pairs.iter().filter_map(|pair| Some((&pair.ours, other(pair)?))).collect();
        let value = median(pairs.iter().map(|(_, other)| other.value))?;
        let counts = |other: &Found| self.row.ratio(value, other.value) <= BROKEN;
        let counted = || pairs.iter().filter(|(_, other)| counts(other));
        Some(Against {
            value,
            ratio: median(counted().map(|(a, b)| self.row.ratio(a.value, b.value)))?,
            left_out: pairs.len() - counted().count(),
            resident: pairs.iter().map(|(_, other)| other.resident).max()?,
        })
    }

    fn json(&self) -> Json {
        let side = |found: &Found| json!({ "value": found.value, "resident": found.resident });
        let pair = |pair: &Pair| {
            json!({
                "ours": side(&pair.ours),
                "llama_cpp": pair.theirs.as_ref().map(side),
                "beside": pair.beside.as_ref().map(side),
            })
        };
        let share = match self.row.figure {
            Figure::Decode => "/decode/share_of_read_bandwidth",
            _ => "/prefill/share_of_int8_peak",
        };
        let share = |pair: &Pair| pair.ours.details.pointer(share)?.as_f64();
        let shares: Vec<f64> = self.pairs.iter().filter_map(share).collect();
        let tried = self.tried.iter().map(|(variant, value)| (variant.to_string(), json!(value)));
        let failed = self.failed.iter().map(|(variant, why)| (variant.to_string(), json!(why)));
        let their_last = self.pairs.last().and_then(|pair| pair.theirs.as_ref());
        let (theirs, beside) = (self.theirs(), self.beside());
        json!({
            "row": self.row.name,
            "what": self.row.what,
            "unit": self.row.unit(),
            "ours": self.ours(),
            "llama_cpp": theirs.as_ref().map(|theirs| theirs.value),
            "ratio": theirs.as_ref().map(|theirs| theirs.ratio),
            "pairs_left_out": theirs.as_ref().map(|theirs| theirs.left_out),
            "beside": self.row.beside.map(|row| row.name),
            "our_own_beside": beside.as_ref().map(|beside| beside.value),
            "ratio_beside": beside.as_ref().map(|beside| beside.ratio),
            "our_share_of_the_bound": median(shares.iter().copied()),
            "our_shares_of_the_bound": shares,
            "llama_cpp_best_with": self.variant.map(|variant| variant.to_string()),
            "llama_cpp_tried": tried.collect::<serde_json::Map<_, _>>(),
            "llama_cpp_failed": failed.collect::<serde_json::Map<_, _>>(),
            "pairs": self.pairs.iter().map(pair).collect::<Vec<_>>(),
            "our_details": self.pairs.last().map(|pair| pair.ours.details.clone()),
            "llama_cpp_details": their_last.map(|found| found.details.clone()),
        })
    }
}

fn table(lines: &[Line]) -> String {
    let head = "| what | ours | llama.cpp | ratio | its best settings | ours, GB | its, GB |\n\
                |---|---|---|---|---|---|---|";
    let mut rows = vec![head.to_owned()];
    for line in lines {
        let ours = line.row.shown(line.ours());
        let resident = line.pairs.iter().map(|pair| pair.ours.resident).max().unwrap_or(0);
        let what = line.row.what;
        let own = line.row.beside.map_or("nothing", |row| row.what);
        let sides = [
            (line.theirs(), what.to_owned(), line.variant.map(|best| best.to_string())),
            (line.beside(), format!("{what}, beside our own {own} instead of llama.cpp"), None),
        ];
        for (other, what, best) in sides {
            let Some(other) = other else { continue };
            rows.push(format!(
                "| {what} | {ours} | {} | {:.2} | {} | {:.1} | {:.1} |",
                line.row.shown(other.value),
                other.ratio,
                best.unwrap_or_default(),
                resident as f64 / 1e9,
                other.resident as f64 / 1e9,
            ));
        }
    }
    rows.join("\n")
}

#[cfg(test)]
mod tests;
