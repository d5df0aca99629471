//! Runs one process of either side and reads its number.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context as _, Result};
use serde_json::Value as Json;

use crate::bench::{Bench, Printed};
use crate::compare::rows::{Figure, Row};
use crate::llama::Llama;
use crate::prompt;
use crate::shell;

/// What one process gave.
pub(crate) struct Found {
    /// In the row's unit.
    pub(crate) value: f64,
    /// The most memory it had resident, in bytes.
    pub(crate) resident: u64,
    /// All that it printed, where that is JSON.
    pub(crate) details: Json,
}

/// Settings of llama.cpp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Variant {
    flash_attention: bool,
    repack: bool,
}

impl fmt::Display for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = |on: bool| if on { "on" } else { "off" };
        write!(f, "flash {}, repack {}", word(self.flash_attention), word(self.repack))
    }
}

impl Variant {
    /// Every combination.
    pub(crate) fn all(repack: bool) -> Vec<Variant> {
        let kinds = if repack { &[true, false][..] } else { &[false] };
        let both = |repack: &bool| {
            [true, false].map(|flash_attention| Variant { flash_attention, repack: *repack })
        };
        kinds.iter().flat_map(both).collect()
    }
}

/// How this engine is measured.
pub(crate) struct Ours<'a> {
    pub(crate) bench: Bench,
    /// The built example `generate`.
    pub(crate) generate: PathBuf,
    pub(crate) model: &'a Path,
    pub(crate) threads: usize,
    pub(crate) gen_tokens: usize,
    /// Our `--activation`, where they are not the model's own.
    pub(crate) activations: Option<&'a str>,
}

impl Ours<'_> {
    /// Runs our bench for rows that share a process.
    pub(crate) fn measure(&self, rows: &[&Row]) -> Result<Vec<Found>> {
        let row = rows[0];
        if row.figure == Figure::Start {
            return self.start(row).map(|found| vec![found]);
        }
        let threads = if row.alone { 1 } else { self.threads };
        // In some minutes a virtual machine's memory is twice as fast as in others: of a few runs
        // of some seconds, the middle one is less likely to be both.
        let few = row.batch == 1 && (row.depth == 0 || !row.llama);
        let numbers = [
            ("--repeat", if few && row.figure == Figure::Decode { 3 } else { 1 }),
            ("--threads", threads),
            ("--prompt-tokens", prompts(rows).last().copied().unwrap_or(0)),
            ("--gen-tokens", generated(rows, self.gen_tokens)),
            ("--depth", row.depth),
            ("--batch", row.batch),
        ];
        let pause = row.pause.to_string();
        let mut more = vec!["--pause", &pause];
        if let Some(activations) = self.activations {
            more.extend(["--activation", activations]);
        }
        let variables: Vec<_> = row.isa.iter().map(|isa| ("OSS_ISA", *isa)).collect();
        let printed = self.bench.run(self.model, &numbers, &more, &variables)?;
        let number = |path: &str| printed.number(path);
        let speed = || number("/prefill/tokens_per_s/median");
        let Printed(details) = &printed;
        let resident = details["resident_bytes"].as_u64().unwrap_or(0);
        let found = rows.iter().map(|row| {
            let value = match row.figure {
                Figure::Decode => number("/decode/tokens_per_s/median")?,
                Figure::Prefill => speed()?,
                Figure::FirstToken => 1e3 * row.prompt as f64 / speed()?,
                Figure::Start => unreachable!("{} has a process of its own", row.name),
            };
            Ok(Found { value, resident, details: details.clone() })
        });
        found.collect()
    }

    /// Runs the whole process of a program as users have it: it makes an engine with all that goes
    /// with it, takes a prompt and draws a token.
    fn start(&self, row: &Row) -> Result<Found> {
        let mut command = shell::measured(&self.generate, &["--max-tokens", "1", "--model"]);
        command.arg(self.model).args(["--prompt-ids", &prompt::ids(0..row.prompt)]);
        command.args(["--threads", &self.threads.to_string()]);
        if let Some(activations) = self.activations {
            command.args(["--activation", activations]);
        }
        let start = Instant::now();
        let (_, resident) = shell::watched(&mut command)?;
        let value = start.elapsed().as_secs_f64();
        Ok(Found { value, resident, details: Json::Null })
    }
}

/// The prompts that some rows measure, each once, the shortest first.
fn prompts(rows: &[&Row]) -> Vec<usize> {
    sorted(rows.iter().map(|row| row.prompt).filter(|prompt| *prompt > 0))
}

