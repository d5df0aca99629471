//! `check larger`: a model that is larger than its memory, beside the same file plainly mapped.

use std::iter;
use std::ops::Range;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use oss_memory::file::{DIRECT_ALIGNMENT, RandomAccess};
use oss_memory::{Buffer, Pages};
use oss_testing::{Seeded, median};
use oss_weights::packed::Reader;
use serde_json::{Value as Json, json};

use crate::balloon::{self, Balloon};
use crate::check::{Figures, Scale, synthetic};
use crate::prompt;
use crate::shell;
use crate::synth::Shape;

/// Bytes of one read of the probe at most, and how many are in flight: as the engine reads experts.
const PART: u64 = 4 << 20;
const READS: usize = 4;
/// Disks of virtual machines give more in the first seconds after idleness: those do not count.
const PROBE: Duration = Duration::from_secs(3);

/// What the machine must offer.
pub(crate) fn missing() -> Option<String> {
    balloon::available().is_err().then(|| "needs /proc to know how much memory is left".to_owned())
}

/// Answers with the example `generate`: tokens that do not repeat, drawn alike every time with a
/// seed, and others with another. Says how much memory that took, too.
fn answer(
    (program, model): (&Path, &Path),
    (tokens, seed): (usize, usize),
    more: &[&str],
) -> Result<(Json, u64)> {
    let ids = prompt::ids(64 * (seed - 1)..64 * seed);
    let (tokens, seed) = (tokens.to_string(), seed.to_string());
    let mut command = shell::measured(program, &["--json", "--prompt-ids", &ids, "--model"]);
    command.arg(model).args(["--max-tokens", &tokens]);
    command.args(["--context-len", "4096", "--temperature", "1", "--seed", &seed, "--ignore-eos"]);
    let (printed, peak) =
        shell::watched(command.args(["--speculation", "off", "--tune", "off"]).args(more))?;
    Ok((serde_json::from_str(&printed)?, peak))
}

fn tokens_per_s(answer: &Json) -> Result<f64> {
    let ms = answer["timing"]["per_token_ms"].as_f64().context("an answer without times")?;
    Ok(1e3 / ms)
}

/// Where as many experts of a packed file lie as have no slot, some of each layer: those that the
/// engine reads again and again, what is popular being in slots.
fn without_slots(path: &Path, shape: &Shape, slots: usize) -> Result<Vec<Range<u64>>> {
    let file = Reader::open(path)?;
    let layers = file.sections().filter(|section| section.name.starts_with("experts."));
    let mut experts: Vec<Range<u64>> = layers
        .flat_map(|section| {
            let bytes = section.length / shape.experts as u64;
            let begins = (0..shape.experts as u64).map(move |n| section.offset + n * bytes);
            begins.map(move |begin| begin..begin + bytes)
        })
        .collect();
    ensure!(!experts.is_empty(), "no experts in {}", path.display());
    Seeded::new(1).shuffle(&mut experts);
    experts.truncate(experts.len().saturating_sub(slots).max(1));
    Ok(experts)
}

/// The reads of an expert, as the engine cuts them: whole blocks, in equal parts.
fn parts(expert: &Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let block = DIRECT_ALIGNMENT as u64;
    let (begin, end) = (expert.start / block * block, expert.end.next_multiple_of(block));
    let span = end - begin;
    let len = span.div_ceil(span.div_ceil(PART)).next_multiple_of(block);
    (begin..end).step_by(len as usize).map(move |part| part..end.min(part + len))
}

