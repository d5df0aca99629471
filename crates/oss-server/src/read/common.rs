//! What all requests for text have in common.

use std::ops::RangeInclusive;

use oss_engine::{Dry, Prompt, Request, Sampling};
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

/// The largest multiplier and base of the penalty on repeated sequences.
const MOST_DRY: f32 = 100.0;

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

/// Samplers that the engine does not have, with the numbers that turn them off. What else a request
/// says of one that is off (`xtc_threshold`, `mirostat_tau`) changes nothing.
const UNSUPPORTED_SAMPLERS: [(&str, &[i8]); 8] = [
    ("dynatemp_range", &[0]),
    ("mirostat", &[0]),
    ("mirostat_mode", &[0]),
    ("no_repeat_ngram_size", &[0]),
    ("tfs_z", &[1]),
    ("top_a", &[0]),
    ("top_n_sigma", &[-1, 0]),
    ("xtc_probability", &[0]),
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
    stop_token_ids: Vec<u32>,
    ignore_eos: bool,
    min_tokens: usize,
    /// As the engine has it.
    priority: i32,
    pub(crate) skip_special_tokens: bool,
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
        for (name, off) in UNSUPPORTED_SAMPLERS {
            let accepted = off.iter().flat_map(|off| [json!(off), json!(f64::from(*off))]);
            fields.refuse(name, &accepted.collect::<Vec<_>>())?;
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
            stop_token_ids: stop_token_ids(fields)?,
            ignore_eos: fields.take("ignore_eos")?.unwrap_or(false),
            min_tokens: fields.take("min_tokens")?.unwrap_or(0),
            // vLLM's lower ones go first, the engine's higher ones.
            priority: fields.take::<i32>("priority")?.unwrap_or(0).saturating_neg(),
            skip_special_tokens: fields.take("skip_special_tokens")?.unwrap_or(true),
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
        request.stop_token_ids.clone_from(&self.stop_token_ids);
        request.ignore_eos = self.ignore_eos;
        request.priority = self.priority;
        request.skip_special_tokens = self.skip_special_tokens;
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
    let sampling = Sampling {
        temperature: within(fields, "temperature", &(0.0..=100.0))?,
        top_k,
        top_p: fields.take("top_p")?,
        min_p: fields.take("min_p")?,
        typical_p: fields.take("typical_p")?,
        repetition_penalty: within(fields, "repetition_penalty", &REPETITION_PENALTIES)?,
        presence_penalty: within(fields, "presence_penalty", &PENALTIES)?,
        frequency_penalty: within(fields, "frequency_penalty", &PENALTIES)?,
        dry: dry(fields)?,
        logit_bias: logit_bias(fields)?,
        seed,
        ..Sampling::default()
    };
    Ok(match last_n(fields, "repeat_last_n")? {
        Some(0) => Sampling {
            repetition_penalty: Some(1.0),
            presence_penalty: Some(0.0),
            frequency_penalty: Some(0.0),
            ..sampling
        },
        last_n => Sampling { repeat_last_n: last_n.map(all_or), ..sampling },
    })
}

/// How many of the last tokens a penalty looks at, as llama.cpp counts: −1 is all, 0 none.
fn last_n(fields: &mut Fields, name: &str) -> Result<Option<i64>, Refusal> {
    match fields.take::<i64>(name)? {
        Some(got) if got < -1 => {
            Err(Refusal::field(name, format!("got {got}, expected a number of tokens, or -1")))
        }
        got => Ok(got),
    }
}

/// The same as the engine counts: 0 is all.
fn all_or(last_n: i64) -> usize {
    usize::try_from(last_n).unwrap_or(0)
}

/// The penalty on repeated sequences, as llama.cpp names it.
fn dry(fields: &mut Fields) -> Result<Option<Dry>, Refusal> {
    let plain = Dry::default();
    let multiplier = within(fields, "dry_multiplier", &(0.0..=MOST_DRY))?;
    let base = within(fields, "dry_base", &(1.0..=MOST_DRY))?.unwrap_or(plain.base);
    let allowed_length = match fields.take::<usize>("dry_allowed_length")? {
        Some(0) => return Err(Refusal::field("dry_allowed_length", "got 0, expected at least 1")),
        got => got.unwrap_or(plain.allowed_length),
    };
    let window = last_n(fields, "dry_penalty_last_n")?.unwrap_or(-1);
    let multiplier = multiplier.map(|multiplier| if window == 0 { 0.0 } else { multiplier });
    // Texts, which may begin and end within tokens.
    if multiplier.is_some_and(|multiplier| multiplier > 0.0) {
        fields.refuse("dry_sequence_breakers", &[json!([])])?;
    }
    let dry =
        |multiplier| Dry { multiplier, base, allowed_length, window: all_or(window), ..plain };
    Ok(multiplier.map(dry))
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
fn stop_token_ids(fields: &mut Fields) -> Result<Vec<u32>, Refusal> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_priority_is_a_whole_number_and_lower_ones_go_first() {
        let read = |priority: Value| {
            let fields = Map::from_iter([("priority".to_owned(), priority)]);
            let common = Common::read(&mut Fields::of(fields))?;
            Ok::<i32, Refusal>(common.request(Prompt::Text("Once".to_owned()), 0).priority)
        };
        let given = [json!(null), json!(3), json!(-3), json!(i32::MIN)];
        let engines = [0, -3, 3, i32::MAX];
        assert_eq!(given.map(|priority| read(priority).ok()), engines.map(Some));
        for wrong in [json!("high"), json!(1.5), json!(1u64 << 31)] {
            assert!(read(wrong.clone()).is_err(), "{wrong}");
        }
    }

    fn read_sampling(body: Value) -> Sampling {
        let Value::Object(fields) = body else { panic!("an object") };
        Common::read(&mut Fields::of(fields)).unwrap().sampling
    }

    #[test]
    fn penalties_look_at_as_many_tokens_as_llama_cpp_counts() {
        let of = |last_n: i64| {
            let body = json!({"repeat_last_n": last_n, "repetition_penalty": 1.5});
            let sampling = read_sampling(body);
            (sampling.repeat_last_n, sampling.repetition_penalty, sampling.presence_penalty)
        };
        assert_eq!(of(64), (Some(64), Some(1.5), None));
        assert_eq!(of(-1), (Some(0), Some(1.5), None));
        assert_eq!(of(0), (None, Some(1.0), Some(0.0)));
        assert_eq!(read_sampling(json!({})), Sampling::default());
    }

    #[test]
    fn the_penalty_on_repeated_sequences_is_the_engines() {
        let dry = |body| read_sampling(body).dry;
        assert_eq!(dry(json!({"dry_base": 2, "dry_sequence_breakers": ["x"]})), None);
        let plain = Dry { multiplier: 0.5, ..Dry::default() };
        assert_eq!(dry(json!({"dry_multiplier": 0.5})), Some(plain.clone()));
        let body = json!({"dry_multiplier": 0.5, "dry_base": 2, "dry_allowed_length": 3,
            "dry_penalty_last_n": 100, "dry_sequence_breakers": []});
        let want = Dry { base: 2.0, allowed_length: 3, window: 100, ..plain };
        assert_eq!(dry(body), Some(want));
        let off = dry(json!({"dry_multiplier": 0.5, "dry_penalty_last_n": 0}));
        assert_eq!(off.map(|dry| dry.multiplier), Some(0.0));
    }
}