/// Numbers in order, each once.
fn sorted(numbers: impl Iterator<Item = usize>) -> Vec<usize> {
    BTreeSet::from_iter(numbers).into_iter().collect()
}

/// The tokens that some rows generate.
fn generated(rows: &[&Row], each: usize) -> usize {
    if rows.iter().any(|row| row.figure == Figure::Decode) { each } else { 0 }
}

/// How llama.cpp is measured.
pub(crate) struct Theirs<'a> {
    pub(crate) llama: &'a Llama,
    pub(crate) model: &'a Path,
    pub(crate) threads: usize,
    pub(crate) gen_tokens: usize,
}

impl Theirs<'_> {
    /// Runs llama.cpp's bench with some settings, for rows that share a process.
    pub(crate) fn measure(&self, rows: &[&Row], variant: Variant) -> Result<Vec<Found>> {
        let many = rows[0].batch > 1;
        let tool = if many { "llama-batched-bench" } else { "llama-bench" };
        let mut command = self.llama.tool(tool, &["-m"])?;
        command.arg(self.model).args(match many {
            true => self.batched(rows[0], variant),
            false => self.single(rows, variant),
        });
        let start = Instant::now();
        let (printed, resident) = shell::watched(&mut command)?;
        let seconds = start.elapsed().as_secs_f64();
        // One tool prints a list with an object a figure, the other lines with one object among
        // others.
        let objects: Vec<Json> = match printed.lines().find(|line| line.starts_with('{')) {
            Some(line) if many => serde_json::from_str(line).map(|object| vec![object]),
            _ => serde_json::from_str(&printed),
        }
        .with_context(|| format!("what {tool} printed: {printed}"))?;
        let found = rows.iter().map(|row| {
            let tokens = if row.figure == Figure::Decode { 0 } else { row.prompt };
            let is_rows = |object: &&Json| {
                many || (object["n_prompt"] == tokens && object["n_depth"] == row.depth)
            };
            let details = objects.iter().find(is_rows);
            let details = details.with_context(|| format!("{tool} gives no {}", row.what))?;
            let speed = if many { &details["speed_tg"] } else { &details["avg_ts"] };
            let speed =
                speed.as_f64().with_context(|| format!("{tool} gives no speed: {details}"))?;
            let value = match row.figure {
                Figure::Decode | Figure::Prefill => speed,
                Figure::FirstToken => 1e3 * row.prompt as f64 / speed,
                Figure::Start => seconds,
            };
            Ok(Found { value, resident, details: details.clone() })
        });
        found.collect()
    }

    fn threads(&self, row: &Row) -> String {
        if row.alone { 1 } else { self.threads }.to_string()
    }

    fn single(&self, rows: &[&Row], variant: Variant) -> Vec<String> {
        let row = rows[0];
        let mut arguments = flags([
            ("-t", self.threads(row)),
            ("-p", list(&prompts(rows))),
            ("-n", generated(rows, self.gen_tokens).to_string()),
            ("-d", list(&sorted(rows.iter().map(|row| row.depth)))),
            ("-fa", u8::from(variant.flash_attention).to_string()),
            ("--repack", u8::from(variant.repack).to_string()),
            ("-r", "1".to_owned()),
            ("-o", "json".to_owned()),
        ]);
        if row.figure == Figure::Start {
            arguments.push("--no-warmup".to_owned());
        }
        arguments
    }

    fn batched(&self, row: &Row, variant: Variant) -> Vec<String> {
        // It begins with a prompt; the shortest has one token.
        let depth = row.depth.max(1);
        let positions = row.batch * (depth + self.gen_tokens);
        let mut arguments = flags([
            ("-t", self.threads(row)),
            ("-npp", depth.to_string()),
            ("-ntg", self.gen_tokens.to_string()),
            ("-npl", row.batch.to_string()),
            ("-c", positions.next_multiple_of(256 * row.batch).to_string()),
            ("-fa", if variant.flash_attention { "on" } else { "off" }.to_owned()),
            ("--output-format", "jsonl".to_owned()),
        ]);
        if !variant.repack {
            arguments.push("--no-repack".to_owned());
        }
        arguments
    }
}

/// As llama.cpp's bench reads several numbers; none is 0.
fn list(numbers: &[usize]) -> String {
    let numbers: Vec<_> = numbers.iter().map(ToString::to_string).collect();
    if numbers.is_empty() { "0".to_owned() } else { numbers.join(",") }
}

fn flags<const N: usize>(pairs: [(&str, String); N]) -> Vec<String> {
    pairs.into_iter().flat_map(|(name, value)| [name.to_owned(), value]).collect()
}
