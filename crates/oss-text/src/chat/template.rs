//! Chat templates: Jinja sources that come with models, run by `minijinja` as `transformers`
//! runs them by Jinja2.

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde, Value as Jinja, ValueKind};
use minijinja::{AutoEscape, Environment, ErrorKind};
use serde_json::{Map, Value, json};

use super::clock;
use super::guard::{Guard, Level};
use super::json::Style;
use super::{Message, Role, Tool};
use crate::error::{Error, Result};
use crate::levels;
use crate::tokenizer::Tokenizer;

/// A model's chat template, ready to run.
///
/// It runs as in `transformers`: blocks trim the line around them, `tojson` writes as Python's
/// `json.dumps(ensure_ascii=False)` does, strings and maps have Python's methods,
/// `raise_exception` and `strftime_now` exist, `{% generation %}` blocks mean nothing. One thing is
/// other: to a template that does not name the role `developer`, such messages are the system's.
#[derive(Debug)]
pub struct Template {
    environment: Environment<'static>,
    source: String,
    names: Map<String, Value>,
    /// The template writes calls' arguments with `tojson`, so it wants an object, not text.
    wants_objects: bool,
    /// The template knows the role `developer`; to others its messages are the system's.
    knows_developer: bool,
}

/// A conversation for a template.
#[derive(Clone, Debug, Default)]
pub struct Request<'a> {
    /// The messages.
    pub messages: &'a [Message],
    /// The tools that the model may call.
    pub tools: &'a [Tool],
    /// Whether the prompt ends with the beginning of the assistant's answer.
    pub add_generation_prompt: bool,
    /// Further variables, such as `reasoning_effort`, `current_date`, `enable_thinking`.
    pub variables: Map<String, Value>,
    /// The time that `strftime_now` writes, in seconds since 1970 in UTC, as [`seconds_until`]
    /// gives it. `None`: templates that ask whether there is such a clock find none, and others
    /// get the system's.
    ///
    /// [`seconds_until`]: super::seconds_until
    pub now: Option<i64>,
}

/// A prompt in both forms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompt {
    /// The prompt for people.
    pub text: String,
    /// The prompt for the model. Where content holds a control token's text, this is *not* the
    /// encoding of `text` with control tokens.
    pub ids: Vec<u32>,
}

const NAME: &str = "chat_template";

impl Template {
    /// Reads a template's source.
    ///
    /// # Errors
    /// [`Error::TemplateSyntax`].
    pub fn new(source: &str) -> Result<Self> {
        let mut environment = environment();
        environment
            .add_template_owned(NAME, without_generation_blocks(source))
            .map_err(|error| Error::TemplateSyntax { reason: error.to_string() })?;
        let mut template = Self {
            environment,
            source: source.to_owned(),
            names: Map::new(),
            wants_objects: false,
            knows_developer: source.contains("developer"),
        };
        template.wants_objects = template.probe_arguments();
        Ok(template)
    }

    /// Reads the template, and the names of the special tokens, out of a
    /// `tokenizer_config.json`. Of several templates it is the one named `default`. `None`: the
    /// file has no template.
    ///
    /// # Errors
    /// The bytes are not a JSON object; [`Error::TemplateSyntax`].
    pub fn from_config(tokenizer_config_json: &[u8]) -> Result<Option<Self>> {
        let config: Map<String, Value> =
            serde_json::from_slice(tokenizer_config_json).map_err(|error| Error::Json {
                file: "tokenizer_config.json",
                reason: error.to_string(),
            })?;
        let named = |list: &Vec<Value>| {
            let default = list.iter().find(|entry| entry["name"] == "default");
            Some(default.or(list.first())?["template"].as_str()?.to_owned())
        };
        let source = match config.get("chat_template") {
            Some(Value::String(source)) => source.clone(),
            Some(Value::Array(list)) => match named(list) {
                Some(source) => source,
                None => return Ok(None),
            },
            _ => return Ok(None),
        };
        let mut template = Self::new(&source)?;
        for name in ["bos_token", "eos_token", "unk_token", "pad_token"] {
            let token = config.get(name);
            let text =
                token.and_then(|token| token.as_str().or_else(|| token.get("content")?.as_str()));
            if let Some(text) = text {
                template.names.insert(name.to_owned(), text.into());
            }
        }
        Ok(Some(template))
    }

