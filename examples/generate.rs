//! Continues a prompt: a text, or tokens.
//!
//! `cargo run --release --example generate -- --prompt "Once upon a time"`
//!
//! With `--json` it prints one object; docs/json.md tells what is in it.

use anyhow::{Context, Result};
use clap::Parser;
use oss_engine::{Completion, Engine, Event, Grammar, Prompt, Request, Sampling};
use oss_examples::{EngineArgs, out, outln, run, usage};
use serde_json::{Value, json};
use std::io::Write;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::process::ExitCode;

/// Continues a prompt.
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    engine: EngineArgs,
    /// The text to continue
    #[arg(long, required_unless_present = "prompt_ids", conflicts_with = "prompt_ids")]
    prompt: Option<String>,
    /// The tokens to continue, such as 1,2,3
    #[arg(long, value_delimiter = ',')]
    prompt_ids: Option<Vec<u32>>,
    /// Takes names of control tokens in the prompt as control tokens
    #[arg(long, conflicts_with = "prompt_ids")]
    parse_special: bool,
    /// What is so without it; from before --parse-special
    #[arg(long, hide = true, conflicts_with_all = ["parse_special", "prompt_ids"])]
    plain: bool,
    /// The most tokens of the answer; 0 computes the prompt alone
    #[arg(long, default_value_t = 256)]
    max_tokens: usize,
    /// Divides the logits; 0 is greedy. Default: the model's own
    #[arg(long)]
    temperature: Option<f32>,
    /// Keeps this many of the most probable tokens
    #[arg(long)]
    top_k: Option<usize>,
    /// Keeps the most probable tokens that together have this probability
    #[arg(long)]
    top_p: Option<f32>,
    /// Keeps tokens at least this times as probable as the best
    #[arg(long)]
    min_p: Option<f32>,
    /// Locally typical sampling
    #[arg(long)]
    typical_p: Option<f32>,
    /// Divides the logits of tokens that were there
    #[arg(long)]
    repetition_penalty: Option<f32>,
    /// Subtracted once from the logits of tokens that were generated
    #[arg(long)]
    presence_penalty: Option<f32>,
    /// Subtracted from a token's logit for each time that it was generated
    #[arg(long)]
    frequency_penalty: Option<f32>,
    /// The seed of the draws
    #[arg(long)]
    seed: Option<u64>,
    /// Ends before this text; may be given several times
    #[arg(long)]
    stop: Vec<String>,
    /// Goes on after the model's own stop tokens
    #[arg(long, alias = "ignore-stops")]
    ignore_eos: bool,
    /// Shows control tokens in the text
    #[arg(long, alias = "control-tokens")]
    keep_special_tokens: bool,
    /// A file with a JSON schema that the answer has to fit
    #[arg(long, alias = "schema")]
    json_schema: Option<PathBuf>,
    /// A regular expression that the answer has to match
    #[arg(long, conflicts_with = "json_schema")]
    regex: Option<String>,
    /// Reports so many best log-probabilities per token
    #[arg(long, alias = "top-logprobs", requires = "json")]
    logprobs: Option<usize>,
    /// Tells on standard error what was measured of the machine, what was chosen, and why
    #[arg(long, alias = "tuning")]
    show_tuning: bool,
    /// Prints one JSON object instead of the text
    #[arg(long)]
    json: bool,
}

impl Arguments {
    fn request(&self) -> Result<Request> {
        let prompt = match (&self.prompt, &self.prompt_ids) {
            (Some(text), _) if self.parse_special => Prompt::WithSpecialTokens(text.clone()),
            (Some(text), _) => Prompt::Text(text.clone()),
            (None, Some(ids)) => Prompt::Tokens(ids.clone()),
            (None, None) => anyhow::bail!("give --prompt or --prompt-ids"),
        };
        let mut request = Request::new(prompt).max_tokens(self.max_tokens);
        request.sampling = Sampling {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            typical_p: self.typical_p,
            repetition_penalty: self.repetition_penalty,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            seed: self.seed,
            ..Sampling::default()
        };
        request.stop.clone_from(&self.stop);
        request.ignore_eos = self.ignore_eos;
        request.skip_special_tokens = !self.keep_special_tokens;
        request.logprobs = self.logprobs;
        request.prompt_logprobs = self.json.then_some(0);
        request.grammar = self.grammar()?;
        Ok(request)
    }

