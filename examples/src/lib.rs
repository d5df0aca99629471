//! What the example programs share: the flags of models and engines, opening them, fields of JSON,
//! conversations, printing, progress that stays off pipes, charts, what a process takes of the
//! machine, and how programs end.
#![forbid(unsafe_code)]

mod arguments;
pub mod chart;
mod conversation;
mod download;
mod fields;
pub mod machine;
mod printing;
mod program;
pub mod spread;
pub mod tuning;

use anyhow::{Context, Result, ensure};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use oss_engine::pack::{Precision, pack_to_file};
use oss_engine::{Container, Usage};
use serde_json::{Value, json};
use std::ops::ControlFlow;
use std::path::Path;

pub use arguments::{EngineArgs, FileArgs, ModelArgs};
pub use conversation::{OF_CONVERSATIONS, conversation};
pub use fields::field;
pub use printing::print;
pub use program::{deliver, run, told};

/// A progress bar over bytes, on standard error and only on a terminal.
#[must_use]
pub fn bar(bytes: u64, what: &'static str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(bytes), ProgressDrawTarget::stderr_with_hz(10));
    let template = "{msg} [{bar:40}] {bytes} of {total_bytes}, {eta} left";
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style.progress_chars("=> "));
    }
    bar.set_message(what);
    bar
}

/// Refuses a path that no file can be written to, before the work whose outcome goes there.
///
/// # Errors
/// When it names no file, or its folder is not there; `flag` is where it came from.
pub fn check_output(flag: &str, path: &Path) -> Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let is_there = parent.is_none_or(Path::is_dir);
    let fits = path.file_name().is_some() && !path.is_dir() && is_there;
    ensure!(fits, "{flag}: got {}, expected a file in a folder that is there", path.display());
    Ok(())
}

/// Writes a model as a packed file, with a progress bar where somebody looks.
///
/// # Errors
/// When the model is not supported, or the file cannot be written.
pub fn pack(container: &Container, precision: &Precision, output: &Path) -> Result<()> {
    let bar = bar(0, "packing");
    let show = |done, total| {
        bar.set_length(total);
        bar.set_position(done);
        ControlFlow::Continue(())
    };
    pack_to_file(container, precision, output, Some(&show))
        .with_context(|| format!("cannot write {}", output.display()))?;
    bar.finish_and_clear();
    Ok(())
}

/// An answer's tokens, as docs/json.md has them.
#[must_use]
pub fn usage(usage: &Usage) -> Value {
    json!({
        "prompt_tokens": usage.prompt_tokens,
        "cached_tokens": usage.cached_tokens,
        "completion_tokens": usage.completion_tokens,
    })
}

/// A progress bar over so many things, on standard error and only on a terminal.
#[must_use]
pub fn counter(count: usize, what: &'static str) -> ProgressBar {
    let target = ProgressDrawTarget::stderr_with_hz(10);
    let bar = ProgressBar::with_draw_target(Some(count as u64), target);
    let template = "[{bar:40}] {pos} of {len} {prefix} {msg}, {eta} left";
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style.progress_chars("=> "));
    }
    bar.set_prefix(what);
    bar
}
