//! What every way of asking for text has in common.

use std::ops::RangeInclusive;

use oss_engine::{Prompt, Request, Sampling};
use serde_json::{Map, Value, json};

use crate::read::fields::{Fields, read, short};
use crate::read::format::{self, Format, Nesting};
use crate::refusal::Refusal;

/// The field that says what an answer has to look like, but for responses.
const FORMAT: &str = "response_format";

/// The most answers to one prompt.
const MOST_CHOICES: u32 = 128;

/// The most alternatives of a token whose log-probabilities are told.
pub(super) const MOST_LOGPROBS: usize = 20;

/// The most stop texts.
const MOST_STOPS: usize = 64;

/// The most stop tokens.
const MOST_STOP_TOKENS: usize = 256;

/// The most tokens with a bias: each is looked up at every draw.
const MOST_BIASES: usize = 1 << 10;

/// The longest stop text in bytes: each is looked for after every token.
const LONGEST_STOP: usize = 1 << 10;

/// What penalties on tokens that came before may be. OpenAI's go from -2 to 2; these only keep
/// logits finite.
const PENALTIES: RangeInclusive<f32> = -100.0..=100.0;
const REPETITION_PENALTIES: RangeInclusive<f32> = 0.01..=100.0;

/// Fields that change an answer in ways the engine does not know.
const UNSUPPORTED: [&str; 20] = [
    "allowed_token_ids",
    "audio",
    // Whoever shares a cache hears of it by `cached_tokens`.
    "cache_salt",
    "chat_template",
    "ebnf",
    "grammar",
    "guided_choice",
    "guided_grammar",
    "guided_json",
    "guided_regex",
    "json_schema",
    "kv_transfer_params",
    "lora_path",
    "prompt_embeds",
    "prompt_logprobs",
    "regex",
    "sampling_seed",
    "structured_outputs",
    "truncate_prompt_tokens",
    "web_search_options",
];

/// Lists of such things: an empty one is the same as none.
const UNSUPPORTED_LISTS: [&str; 4] = ["bad_words", "documents", "functions", "logits_processors"];

/// Sampling, lengths, ends, and how the answer is sent.
pub(crate) struct Common {
    pub(crate) max_tokens: Option<usize>,
    pub(crate) n: u32,
    pub(crate) stream: bool,
    pub(crate) include_usage: bool,
    /// How many alternatives of each token are reported; `None`: not even the token's own number.
    pub(crate) logprobs: Option<usize>,
    /// What the answer has to be.
    pub(crate) format: Option<Format>,
    sampling: Sampling,
    stop: Vec<String>,
    stop_tokens: Vec<u32>,
    ignore_stops: bool,
    min_tokens: usize,
    pub(crate) show_control_tokens: bool,
}

impl Common {
    /// Reads what all endpoints know, except the length and log-probabilities, which have a name of
    /// their own in each.
    ///
    /// # Errors
    /// A field of another type, out of its range, or not supported.
    pub(crate) fn read(fields: &mut Fields) -> Result<Self, Refusal> {
        for name in UNSUPPORTED {
            fields.refuse(name, &[])?;
        }
        for name in UNSUPPORTED_LISTS {
            fields.refuse(name, &[json!([])])?;
        }
        fields.refuse("function_call", &[json!("none")])?;
        fields.refuse("suffix", &[json!("")])?;
        fields.refuse("use_beam_search", &[json!(false)])?;
        fields.refuse("include_stop_str_in_output", &[json!(false)])?;
        fields.refuse("no_stop_trim", &[json!(false)])?;
        fields.refuse("return_tokens_as_token_ids", &[json!(false)])?;
        fields.refuse("separate_reasoning", &[json!(true)])?;
        for name in ["repeat_penalty", "length_penalty"] {
            fields.refuse(name, &[json!(1), json!(1.0)])?;
        }
        let n = fields.take("n")?.unwrap_or(1);
        if !(1..=MOST_CHOICES).contains(&n) {
            return Err(Refusal::unsupported("n", n, &format!("1 to {MOST_CHOICES}")));
        }
        fields.refuse("best_of", &[json!(1), json!(n)])?;
        let stream = fields.take("stream")?.unwrap_or(false);
        let mut options: Fields = Fields::of(fields.take("stream_options")?.unwrap_or_default());
        let include_usage = options.take("include_usage")?;
        if include_usage.is_some() && !stream {
            return Err(Refusal::field("stream_options", "got options, expected stream: true"));
        }
        Ok(Self {
            max_tokens: None,
            n,
            stream,
            include_usage: include_usage.unwrap_or(false),
            logprobs: None,
            format: format::read(FORMAT, fields.take(FORMAT)?, Nesting::Nested)?,
            sampling: sampling(fields)?,
            stop: stop(fields)?,
            stop_tokens: stop_tokens(fields)?,
            ignore_stops: fields.take("ignore_eos")?.unwrap_or(false),
            min_tokens: fields.take("min_tokens")?.unwrap_or(0),
            show_control_tokens: !fields.take("skip_special_tokens")?.unwrap_or(true),
        })
    }

