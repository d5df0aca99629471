//! What every way of asking for text has in common.

use oss_engine::{Engine, Prompt, Request, Sampling};
use serde_json::{Map, Value, json};

use crate::read::at_least::AtLeast;
use crate::read::fields::{Fields, read, short};
use crate::read::format::{self, Format, Nesting};
use crate::refusal::Refusal;

/// The field that says what an answer has to look like, but for responses.
const FORMAT: &str = "response_format";

/// The most answers to one prompt.
const MOST_CHOICES: u32 = 128;

/// The most stop texts.
const MOST_STOPS: usize = 64;

/// Fields that change an answer in ways the engine does not know, and the values that do not.
const UNSUPPORTED: [&str; 19] = [
    "allowed_token_ids",
    "audio",
    "bad_words",
    "chat_template",
    "documents",
    "function_call",
    "functions",
    "guided_choice",
    "guided_grammar",
    "guided_json",
    "guided_regex",
    "kv_transfer_params",
    "logits_processors",
    "prompt_embeds",
    "prompt_logprobs",
    "structured_outputs",
    "suffix",
    "truncate_prompt_tokens",
    "web_search_options",
];

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
    show_control_tokens: bool,
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
        fields.refuse("use_beam_search", &[json!(false)])?;
        fields.refuse("include_stop_str_in_output", &[json!(false)])?;
        let n = fields.take("n")?.unwrap_or(1);
        if !(1..=MOST_CHOICES).contains(&n) {
            return Err(Refusal::unsupported("n", n, "1 to 128"));
        }
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
            stop_tokens: fields.take("stop_token_ids")?.unwrap_or_default(),
            ignore_stops: fields.take("ignore_eos")?.unwrap_or(false),
            min_tokens: fields.take("min_tokens")?.unwrap_or(0),
            show_control_tokens: !fields.take("skip_special_tokens")?.unwrap_or(true),
        })
    }

    /// The engine's request for one answer to `prompt`.
    pub(crate) fn request(&self, engine: &Engine, prompt: Prompt, choice: u32) -> Request {
        let mut request = Request::new(prompt);
        request.max_tokens = self.max_tokens;
        request.sampling = self.sampling.clone();
        request.choice = choice;
        request.stop.clone_from(&self.stop);
        request.stop_tokens.clone_from(&self.stop_tokens);
        request.ignore_stops = self.ignore_stops;
        request.show_control_tokens = self.show_control_tokens;
        request.logprobs = self.logprobs;
        request.grammar = self.format.as_ref().map(|format| format.grammar.clone());
        if self.min_tokens > 0 && !self.ignore_stops {
            let ends = [engine.text().stops(), &self.stop_tokens].concat();
            let vocabulary = engine.config().vocabulary;
            request = request.constrained(AtLeast::new(self.min_tokens, vocabulary, &ends));
        }
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
    let temperature: Option<f32> = fields.take("temperature")?;
    if let Some(got) = temperature.filter(|t| !(0.0..=100.0).contains(t)) {
        return Err(Refusal::field("temperature", format!("got {got}, expected 0 to 100")));
    }
    Ok(Sampling {
        temperature,
        top_k,
        top_p: fields.take("top_p")?,
        min_p: fields.take("min_p")?,
        typical_p: fields.take("typical_p")?,
        repetition_penalty: fields.take("repetition_penalty")?,
        presence_penalty: fields.take("presence_penalty")?,
        frequency_penalty: fields.take("frequency_penalty")?,
        logit_bias: logit_bias(fields)?,
        seed,
        ..Sampling::default()
    })
}

/// A map from token ids, as strings, to what is added to their logits.
fn logit_bias(fields: &mut Fields) -> Result<Vec<(u32, f32)>, Refusal> {
    let bias: Map<String, Value> = fields.take("logit_bias")?.unwrap_or_default();
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
    match stops.len() {
        0..=MOST_STOPS => Ok(stops),
        got => Err(Refusal::field("stop", format!("got {got} texts, expected at most 64"))),
    }
}