    /// The same template with the names of the special tokens that the tokenizer knows, where
    /// the template has none yet: `bos_token` and `eos_token`.
    #[must_use]
    pub fn with_tokenizer(mut self, tokenizer: &Tokenizer) -> Self {
        for (name, id) in [("bos_token", tokenizer.bos()), ("eos_token", tokenizer.eos())] {
            if let Some(id) = id {
                let text = || tokenizer.decode(&[id]).into();
                self.names.entry(name).or_insert_with(text);
            }
        }
        self
    }

    /// The template's source.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The prompt for people: exactly what the template writes.
    ///
    /// # Errors
    /// [`Error::Levels`]; [`Error::TemplateRefusal`] if the template itself objects, else
    /// [`Error::TemplateRender`].
    pub fn render_text(&self, request: &Request<'_>) -> Result<String> {
        self.run(self.context(request)?, self.now(request))
    }

    /// The prompt in both forms. Only the template's own text becomes control tokens; what
    /// messages, tools and variables say does not, even where it spells one. An added token written
    /// `<|…|>` or `<｜…｜>` is a control token, whatever its file says.
    ///
    /// The rule: in everything that the request supplies, the characters that make control
    /// tokens (their first and last, and all signs in them) are replaced by stand-ins before the
    /// template runs, and put back afterwards; in the joined text, no control token may contain
    /// a character that was put back. The text around the control tokens is encoded stretch by
    /// stretch, so that words are formed across the border between template and content as they
    /// are in plain text. (A template that writes all signs of a control token itself, as
    /// `<|{{ name }}|>`, does make control tokens out of names.)
    ///
    /// If the stand-ins change what the template writes (it looked at the content, for
    /// `</think>` say), only the names of control tokens, and beginnings and ends of names at the
    /// ends of a field, are replaced. If even that changes it, the template looked for control
    /// tokens in the content; it does not get to see them, and `text` is what it writes then.
    ///
    /// # Errors
    /// As [`Template::render_text`]; [`Error::NoStandIns`].
    pub fn render(&self, request: &Request<'_>, tokenizer: &Tokenizer) -> Result<Prompt> {
        let (context, now) = (self.context(request)?, self.now(request));
        let plain = self.run(context.clone(), now)?;
        let guard = Guard::new(tokenizer.special_tokens(), &self.source, &context)?;
        let encoded = |text: String, protected: &[usize]| {
            let ids = tokenizer.encode_guarded(&text, protected);
            Prompt { text, ids }
        };
        let mut hidden = context.clone();
        if !guard.hide(&mut hidden, &self.names, Level::Characters) {
            return Ok(encoded(plain, &[]));
        }
        if let Ok(written) = self.run(hidden, now) {
            let (text, protected) = guard.restore(&written);
            if text == plain {
                return Ok(encoded(text, &protected));
            }
        }
        let mut hidden = context;
        guard.hide(&mut hidden, &self.names, Level::Names);
        let (text, protected) = guard.restore(&self.run(hidden, now)?);
        Ok(encoded(text, &protected))
    }

    fn run(&self, context: Map<String, Value>, now: Option<i64>) -> Result<String> {
        let mut context = Jinja::from(Serde(context));
        if let Some(now) = now {
            let strftime_now = move |format: String| clock::strftime(&format, now);
            context = minijinja::context! {
                strftime_now => Jinja::from_function(strftime_now),
                ..context
            };
        }
        let template = self.environment.get_template(NAME).map_err(|error| failure(&error))?;
        template.render(context).map_err(|error| failure(&error))
    }

    fn context(&self, request: &Request<'_>) -> Result<Map<String, Value>> {
        let tools = request.tools.iter();
        levels::check("tools", tools.filter_map(|tool| tool.function.parameters.as_ref()))?;
        levels::check("chat_template_kwargs", request.variables.values())?;
        let messages: Vec<Value> =
            request.messages.iter().map(|message| self.message(message)).collect();
        let calls = messages.iter().filter_map(|message| message.get("tool_calls")?.as_array());
        levels::check("messages", calls.flatten().map(|call| &call["function"]["arguments"]))?;
        let tools = match request.tools {
            [] => Value::Null,
            tools => json!(tools),
        };
        let mut context = request.variables.clone();
        context.extend(self.names.clone());
        context.insert("messages".to_owned(), messages.into());
        context.insert("tools".to_owned(), tools);
        context.insert("documents".to_owned(), Value::Null);
        context.insert("add_generation_prompt".to_owned(), request.add_generation_prompt.into());
        Ok(context)
    }

    /// The time that the template is told, if any.
    fn now(&self, request: &Request<'_>) -> Option<i64> {
        let asks = self.source.contains("strftime_now is ");
        request.now.or_else(|| (!asks).then(clock::now))
    }

