//! `check synth`: every kind of synthetic checkpoint opens again.

use anyhow::{Result, ensure};
use oss_weights::Container;
use serde_json::json;

use crate::check::{Figures, Scale};
use crate::shell;
use crate::synth::{Format, Options, write};

/// Writes checkpoints and opens them.
pub(crate) fn run(scale: Scale) -> Result<Figures> {
    let mut figures = Figures::new();
    let folder = shell::scratch("synth")?;
    let all = [
        ("tiny", Format::Gguf),
        ("tiny", Format::Safetensors),
        ("tiny-llama", Format::Gguf),
        ("tiny-llama", Format::Safetensors),
    ];
    let list = scale.pick(&all[..], &[("gpt-oss-20b", Format::Gguf)]);
    for (shape, format) in list {
        let output = folder.path().join(format!("{shape}-{format:?}.gguf"));
        let written = write(&Options::new(shape, *format, output.clone()))?;
        let start = std::time::Instant::now();
        let container = Container::open(&output)?;
        let opened = start.elapsed().as_secs_f64() * 1e3;
        let there: u64 = container.tensors().map(|tensor| tensor.bytes() as u64).sum();
        ensure!(there == written, "{shape}: {there} bytes of tensors, {written} written");
        let figure = json!({ "bytes": written, "open_ms": (opened * 100.0).round() / 100.0 });
        figures.insert(format!("{shape} {format:?}"), figure);
    }
    Ok(figures)
}
