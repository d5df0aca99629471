//! `check larger`: a model that is larger than its memory, beside the same file plainly mapped.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use oss_memory::file::{DIRECT_ALIGNMENT, RandomAccess};
use oss_memory::{Buffer, Pages};
use oss_testing::{Seeded, median};
use serde_json::{Value as Json, json};

use crate::balloon::{self, Balloon};
use crate::check::{Figures, Scale};
use crate::fetch;
use crate::shell::{self, Profile};
use crate::synth::{Format, Options, Routing, write};

/// Bytes of one read of the probe, and how many are in flight: as the engine reads an expert of
/// gpt-oss-20b, in four equal parts of at most 4 MiB.
const READ: usize = 808 * DIRECT_ALIGNMENT;
const READS: usize = 4;
/// Disks of virtual machines give more in the first seconds after idleness: those do not count.
const PROBE: Duration = Duration::from_secs(3);

/// What the machine must offer.
pub(crate) fn missing() -> Option<String> {
    balloon::available().is_err().then(|| "needs /proc to know how much memory is left".to_owned())
}

/// A synthetic packed file whose routers prefer some experts, written unless it is there.
fn packed(shape: &str, profile: Profile) -> Result<PathBuf> {
    let cache = fetch::cache()?;
    fs::create_dir_all(&cache)?;
    let packed = cache.join(format!("synth-{shape}-zipf-1.oss"));
    if !packed.exists() {
        let source = cache.join(format!("synth-{shape}-zipf-1.gguf"));
        let mut options = Options::new(shape, Format::Gguf, source.clone());
        options.routing = Routing::Zipf;
        write(&options)?;
        let program = shell::example("pack", profile)?;
        let mut command = shell::command(text(&program)?, &["--model", text(&source)?]);
        shell::run(command.args(["--output", text(&packed)?]))?;
        fs::remove_file(source)?;
    }
    Ok(packed)
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().context("the cache's path is no UTF-8")
}

/// Answers with the example `generate`: tokens that do not repeat, drawn alike every time. Says how
/// much memory that took, too.
fn answer(program: &Path, model: &Path, tokens: usize, more: &[&str]) -> Result<(Json, u64)> {
    let ids: Vec<String> = (0..64).map(|at| (at * 7919 % 2000 + 20).to_string()).collect();
    let mut command = shell::command(text(program)?, &["--model", text(model)?, "--json"]);
    command.args(["--prompt-ids", &ids.join(","), "--max-tokens", &tokens.to_string()]);
    command.args(["--context", "4096", "--temperature", "1", "--seed", "1", "--ignore-stops"]);
    let (printed, peak) =
        shell::watched(command.args(["--speculation", "off", "--tune", "off"]).args(more))?;
    Ok((serde_json::from_str(&printed)?, peak))
}

fn tokens_per_s(answer: &Json) -> Result<f64> {
    let ms = answer["timing"]["per_token_ms"].as_f64().context("an answer without times")?;
    Ok(1e3 / ms)
}

/// Bytes a second that the disk gives for reads all over a file, past the system's cache.
fn disk_rate(path: &Path) -> Result<f64> {
    let file = RandomAccess::open_direct(path)?;
    let places = file.len()? / READ as u64;
    let (begin, bytes, reader) = (Instant::now(), AtomicU64::new(0), AtomicUsize::new(0));
    let read = || -> Result<()> {
        let mut seeded = Seeded::new(reader.fetch_add(1, Ordering::Relaxed) as u64);
        let mut buffer = Buffer::new(READ, Pages::Default)?;
        while begin.elapsed() < 2 * PROBE {
            let place = seeded.below(places.max(1) as usize) as u64;
            let got = file.read_to_end_at(&mut buffer, place * READ as u64)?;
            if begin.elapsed() > PROBE {
                bytes.fetch_add(got as u64, Ordering::Relaxed);
            }
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..READS).map(|_| scope.spawn(read)).collect();
        readers.into_iter().try_for_each(|reader| reader.join().expect("a reader panicked"))
    })?;
    Ok(bytes.into_inner() as f64 / (begin.elapsed() - PROBE).as_secs_f64())
}

/// How often the two with little memory take turns.
const ROUNDS: usize = 3;

/// One turn of each, with what the disk gave after it.
struct Round {
    plain: Json,
    ours: Json,
    /// Bytes that ours had resident at most.
    peak: u64,
    disk: f64,
}

impl Round {
    fn experts(&self, name: &str) -> Result<f64> {
        self.ours["experts"][name].as_f64().with_context(|| format!("no {name}"))
    }

    fn times_plain_map(&self) -> Result<f64> {
        Ok(tokens_per_s(&self.ours)? / tokens_per_s(&self.plain)?)
    }

    fn read_by_missed(&self) -> Result<f64> {
        let missed = self.experts("missed_bytes")?;
        ensure!(missed > 0.0, "nothing was missed: {}", self.ours["experts"]);
        Ok(self.experts("read_bytes")? / missed)
    }

