//! The body of `/v1/completions`.

use oss_engine::{Engine, Prompt, Request, Special};
use serde_json::Value;

use crate::app::App;
use crate::read::Call;
use crate::read::common::{Common, MOST_LOGPROBS};
use crate::read::fields::{Fields, missing, read, short};
use crate::refusal::{Names, Refusal};

/// OpenAI's number where a request says none.
const DEFAULT_TOKENS: usize = 16;

/// The most prompts.
const MOST_PROMPTS: usize = 128;

/// The most log-probabilities of prompts: an answer with so many is some hundred megabytes.
const MOST_ECHOED: usize = 1 << 20;

/// Texts or tokens to continue.
pub(crate) struct CompletionCall {
    pub(crate) common: Common,
    /// Each prompt's tokens.
    pub(crate) prompts: Vec<Vec<u32>>,
    /// Whether answers begin with their prompts.
    pub(crate) echo: bool,
}

impl Call for CompletionCall {
    /// Its prompts are tokenised.
    fn read(app: &App, engine: &Engine, body: &[u8]) -> Result<Self, Refusal> {
        let mut fields = Fields::parse(body)?;
        app.check_model(fields.take::<String>("model")?.as_deref())?;
        let mut common = Common::read(&mut fields)?;
        let echo = fields.take("echo")?.unwrap_or(false);
        let other: Option<usize> = fields.take("max_completion_tokens")?;
        let given = fields.take("max_tokens")?.or(other);
        common.max_tokens = Some(given.unwrap_or(DEFAULT_TOKENS));
        common.logprobs = logprobs(&mut fields)?;
        let encoding = Encoding::read(&mut fields)?;
        let prompt = fields.take("prompt")?.ok_or_else(|| missing("prompt"))?;
        let prompts = prompts(prompt)?;
        let ids = |given| match given {
            Given::Tokens(ids) => Ok(ids),
            Given::Text(text) => encoding.encode(engine, &text),
        };
        let prompts = prompts.into_iter().map(ids).collect::<Result<_, _>>();
        let prompts = prompts.map_err(|error| Refusal::engine(&error, Names::of("prompt")))?;
        let call = Self { common, prompts, echo };
        let got = call.echoed_logprobs();
        if got > MOST_ECHOED {
            let what = format!(
                "got {got} log-probabilities of the prompts' tokens, expected at most {MOST_ECHOED}"
            );
            return Err(Refusal::field("logprobs", what));
        }
        Ok(call)
    }

    fn names(&self) -> Names {
        let count = if self.prompts.len() > 1 { "prompt" } else { "n" };
        Names { count, ..Names::of("prompt") }
    }

    fn common(&self) -> &Common {
        &self.common
    }

    fn weight(&self, body: usize) -> usize {
        if self.common.format.is_some() { usize::MAX } else { body }
    }

    /// All choices of the first prompt, then those of the next.
    fn requests(
        self,
        engine: &Engine,
    ) -> Result<impl ExactSizeIterator<Item = Request> + Send, Refusal> {
        let Self { common, mut prompts, echo } = self;
        // A prompt may fill the context where nothing comes after it.
        let room = usize::from(common.max_tokens != Some(0));
        let expected = engine.context_len() - room;
        if let Some(got) = prompts.iter().map(Vec::len).find(|got| *got > expected) {
            let error = oss_engine::Error::PromptTooLong { got, expected };
            return Err(Refusal::engine(&error, Names::of("prompt")));
        }
        let n = common.n as usize;
        Ok((0..prompts.len() * n).map(move |index| {
            let (ids, choice) = (&mut prompts[index / n], index % n);
            let own = if choice + 1 == n { std::mem::take(ids) } else { ids.clone() };
            let mut request = common.request(Prompt::Tokens(own), choice as u32);
            request.prompt_logprobs = common.logprobs.filter(|_| echo);
            request
        }))
    }
}

impl CompletionCall {
    /// How many log-probabilities of its prompts' tokens all choices report.
    fn echoed_logprobs(&self) -> usize {
        let each = self.common.logprobs.filter(|_| self.echo).map_or(0, |top| 1 + top);
        self.prompts.iter().map(Vec::len).sum::<usize>() * self.common.n as usize * each
    }
}

/// A prompt as it came.
enum Given {
    Text(String),
    Tokens(Vec<u32>),
}

/// How the text of a prompt becomes tokens.
#[derive(Clone, Copy)]
pub(crate) struct Encoding {
    /// Whether names of control tokens in it are control tokens.
    special: Special,
    /// Whether the tokens with which a text begins come before it.
    begins: bool,
}

impl Encoding {
    pub(crate) fn read(fields: &mut Fields) -> Result<Self, Refusal> {
        let parse = fields.take("parse_special")?.unwrap_or(false);
        let special = if parse { Special::Parse } else { Special::AsText };
        Ok(Self { special, begins: fields.take("add_special_tokens")?.unwrap_or(true) })
    }

    pub(crate) fn encode(self, engine: &Engine, text: &str) -> oss_engine::Result<Vec<u32>> {
        match self.begins {
            true => engine.text().encode(text, self.special),
            false => Ok(engine.text().tokenizer()?.encode(text, self.special)),
        }
    }
}

fn logprobs(fields: &mut Fields) -> Result<Option<usize>, Refusal> {
    match fields.take::<Value>("logprobs")? {
        // Gateways add it.
        None | Some(Value::Bool(false)) => Ok(None),
        Some(value) => match read("logprobs", value)? {
            top @ 0..=MOST_LOGPROBS => Ok(Some(top)),
            top => {
                let what = format!("got {top}, expected 0 to {MOST_LOGPROBS}");
                Err(Refusal::field("logprobs", what))
            }
        },
    }
}

/// A text, tokens, a list of texts, or a list of lists of tokens.
fn prompts(prompt: Value) -> Result<Vec<Given>, Refusal> {
    let expected = "a text, tokens, or a list of either";
    let list = match prompt {
        Value::String(text) => return Ok(vec![Given::Text(text)]),
        Value::Array(list) => list,
        other => {
            let what = format!("got {}, expected {expected}", short(&other));
            return Err(Refusal::field("prompt", what));
        }
    };
    match list.first() {
        None => Err(Refusal::field("prompt", format!("got an empty list, expected {expected}"))),
        Some(Value::Number(_)) => Ok(vec![Given::Tokens(read("prompt", Value::Array(list))?)]),
        Some(_) if list.len() > MOST_PROMPTS => {
            let what = format!("got {} prompts, expected at most {MOST_PROMPTS}", list.len());
            Err(Refusal::field("prompt", what))
        }
        Some(Value::String(_)) => {
            let texts: Vec<String> = read("prompt", Value::Array(list))?;
            Ok(texts.into_iter().map(Given::Text).collect())
        }
        Some(_) => {
            let lists: Vec<Vec<u32>> = read("prompt", Value::Array(list))?;
            Ok(lists.into_iter().map(Given::Tokens).collect())
        }
    }
}