/// Bytes a second that the disk gives for some experts of a file, one drawn after the other, past
/// the system's cache and into huge pages, as the engine's slots are.
fn disk_rate(path: &Path, experts: &[Range<u64>]) -> Result<f64> {
    let file = RandomAccess::open_direct(path)?;
    let mut seeded = Seeded::new(2);
    let draws = iter::repeat_with(move || &experts[seeded.below(experts.len())]);
    let (reads, bytes) = (Mutex::new(draws.flat_map(parts)), AtomicU64::new(0));
    let begin = Instant::now();
    let read = || -> Result<()> {
        let mut buffer = Buffer::new(PART as usize, Pages::Transparent)?;
        while begin.elapsed() < 2 * PROBE {
            let part = reads.lock().expect("no reader panics").next().expect("there is no end");
            let room = &mut buffer[..(part.end - part.start) as usize];
            let got = file.read_to_end_at(room, part.start)?;
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

/// Bytes that a process may have resident besides its budget, where nothing else limits it: fewer
/// than the experts that have no slot.
const BESIDES: u64 = 10_000_000;

/// How often the two with little memory take turns.
const ROUNDS: usize = 3;

/// One turn of each, with what the disk gave after it.
struct Round {
    plain: Json,
    /// Another prompt and answer, which knows no popularity of experts yet.
    first: Json,
    /// With the popularity that it left.
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
        Ok((self.experts("read_bytes")? - self.experts("popular_bytes")?) / missed)
    }

    fn share_of_disk(&self) -> Result<f64> {
        Ok(self.experts("read_bytes")? / self.experts("reading_s")? / self.disk)
    }
}

/// What has to hold, and what a run gave.
struct Held {
    /// Bytes that may be resident at most.
    most: u64,
    /// Whether memory was limited to that. Only then speeds count.
    timed: bool,
    /// Bytes that were resident at most.
    peak: u64,
    read_by_missed: f64,
    times_plain_map: f64,
    share_of_disk: f64,
}

impl Held {
    /// What does not hold, in words, or that all does.
    fn verdict(&self) -> String {
        let Held { most, timed, peak, read_by_missed, times_plain_map, share_of_disk } = self;
        let bounds = [
            (peak <= most, format!("{peak} bytes were resident, expected at most {most}")),
            (
                *read_by_missed <= 1.1,
                format!("{read_by_missed} bytes read for each missed one, expected at most 1.1"),
            ),
            (
                !timed || *times_plain_map >= 2.0,
                format!("{times_plain_map} times as fast as a plain map, expected at least 2"),
            ),
            (
                !timed || *share_of_disk >= 0.8,
                format!("{share_of_disk} of the disk's rate while reading, expected at least 0.8"),
            ),
            (
                !timed || *share_of_disk <= 1.1,
                format!("{share_of_disk} of the disk's rate while reading: its probe is wrong"),
            ),
        ];
        let broken: Vec<String> =
            bounds.into_iter().filter(|(held, _)| !held).map(|(_, what)| what).collect();
        if broken.is_empty() { "held".to_owned() } else { broken.join("; ") }
    }
}

/// Compares the engine with slots, the engine over a plain map, both with little memory, and the
/// engine with all of it. What does not hold is told by the figure `verdict`, so that it can be
/// recorded, too; other tokens are an error.
pub(crate) fn run(scale: Scale) -> Result<Figures> {
    // Only the full scale is about speed: a file of CI's size is in the system's cache anyway.
    let (shape, tokens, limit) =
        scale.pick(("small", 24, None), ("gpt-oss-20b", 96, Some(8_000_000_000)));
    let file = synthetic::packed(shape, scale)?;
    let (model, shape) = (&file.path, Shape::named(shape)?);
    let program = shell::example("generate", scale.profile())?;
    let answer_as = |seed, more: &[&str]| answer((&program, model), (tokens, seed), more);
    let answer = |more: &[&str]| answer_as(1, more);
    // The process needs more than the engine counts: its program, stacks, and small things.
    let budget = limit.map_or(90_000_000, |limit: u64| limit / 100 * 99);
    let most = limit.unwrap_or(budget + BESIDES);
    let budget = budget.to_string();
    let mut balloon = limit.map(Balloon::leave).transpose()?;
    // In turn: what a disk gives changes from minute to minute.
    let round = |_| {
        let (plain, _) = answer(&["--huge-pages", "false"])?;
        // Experts' popularity is another text's: that of the same one would say too much.
        let kept = tempfile::tempdir()?;
        let kept = kept.path().to_str().context("a path in UTF-8")?;
        let slots = ["--max-memory", &budget, "--pack-directory", kept];
        let (first, _) = answer_as(2, &slots)?;
        let (ours, peak) = answer(&slots)?;
        let slots = ours["experts"]["slots"].as_u64().context("no slots")?;
        let experts = without_slots(model, &shape, slots as usize)?;
        Ok(Round { plain, first, ours, peak, disk: disk_rate(model, &experts)? })
    };
    let rounds: Vec<Round> = (0..scale.pick(1, ROUNDS)).map(round).collect::<Result<_>>()?;
    let locked = balloon.as_mut().map(Balloon::check).transpose()?;
    drop(balloon);
    let (whole, _) = answer(&[])?;
    for Round { plain, ours, .. } in &rounds {
        for (name, answer) in [("slots", ours), ("a plain map", plain)] {
            ensure!(answer["ids"] == whole["ids"], "{name} gives other tokens than all memory");
        }
    }
    let each = |of: &dyn Fn(&Round) -> Result<f64>| -> Result<Vec<f64>> {
        rounds.iter().map(|round| of(round).map(rounded)).collect()
    };
    let middle = |of: &dyn Fn(&Round) -> Result<f64>| -> Result<f64> {
        median(each(of)?).context("no rounds")
    };
    let held = Held {
        most,
        timed: limit.is_some(),
        peak: rounds.iter().map(|round| round.peak).max().unwrap_or(0),
        read_by_missed: each(&Round::read_by_missed)?.into_iter().fold(0.0, f64::max),
        times_plain_map: middle(&Round::times_plain_map)?,
        share_of_disk: middle(&Round::share_of_disk)?,
    };
    let experts: Vec<Json> = rounds.iter().map(|round| round.ours["experts"].clone()).collect();
    Ok(Figures::from_iter([
        ("verdict".into(), json!(held.verdict())),
        ("memory_limit_bytes".into(), json!(limit)),
        ("resident_bytes_limit".into(), json!(most)),
        ("locked_bytes".into(), json!(locked)),
        ("max_memory".into(), json!(budget)),
        ("resident_bytes_peak".into(), json!(held.peak)),
        ("tokens".into(), json!(tokens)),
        ("rounds".into(), json!(rounds.len())),
        ("tokens_per_s".into(), json!(middle(&|round| tokens_per_s(&round.ours))?)),
        ("first_tokens_per_s".into(), json!(middle(&|round| tokens_per_s(&round.first))?)),
        ("plain_map_tokens_per_s".into(), json!(middle(&|round| tokens_per_s(&round.plain))?)),
        ("times_plain_map".into(), json!(held.times_plain_map)),
        ("times_plain_map_each".into(), json!(each(&Round::times_plain_map)?)),
        ("all_in_memory_tokens_per_s".into(), json!(rounded(tokens_per_s(&whole)?))),
        ("read_bytes_by_missed".into(), json!(middle(&Round::read_by_missed)?)),
        ("disk_gb_per_s".into(), json!(middle(&|round| Ok(round.disk / 1e9))?)),
        ("share_of_disk_while_reading".into(), json!(held.share_of_disk)),
        ("share_of_disk_each".into(), json!(each(&Round::share_of_disk)?)),
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
    fn a_run_that_breaks_a_bound_says_what_is_wanted() {
        let held = |times_plain_map, share_of_disk| {
            let (most, timed, peak, read_by_missed) = (8, true, 8, 1.1);
            Held { most, timed, peak, read_by_missed, times_plain_map, share_of_disk }
        };
        assert_eq!(held(2.0, 0.8).verdict(), "held");
        let said = |times, share, end: &str| {
            let verdict = held(times, share).verdict();
            assert!(verdict.ends_with(end), "{verdict}");
        };
        said(1.99, 1.0, "expected at least 2");
        said(2.1, 0.79, "expected at least 0.8");
        said(2.1, 1.11, "its probe is wrong");
        let much = Held { peak: 9, read_by_missed: 1.2, ..held(1.0, 1.0) };
        assert_eq!(much.verdict().split("; ").count(), 3, "{}", much.verdict());
        let untimed = Held { timed: false, ..held(1.0, 2.0) };
        assert_eq!(untimed.verdict(), "held", "no speed counts");
        let resident = Held { peak: 9, ..untimed }.verdict();
        assert_eq!(resident, "9 bytes were resident, expected at most 8");
    }

    #[test]
    fn an_expert_is_read_as_whole_blocks_in_equal_parts() {
        let block = DIRECT_ALIGNMENT as u64;
        let lengths = |expert: Range<u64>| {
            parts(&expert).map(|part| (part.end - part.start) / block).collect::<Vec<_>>()
        };
        assert_eq!(lengths(block + 64..3 * block), [2]);
        // One of gpt-oss-20b that begins within a block.
        let expert = 7 * block + 64..7 * block + 64 + 13_238_272;
        assert_eq!(lengths(expert.clone()), [809, 809, 809, 806]);
        assert_eq!(parts(&expert).next().map(|part| part.start), Some(7 * block));
    }
}
