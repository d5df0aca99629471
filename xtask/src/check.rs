//! The long checks: one row each, run at two scales, full runs recorded.

use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use clap::Args;
use serde_json::{Map, Value as Json, json};

use crate::record::Record;
use crate::shell::Profile;

mod arm;
mod clients;
mod fuzz;
mod larger;
mod llama;
mod loom;
mod package;
mod repro;
mod resident;
mod synth;
mod synthetic;
mod tests;

/// How much of a check to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scale {
    /// A minute or two: what CI runs.
    Small,
    /// Everything: what is recorded.
    Full,
}

impl Scale {
    /// One of two values.
    fn pick<T>(self, small: T, full: T) -> T {
        if self == Scale::Small { small } else { full }
    }

    /// How its programs are built: what the tests have built is fast enough for CI.
    fn profile(self) -> Profile {
        self.pick(Profile::Dev, Profile::Release)
    }
}

/// What a check found, by name; for people and for the record.
type Figures = Map<String, Json>;

/// One check.
pub(crate) struct Check {
    pub(crate) name: &'static str,
    what: &'static str,
    small: &'static str,
    full: &'static str,
    /// What is missing on this machine, if anything.
    pub(crate) missing: fn() -> Option<String>,
    run: fn(Scale) -> Result<Figures>,
}

/// Every check, in the order in which CI runs them.
pub(crate) const CHECKS: [Check; 14] = [
    Check {
        name: "synth",
        what: "synthetic checkpoints of every shape are written and open again",
        small: "two layers of the tiny shapes, all formats",
        full: "the whole gpt-oss-20b file",
        missing: || None,
        run: synth::run,
    },
    Check {
        name: "llama",
        what: "llama.cpp loads a synthetic checkpoint, computes a prompt and generates",
        small: "the tiny shapes",
        full: "gpt-oss-20b",
        missing: llama::missing,
        run: llama::run,
    },
    Check {
        name: "resident",
        what: "synthetic models load and decode within their memory",
        small: "the tiny shapes, 128 MB each; a packed one with 4,096 positions",
        full: "gpt-oss-20b, 14 GB, tinyllama, 1.4 GB, and gpt-oss-20b packed with 4,096 positions",
        missing: resident::missing,
        run: resident::run,
    },
    Check {
        name: "larger",
        what: "a model larger than its memory gives the same tokens, and faster than a plain map",
        small: "80 MB of experts, half of them in memory; no comparison of speed",
        full: "gpt-oss-20b with a Zipf routing in 8 GB: twice as fast, at 0.8 of the disk's rate",
        missing: larger::missing,
        run: larger::run,
    },
    Check {
        name: "loom",
        what: "no interleaving of a team's workers loses a phase, a unit or a wake-up",
        small: "all",
        full: "all",
        missing: || None,
        run: loom::run,
    },
    Check {
        name: "smollm2",
        what: "SmolLM2 gives its references' tokens and logits in every activation mode",
        small: "all",
        full: "all",
        missing: tests::no_smollm2,
        run: tests::smollm2,
    },
    Check {
        name: "draws",
        what: "draws follow the distribution they claim (chi-square)",
        small: "100,000 draws",
        full: "1,000,000 draws",
        missing: || None,
        run: tests::draws,
    },
    Check {
        name: "kill",
        what: "kill -9 of a cache or an engine, answering or packing, never gives a wrong token",
        small: "6 rounds of each",
        full: "100 rounds of each",
        missing: || None,
        run: tests::kill,
    },
    Check {
        name: "together",
        what: "tokens and log-probabilities are a plain engine's, whatever happens around them",
        small: "2,000 random operations",
        full: "100,000 random operations",
        missing: || None,
        run: tests::together,
    },
    Check {
        name: "clients",
        what: "OpenAI's library, its agents and LangChain understand the server's answers",
        small: "all",
        full: "all",
        missing: clients::missing,
        run: clients::run,
    },
    Check {
        name: "package",
        what: "crates package below 10 MB; a program outside builds against the packages and runs",
        small: "all",
        full: "all",
        missing: || None,
        run: package::run,
    },
    Check {
        name: "repro",
        what: "two release builds in different folders give identical bytes",
        small: "the example embed, not optimised",
        full: "all examples and the server",
        missing: || None,
        run: repro::run,
    },
    Check {
        name: "arm",
        what: "everything compiles for 64-bit Arm, and tests pass there under emulation",
        small: "the engine, and tests of oss-simd",
        full: "also tests of oss-quant, oss-kernels and oss-model: logits must be x86-64's",
        missing: arm::missing,
        run: arm::run,
    },
    Check {
        name: "fuzz",
        what: "every fuzz target runs without a finding",
        small: "5 seconds each",
        full: "10 minutes each",
        missing: fuzz::missing,
        run: fuzz::run,
    },
];

/// Which check to run.
#[derive(Args)]
pub(crate) struct Options {
    /// The check; without it, they are listed
    name: Option<String>,
    /// At the scale of CI, without a record
    #[arg(long)]
    small: bool,
}

/// Runs one check, or lists all.
pub(crate) fn run(options: &Options) -> Result<()> {
    let Some(name) = &options.name else {
        for Check { name, what, small, full, .. } in &CHECKS {
            println!("{name:10} {what}\n{:10} small: {small}; full: {full}", "");
        }
        return Ok(());
    };
    let Some(check) = CHECKS.iter().find(|check| check.name == name) else {
        let known: Vec<_> = CHECKS.iter().map(|check| check.name).collect();
        bail!("no check `{name}`; there are {}", known.join(", "));
    };
    if let Some(missing) = (check.missing)() {
        bail!("{name}: {missing}");
    }
    let scale = if options.small { Scale::Small } else { Scale::Full };
    check.perform(scale)
}

impl Check {
    /// Runs the check, prints its figures, and records them when it is a full run.
    pub(crate) fn perform(&self, scale: Scale) -> Result<()> {
        let name = format!("check-{}", self.name);
        let record = (scale == Scale::Full).then(|| Record::begin(&name)).transpose()?;
        let start = Instant::now();
        let mut figures = (self.run)(scale).with_context(|| format!("check {}", self.name))?;
        let seconds = (start.elapsed().as_secs_f64() * 10.0).round() / 10.0;
        figures.insert("seconds".to_owned(), json!(seconds));
        for (name, value) in &figures {
            println!("{}: {name}: {value}", self.name);
        }
        if let Some(record) = &record {
            record.write(self.json(&figures))?;
        }
        // Figures that broke a bound are recorded too.
        match figures.get("verdict").and_then(Json::as_str) {
            Some(verdict) if verdict != "held" => bail!("check {}: {verdict}", self.name),
            _ => Ok(()),
        }
    }

    fn json(&self, figures: &Figures) -> Json {
        json!({
            "check": self.name,
            "what": self.what,
            "scale": self.full,
            "figures": figures,
        })
    }
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn an_unknown_check_lists_the_known_ones() {
        let options = Options { name: Some("nothing".into()), small: true };
        let error = run(&options).expect_err("no such check").to_string();
        assert!(CHECKS.iter().all(|check| error.contains(check.name)), "{error}");
    }
}