    fn message(&self, message: &Message) -> Value {
        let mut value = json!(message);
        if message.role == Role::Developer && !self.knows_developer {
            value["role"] = Role::System.name().into();
        }
        if let Some(thought) = &message.reasoning_content {
            value["thinking"] = thought.as_str().into();
        }
        if self.wants_objects {
            for (place, call) in message.tool_calls.iter().enumerate() {
                let arguments =
                    serde_json::from_str::<Map<String, Value>>(&call.function.arguments);
                if let Ok(arguments) = arguments {
                    value["tool_calls"][place]["function"]["arguments"] = arguments.into();
                }
            }
        }
        value
    }

    /// Whether the template writes arguments given as text as JSON once more.
    fn probe_arguments(&self) -> bool {
        let arguments = r#"{"probe": "x"}"#.to_owned();
        let function = super::FunctionCall { name: "probe".to_owned(), arguments };
        let call =
            super::ToolCall { id: "call00000".to_owned(), kind: "function".to_owned(), function };
        let messages = [
            Message::user("probe"),
            Message {
                content: None,
                tool_calls: vec![call],
                ..Message::new(Role::Assistant, String::new())
            },
        ];
        let request = Request { messages: &messages, now: Some(0), ..Request::default() };
        match self.render_text(&request) {
            Ok(text) => !text.contains(r#"{"probe": "x"}"#),
            Err(_) => true,
        }
    }
}

fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    environment.set_syntax(syntax.expect("Jinja's own delimiters are fine"));
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.add_filter("tojson", tojson);
    environment.add_function("raise_exception", raise_exception);
    environment.set_formatter(|out, state, value| {
        // As Python prints them.
        let text = match value {
            value if value.is_none() => "None",
            value if value.is_true() && value.kind() == ValueKind::Bool => "True",
            value if value.kind() == ValueKind::Bool => "False",
            value => return minijinja::escape_formatter(out, state, value),
        };
        out.write_str(text).map_err(minijinja::Error::from)
    });
    environment
}

#[expect(clippy::needless_pass_by_value, reason = "the engine hands keyword arguments by value")]
fn tojson(value: &Jinja, options: Kwargs) -> std::result::Result<Jinja, minijinja::Error> {
    let invalid = |error: serde_json::Error| {
        minijinja::Error::new(ErrorKind::InvalidOperation, error.to_string())
    };
    let value = serde_json::to_value(value).map_err(invalid)?;
    let separators: Option<Vec<String>> = options.get("separators")?;
    let style = Style {
        indent: options.get("indent")?,
        separators: separators.and_then(|list| Some((list.first()?.clone(), list.get(1)?.clone()))),
        sort_keys: options.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        ensure_ascii: options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
    };
    options.assert_all_used()?;
    Ok(Jinja::from(style.write(&value)))
}

/// The template's own refusal, found again behind the engine's error.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Refusal(String);

fn raise_exception(message: String) -> std::result::Result<Jinja, minijinja::Error> {
    let error = minijinja::Error::new(ErrorKind::InvalidOperation, message.clone());
    Err(error.with_source(Refusal(message)))
}

fn failure(error: &minijinja::Error) -> Error {
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(cause) = source {
        if let Some(Refusal(message)) = cause.downcast_ref() {
            return Error::TemplateRefusal { message: message.clone() };
        }
        source = cause.source();
    }
    Error::TemplateRender { reason: error.to_string() }
}

/// `{% generation %}` marks for training what the assistant said; here the marks become an `if`
/// that is always true, which keeps their control of white space.
fn without_generation_blocks(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start);
        out.push_str(before);
        rest = tag;
        let Some(end) = tag.find("%}") else { break };
        let inner = &tag[2..end];
        let word = inner.trim_matches(|c: char| c.is_whitespace() || c == '-' || c == '+');
        let replaced = match word {
            "generation" => inner.replace("generation", "if true"),
            "endgeneration" => inner.replace("endgeneration", "endif"),
            _ => inner.to_owned(),
        };
        out.push_str("{%");
        out.push_str(&replaced);
        out.push_str("%}");
        rest = &tag[end + 2..];
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generation_blocks_mean_nothing() {
        let source = "a {%- generation -%} b {% endgeneration %}c {% if x %}{% endif %} {% end";
        let expected = "a {%- if true -%} b {% endif %}c {% if x %}{% endif %} {% end";
        assert_eq!(without_generation_blocks(source), expected);
    }
}
