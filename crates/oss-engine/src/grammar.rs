//! What an answer has to look like, as a schema, an expression or a grammar says it.
//!
//! A [`Grammar`] is a description alone. `bounds` says which are too much to compile; `vocabulary`
//! knows a model's tokens and compiles the others for them, each into a `matcher`; `messages` says
//! which messages an answer may consist of and what each of them holds; `follower` is the
//! constraint that follows an answer token by token.

mod bounds;
mod follower;
mod matcher;
mod messages;
#[cfg(test)]
mod tests;
mod vocabulary;

use serde_json::{Map, Value, json};

pub(crate) use self::follower::Follower;
pub(crate) use self::messages::{Harmony, Messages};
pub(crate) use self::vocabulary::Vocabulary;

/// What may stand between the parts of a JSON text: one space, or a line break and an indentation,
/// as programs write it. A model that is free to would go on with spaces forever.
const SPACE: &str = r"\x20|\x0A[\x20\x09]{0,40}";

/// What an answer has to be: JSON of a schema, or a text that a regular expression or a grammar
/// describes. [`Request::grammar`](crate::Request::grammar) asks for it.
///
/// It holds from the first token of a text, and of a chat's answer where a template wrote the
/// prompt. In the harmony format it holds for what the `final` channel says: the model may think
/// before, and it may call tools instead. Each drawn token is one that can still lead to an answer
/// that fits, so an answer that ends by itself fits; one that ends as
/// [`FinishReason::Length`](crate::FinishReason::Length) or at a stop text is the beginning of one.
///
/// The model is not told: what it should write belongs in its prompt as well, see
/// [`ChatRequest::response_format`](crate::ChatRequest::response_format).
///
/// Schemas may come from anybody: those that would take long to compile, or much memory, are
/// refused, such as objects of more than 2,000 names, or chains of thousands of references.
/// Expressions and grammars are not bounded so, and should be the program's own.
///
/// ```
/// use oss_engine::{Engine, Grammar, Request};
///
/// # fn main() -> oss_engine::Result<()> {
/// let engine = Engine::from_bytes(oss_demo::GGUF)?;
/// let either = Grammar::regex("sunny|rainy");
/// let answer = engine.generate(Request::text("Today it is").grammar(either))?;
/// assert!(["sunny", "rainy"].contains(&answer.text.as_str()));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Grammar(Source);

#[derive(Clone, Debug, PartialEq)]
enum Source {
    Json { schema: Value, lenient: bool },
    Regex(String),
    Lark(String),
}

impl Grammar {
    /// JSON that fits a schema (draft 2020-12, references within the schema). Properties come in
    /// the schema's order; between the parts of the text there may be a space, or a line break and
    /// an indentation.
    ///
    /// What cannot be held, such as `not`, or a `oneOf` whose cases overlap, is refused when a
    /// request is submitted, never ignored.
    #[must_use]
    pub fn json_schema(schema: Value) -> Self {
        Self(Source::Json { schema, lenient: false })
    }

    /// Any JSON object.
    #[must_use]
    pub fn json_object() -> Self {
        Self::json_schema(json!({"type": "object"}))
    }

    /// Texts that a regular expression matches from beginning to end. The syntax is that of the
    /// crate `regex`, without look-around and anchors.
    #[must_use]
    pub fn regex(expression: impl Into<String>) -> Self {
        Self(Source::Regex(expression.into()))
    }

    /// Texts of a context-free grammar in llguidance's variant of Lark's syntax, whose first rule
    /// is `start`. Rules that name control tokens, `stop` and `max_tokens` are refused.
    #[must_use]
    pub fn lark(grammar: impl Into<String>) -> Self {
        Self(Source::Lark(grammar.into()))
    }

    /// JSON that fits as much of a schema as can be held; the rest is ignored.
    pub(crate) fn json_schema_in_part(schema: Value) -> Self {
        Self(Source::Json { schema, lenient: true })
    }

    /// What it is, in short.
    fn name(&self) -> &'static str {
        match self.0 {
            Source::Json { .. } => "JSON schema",
            Source::Regex(_) => "regular expression",
            Source::Lark(_) => "Lark grammar",
        }
    }
}

/// A schema as the compiler wants it: its options are in a field of the schema, which is ours.
fn with_options(schema: &Value, lenient: bool) -> Value {
    let mut fields = match schema {
        Value::Object(fields) => fields.clone(),
        Value::Bool(true) => Map::new(),
        other => return other.clone(),
    };
    let options = json!({
        "whitespace_pattern": SPACE, "lenient": lenient, "coerce_one_of": lenient,
    });
    fields.insert("x-guidance".to_owned(), options);
    Value::Object(fields)
}