    /// What the answer has to be.
    fn grammar(&self) -> Result<Option<Grammar>> {
        let Some(path) = &self.json_schema else {
            return Ok(self.regex.as_ref().map(Grammar::regex));
        };
        let named = || path.display().to_string();
        let bytes = std::fs::read(path).with_context(named)?;
        let schema: Value = serde_json::from_slice(&bytes).with_context(named)?;
        Ok(Some(Grammar::json_schema(schema)))
    }
}

fn main() -> ExitCode {
    run(work)
}

fn work(arguments: &Arguments) -> Result<()> {
    let request = arguments.request()?;
    let engine = arguments.engine.load()?;
    let explain = || {
        if arguments.show_tuning {
            eprint!("\n{}", engine.tuning());
        }
    };
    if arguments.json {
        let completion = engine.generate(request)?;
        let mut object = contract(&completion);
        object["experts"] = experts(&engine);
        outln!("{object}");
        explain();
        return Ok(());
    }
    // Nothing of an answer that is refused is shown.
    let mut prompt = arguments.prompt.as_deref();
    let completion = engine.generate_with(request, |event| {
        if let Some(prompt) = prompt.take() {
            out!("{prompt}");
        }
        if let Event::Text(text) = event {
            out!("{text}");
        }
        ControlFlow::Continue(())
    })?;
    outln!();
    summary(&completion).context("the summary")?;
    explain();
    Ok(())
}

/// Where the time went, on standard error; a dash where there is no figure.
fn summary(completion: &Completion) -> Result<()> {
    let (usage, timing) = (completion.usage, completion.timing);
    let mut err = std::io::stderr().lock();
    let figure = |number: Option<f64>| match number {
        Some(number) => format!("{number:.1}"),
        None => "-".to_owned(),
    };
    // None where nothing was computed, or in no time.
    let speed = |tokens: usize, seconds: f64| {
        let speed = tokens as f64 / seconds;
        figure((tokens > 0 && speed.is_finite()).then_some(speed))
    };
    writeln!(
        err,
        "\nprompt: {} tokens, {} tokens/s; first token after {} ms",
        usage.prompt_tokens,
        speed(usage.prompt_tokens - usage.cached_tokens, timing.prefill.as_secs_f64()),
        figure(timing.first_token.map(|time| time.as_secs_f64() * 1e3))
    )?;
    writeln!(
        err,
        "answer: {} tokens, {} tokens/s; ended by {}; seed {}",
        usage.completion_tokens,
        speed(1, timing.per_token.unwrap_or_default().as_secs_f64()),
        completion.finish_reason.as_str(),
        completion.seed
    )?;
    Ok(())
}

/// How experts were found, where the model is larger than its memory.
fn experts(engine: &Engine) -> Value {
    let Some(experts) = engine.metrics().experts else { return Value::Null };
    json!({
        "slots": experts.slots,
        "slot_bytes": experts.slot_bytes,
        "experts": experts.experts,
        "hits": experts.hits,
        "misses": experts.misses,
        "hit_rate": experts.hit_rate(),
        "read_bytes": experts.read_bytes,
        "popular_bytes": experts.popular_bytes,
        "missed_bytes": experts.missed_bytes,
        "predicted": experts.predicted,
        "predicted_used": experts.predicted_used,
        "predicted_wasted": experts.predicted_wasted,
        "reading_s": experts.reading_seconds,
    })
}

/// The object of docs/json.md.
fn contract(completion: &Completion) -> Value {
    let top = |token: &oss_engine::Token| -> Vec<Value> {
        token.top.iter().map(|(id, logprob)| json!({"id": id, "logprob": logprob})).collect()
    };
    let ms = |time: std::time::Duration| time.as_secs_f64() * 1e3;
    let timing = completion.timing;
    let logprobs = completion.prompt_logprobs.iter().filter_map(|token| token.logprob);
    let sum: f64 = logprobs.map(f64::from).sum();
    json!({
        "prompt_ids": completion.prompt_token_ids.to_vec(),
        "ids": completion.token_ids(),
        "text": completion.text,
        "finish_reason": completion.finish_reason.as_str(),
        "top_logprobs": completion.tokens.iter().map(top).collect::<Vec<_>>(),
        "prompt_logprob": sum,
        "seed": completion.seed,
        "usage": usage(&completion.usage),
        "timing": {
            "queue_ms": ms(timing.queue),
            "prefill_ms": ms(timing.prefill),
            "first_token_ms": timing.first_token.map(ms),
            "per_token_ms": timing.per_token.map(ms),
            "total_ms": ms(timing.total),
        },
    })
}