    /// The engine's request for one answer to `prompt`.
    pub(crate) fn request(&self, prompt: Prompt, choice: u32) -> Request {
        let mut request = Request::new(prompt);
        request.max_tokens = self.max_tokens;
        request.min_tokens = self.min_tokens;
        request.sampling = self.sampling.clone();
        request.choice = choice;
        request.stop.clone_from(&self.stop);
        request.stop_tokens.clone_from(&self.stop_tokens);
        request.ignore_stops = self.ignore_stops;
        request.show_control_tokens = self.show_control_tokens;
        request.logprobs = self.logprobs;
        request.grammar = self.format.as_ref().map(|format| format.grammar.clone());
        request
    }
}

fn sampling(fields: &mut Fields) -> Result<Sampling, Refusal> {
    // vLLM's −1 is off; so is the engine's 0.
    let top_k = fields.take::<i64>("top_k")?.map(|k| usize::try_from(k).unwrap_or(0));
    // OpenAI's seeds are signed.
    let seed = match fields.take::<Value>("seed")? {
        None => None,
        Some(value) => Some(match value.as_i64() {
            Some(seed) => seed as u64,
            None => read("seed", value)?,
        }),
    };
    Ok(Sampling {
        temperature: within(fields, "temperature", &(0.0..=100.0))?,
        top_k,
        top_p: fields.take("top_p")?,
        min_p: fields.take("min_p")?,
        typical_p: fields.take("typical_p")?,
        repetition_penalty: within(fields, "repetition_penalty", &REPETITION_PENALTIES)?,
        presence_penalty: within(fields, "presence_penalty", &PENALTIES)?,
        frequency_penalty: within(fields, "frequency_penalty", &PENALTIES)?,
        logit_bias: logit_bias(fields)?,
        seed,
        ..Sampling::default()
    })
}

/// A number that has to lie in a range.
fn within(
    fields: &mut Fields,
    name: &str,
    range: &RangeInclusive<f32>,
) -> Result<Option<f32>, Refusal> {
    match fields.take::<f32>(name)? {
        Some(got) if !range.contains(&got) => {
            let what = format!("got {got}, expected {} to {}", range.start(), range.end());
            Err(Refusal::field(name, what))
        }
        got => Ok(got),
    }
}

/// A map from token ids, as strings, to what is added to their logits.
fn logit_bias(fields: &mut Fields) -> Result<Vec<(u32, f32)>, Refusal> {
    let bias: Map<String, Value> = fields.take("logit_bias")?.unwrap_or_default();
    if bias.len() > MOST_BIASES {
        let what = format!("got {} tokens, expected at most {MOST_BIASES}", bias.len());
        return Err(Refusal::field("logit_bias", what));
    }
    let one = |(id, value): (String, Value)| {
        let name = format!("logit_bias[{id}]");
        let id = id
            .parse()
            .map_err(|_| Refusal::field("logit_bias", format!("got {id}, expected a token id")))?;
        let value: f32 = read(&name, value)?;
        match (-100.0..=100.0).contains(&value) {
            true => Ok((id, value)),
            false => Err(Refusal::field(name, format!("got {value}, expected -100 to 100"))),
        }
    };
    bias.into_iter().map(one).collect()
}

/// Tokens that end an answer, each once.
fn stop_tokens(fields: &mut Fields) -> Result<Vec<u32>, Refusal> {
    let name = "stop_token_ids";
    let mut ids: Vec<u32> = fields.take(name)?.unwrap_or_default();
    ids.sort_unstable();
    ids.dedup();
    if ids.len() > MOST_STOP_TOKENS {
        let what = format!("got {} different ids, expected at most {MOST_STOP_TOKENS}", ids.len());
        return Err(Refusal::field(name, what));
    }
    Ok(ids)
}

/// One text or a list of them.
fn stop(fields: &mut Fields) -> Result<Vec<String>, Refusal> {
    let stops = match fields.take::<Value>("stop")? {
        None => return Ok(Vec::new()),
        Some(Value::String(stop)) => vec![stop],
        Some(list @ Value::Array(_)) => read("stop", list)?,
        Some(other) => {
            let what = format!("got {}, expected a string or a list of strings", short(&other));
            return Err(Refusal::field("stop", what));
        }
    };
    if stops.len() > MOST_STOPS {
        let what = format!("got {} texts, expected at most {MOST_STOPS}", stops.len());
        return Err(Refusal::field("stop", what));
    }
    match stops.iter().map(String::len).find(|got| *got > LONGEST_STOP) {
        None => Ok(stops),
        Some(got) => {
            let what = format!("got a text of {got} bytes, expected at most {LONGEST_STOP}");
            Err(Refusal::field("stop", what))
        }
    }
}