    fn share_of_disk(&self) -> Result<f64> {
        Ok(self.experts("read_bytes")? / self.experts("reading_s")? / self.disk)
    }
}

/// Whether the engine is as fast as it must be.
fn judge(times_plain_map: f64, share_of_disk: f64) -> Result<()> {
    ensure!(
        times_plain_map >= 2.0,
        "got {times_plain_map} times the speed of a plain map, expected at least 2"
    );
    ensure!(
        share_of_disk >= 0.8,
        "got {share_of_disk} of the disk's rate while reading, expected at least 0.8"
    );
    Ok(())
}

/// Compares the engine with slots, the engine over a plain map, both with little memory, and the
/// engine with all of it.
pub(crate) fn run(scale: Scale) -> Result<Figures> {
    // Only the full scale is about speed: a file of CI's size is in the system's cache anyway.
    let (shape, tokens, limit) =
        scale.pick(("small", 24, None), ("gpt-oss-20b", 96, Some(8_000_000_000)));
    let model = packed(shape, scale.profile())?;
    let program = shell::example("generate", scale.profile())?;
    let answer = |more: &[&str]| answer(&program, &model, tokens, more);
    // The process needs more than the engine counts: its program, stacks, and small things.
    let budget = limit.map_or(90_000_000, |limit: u64| limit / 100 * 99).to_string();
    let slots = ["--max-memory", budget.as_str()];
    let balloon = limit.map(Balloon::leave).transpose()?;
    // In turn: what a disk gives changes from minute to minute.
    let round = |_| {
        let (plain, _) = answer(&["--huge-pages", "false"])?;
        let (ours, peak) = answer(&slots)?;
        Ok(Round { plain, ours, peak, disk: disk_rate(&model)? })
    };
    let rounds: Vec<Round> = (0..scale.pick(1, ROUNDS)).map(round).collect::<Result<_>>()?;
    let locked = balloon.as_ref().map(|balloon| balloon.bytes);
    drop(balloon);
    let (whole, _) = answer(&[])?;
    for round in &rounds {
        let Round { plain, ours, peak, .. } = round;
        for (name, answer) in [("slots", ours), ("a plain map", plain)] {
            ensure!(answer["ids"] == whole["ids"], "{name} gives other tokens than all memory");
        }
        let limit_kept = limit.is_none_or(|limit| *peak <= limit);
        ensure!(limit_kept, "{peak} bytes were resident of a limit of {limit:?}");
        let of_missed = round.read_by_missed()?;
        ensure!(of_missed <= 1.1, "{of_missed} bytes were read for each missed one");
    }
    let middle = |of: &dyn Fn(&Round) -> Result<f64>| -> Result<f64> {
        let all: Vec<f64> = rounds.iter().map(of).collect::<Result<_>>()?;
        Ok(rounded(median(all).context("no rounds")?))
    };
    let times_plain_map = middle(&Round::times_plain_map)?;
    let share_of_disk = middle(&Round::share_of_disk)?;
    if scale == Scale::Full {
        judge(times_plain_map, share_of_disk)?;
    }
    let times: Vec<f64> = rounds.iter().map(Round::times_plain_map).collect::<Result<_>>()?;
    let experts: Vec<Json> = rounds.iter().map(|round| round.ours["experts"].clone()).collect();
    Ok(Figures::from_iter([
        ("memory_limit_bytes".into(), json!(limit)),
        ("locked_bytes".into(), json!(locked)),
        ("max_memory".into(), json!(budget)),
        ("resident_bytes_peak".into(), json!(rounds.iter().map(|round| round.peak).max())),
        ("tokens".into(), json!(tokens)),
        ("rounds".into(), json!(rounds.len())),
        ("tokens_per_s".into(), json!(middle(&|round| tokens_per_s(&round.ours))?)),
        ("plain_map_tokens_per_s".into(), json!(middle(&|round| tokens_per_s(&round.plain))?)),
        ("times_plain_map".into(), json!(times_plain_map)),
        ("times_plain_map_each".into(), times.into_iter().map(rounded).collect()),
        ("all_in_memory_tokens_per_s".into(), json!(rounded(tokens_per_s(&whole)?))),
        ("read_bytes_by_missed".into(), json!(middle(&Round::read_by_missed)?)),
        ("disk_gb_per_s".into(), json!(middle(&|round| Ok(round.disk / 1e9))?)),
        ("share_of_disk_while_reading".into(), json!(share_of_disk)),
        ("experts".into(), json!(experts)),
    ]))
}

fn rounded(number: f64) -> f64 {
    (number * 1e3).round() / 1e3
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn a_run_that_is_too_slow_says_what_is_wanted() {
        judge(2.0, 0.8).expect("fast enough");
        let said = |times, share| judge(times, share).expect_err("too slow").to_string();
        assert!(said(1.99, 1.0).ends_with("expected at least 2"));
        assert!(said(2.1, 0.79).ends_with("expected at least 0.8"));
    }
}
