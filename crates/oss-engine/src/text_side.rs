//! The text side of a model: tokenizer, chat format, stop tokens, sampling defaults.

mod gguf;
mod side_files;

use std::path::PathBuf;

use oss_sampler::Options;
use oss_text::chat::{Template, seconds_until};
use oss_text::harmony::{ChatOptions, Conversation, Tokens};
use oss_text::{Special, Tokenizer, harmony};
use oss_weights::{Container, Kind};

use crate::chat::{ChatRequest, ToolChoice};
use crate::error::{Error, Result};

/// Names of control tokens that end a turn or a text, whatever the files say about them.
const ENDS: [&str; 6] =
    ["<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end_of_text|>", "<|endoftext|>", "<end_of_turn>"];

/// Everything about a model that is not numbers: how text becomes tokens and back, how a chat is
/// written, where an answer stops, how tokens are drawn when a request does not say.
///
/// It loads in a fraction of a second, without the weights: for tools that look at prompts.
///
/// ```
/// use oss_engine::{ChatRequest, Container, Message, Text};
///
/// # fn main() -> oss_engine::Result<()> {
/// let container = Container::from_bytes("demo.gguf", oss_demo::GGUF, Vec::new())?;
/// let text = Text::from_container(&container)?;
/// let chat = ChatRequest::new(vec![Message::user("Hi!")]);
/// let ids = text.render(&chat)?;
/// assert!(text.tokenizer()?.decode(&ids).ends_with("Hi!<|end|><|start|>assistant"));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Text {
    path: PathBuf,
    kind: Kind,
    tokenizer: Option<Tokenizer>,
    format: Format,
    stops: Vec<u32>,
    defaults: Options,
}

/// How chats are written.
#[derive(Debug)]
enum Format {
    None,
    /// At token level, by hand.
    Harmony(Tokens),
    /// By the file's own template.
    Template(Box<Template>),
    /// There is a template, but it cannot be read.
    Broken(String),
}

impl Text {
    /// Reads what a container says about text.
    ///
    /// # Errors
    /// When a tokenizer or a configuration is there and cannot be understood, or says that tokens
    /// be drawn in a way that there is not. A model without tokenizer, or with a chat template that
    /// cannot be read, is no error yet: it still takes tokens, or text.
    pub fn from_container(container: &Container) -> Result<Self> {
        let path = container.path().to_path_buf();
        let kind = container.kind();
        // A packed file has what the file had from which it was packed.
        let found = match container.metadata().get("general.architecture") {
            Some(_) => gguf::read(container),
            None => side_files::read(container),
        };
        let found = found.map_err(|error| match error {
            Error::Text(cause) => Error::Tokenizer { path: path.clone(), cause },
            error => error,
        });
        let Found { tokenizer, template, mut stops, defaults } = found?;
        let format = match (tokenizer.as_ref().map(Tokens::of), template) {
            (Some(Ok(tokens)), _) => Format::Harmony(tokens),
            (_, None) => Format::None,
            (_, Some(Err(reason))) => Format::Broken(reason.to_string()),
            (_, Some(Ok(template))) => Format::Template(Box::new(match &tokenizer {
                Some(tokenizer) => template.with_tokenizer(tokenizer),
                None => template,
            })),
        };
        if let Some(tokenizer) = &tokenizer {
            let special = |id: &u32| tokenizer.is_special(*id);
            let named = ENDS.iter().filter_map(|name| tokenizer.token_id(name));
            stops.extend(named.filter(special));
            stops.extend(tokenizer.eos());
        }
        if let Format::Harmony(tokens) = &format {
            stops.extend(tokens.stops());
        }
        stops.sort_unstable();
        stops.dedup();
        Ok(Self { path, kind, tokenizer, format, stops, defaults })
    }

    /// The tokenizer.
    ///
    /// # Errors
    /// [`Error::NoTokenizer`].
    pub fn tokenizer(&self) -> Result<&Tokenizer> {
        self.tokenizer.as_ref().ok_or_else(|| Error::NoTokenizer {
            path: self.path.clone(),
            expected: match self.kind {
                Kind::Gguf => "metadata tokenizer.ggml.tokens",
                _ => "a tokenizer.json beside it",
            },
        })
    }

    /// Whether chats are written in the harmony format.
    #[must_use]
    pub fn is_harmony(&self) -> bool {
        matches!(self.format, Format::Harmony(_))
    }

    /// Whether the model has a chat format at all.
    #[must_use]
    pub fn has_chat(&self) -> bool {
        matches!(self.format, Format::Harmony(_) | Format::Template(_))
    }

    /// The tokens at which the model's answers stop, ascending.
    #[must_use]
    pub fn stops(&self) -> &[u32] {
        &self.stops
    }

    /// Whether a token ends a message of a prompt: one at which answers stop, or that the harmony
    /// format puts between an answer's messages.
    #[must_use]
    pub fn ends_message(&self, id: u32) -> bool {
        let is_end = matches!(self.format, Format::Harmony(tokens) if tokens.end == id);
        is_end || self.stops.binary_search(&id).is_ok()
    }

    /// How tokens are drawn when a request does not say.
    #[must_use]
    pub fn defaults(&self) -> &Options {
        &self.defaults
    }

    /// The tokens of a plain prompt, the beginning-of-text token included where the model wants
    /// one.
    ///
    /// # Errors
    /// [`Error::NoTokenizer`].
    pub fn encode(&self, text: &str, special: Special) -> Result<Vec<u32>> {
        let tokenizer = self.tokenizer()?;
        let mut ids = tokenizer.encode(text, special);
        if let Some(bos) = tokenizer.bos().filter(|_| tokenizer.adds_bos())
            && ids.first() != Some(&bos)
        {
            ids.insert(0, bos);
        }
        Ok(ids)
    }

    /// The tokens of a chat's prompt, up to where the answer begins.
    ///
    /// # Errors
    /// When the model has no chat format, or the conversation does not fit it.
    pub fn render(&self, chat: &ChatRequest) -> Result<Vec<u32>> {
        let tokenizer = self.tokenizer()?;
        chat.check_tools()?;
        match &self.format {
            Format::None => Err(Error::NoChatTemplate {
                path: self.path.clone(),
                expected: match self.kind {
                    Kind::Gguf => "metadata tokenizer.chat_template",
                    _ => "chat_template.jinja or tokenizer_config.json with chat_template",
                },
            }),
            Format::Broken(reason) => {
                Err(Error::ChatTemplate { path: self.path.clone(), reason: reason.clone() })
            }
            Format::Harmony(tokens) => self.render_harmony(chat, tokenizer, *tokens),
            Format::Template(template) => {
                let forced = match &chat.tool_choice {
                    ToolChoice::Auto | ToolChoice::None => None,
                    ToolChoice::Required => Some("required"),
                    ToolChoice::Function(name) => Some(name.as_str()),
                };
                if let Some(got) = forced {
                    return Err(Error::Unsupported {
                        what: "a forced tool call with a chat template",
                        got: got.to_owned(),
                        expected: "tool choice auto or none".to_owned(),
                    });
                }
                let mut variables = chat.chat_template_kwargs.clone();
                if let Some(effort) = chat.reasoning_effort {
                    variables.entry("reasoning_effort").or_insert_with(|| effort.name().into());
                }
                let request = oss_text::chat::Request {
                    messages: &chat.messages,
                    tools: chat.offered_tools(),
                    add_generation_prompt: true,
                    variables,
                    now: chat.date.as_deref().map(day).transpose()?,
                };
                Ok(template.render(&request, tokenizer)?.ids)
            }
        }
    }

    fn render_harmony(
        &self,
        chat: &ChatRequest,
        tokenizer: &Tokenizer,
        tokens: Tokens,
    ) -> Result<Vec<u32>> {
        if let Some(name) = chat.chat_template_kwargs.keys().next() {
            return Err(Error::Option {
                field: "chat_template_kwargs",
                got: name.clone(),
                expected: "none: the harmony format has no template".to_owned(),
            });
        }
        chat.date.as_deref().map(day).transpose()?;
        let mut options = ChatOptions { date: chat.date.clone(), ..ChatOptions::default() };
        options.effort = chat.reasoning_effort.unwrap_or_default();
        options.response_formats.extend(chat.response_format.clone());
        if let Some(identity) = &chat.identity {
            options.identity.clone_from(identity);
        }
        let conversation = Conversation::from_chat(&chat.messages, chat.offered_tools(), &options)?;
        let mut ids = harmony::render(&conversation, tokenizer)?;
        chat.check_tool_choice()?;
        ids.extend(chat.forced_header(tokenizer, tokens));
        Ok(ids)
    }

    /// The tokenizer's special tokens, as far as the model has them.
    pub(crate) fn special_token_ids(&self, vocabulary: usize) -> impl Iterator<Item = u32> {
        let tokenizer = self.tokenizer().ok();
        tokenizer.into_iter().flat_map(move |tokenizer| {
            let all = 0..tokenizer.vocabulary_len().min(vocabulary) as u32;
            all.filter(move |id| tokenizer.is_special(*id))
        })
    }

    /// The messages of a harmony completion that follows `<|start|>assistant`.
    ///
    /// # Errors
    /// When the vocabulary lacks the format's markers; never because of the tokens.
    pub fn parse(&self, ids: &[u32]) -> Result<Vec<harmony::Message>> {
        Ok(harmony::parse(self.tokenizer()?, ids)?)
    }
}

/// What the readers of the two kinds of files find.
struct Found {
    tokenizer: Option<Tokenizer>,
    template: Option<oss_text::Result<Template>>,
    stops: Vec<u32>,
    defaults: Options,
}

/// Refuses a model's own sampling options that no token can be drawn by, which are the mistake of
/// `file` and of no request; `spelt` is how it calls an option.
fn check_defaults(
    container: &Container,
    file: &'static str,
    defaults: &Options,
    spelt: impl Fn(&'static str) -> &'static str,
) -> Result<()> {
    // They name no token, so that any vocabulary will do.
    let Err(error) = defaults.validate(1) else { return Ok(()) };
    let reason = match error {
        oss_sampler::Error::Option { field, got, expected } => {
            format!("{}: got {got}, expected {expected}", spelt(field))
        }
        other => other.to_string(),
    };
    Err(Error::SideFile { path: container.path().to_path_buf(), file, reason })
}

/// The seconds until a day.
fn day(text: &str) -> Result<i64> {
    seconds_until(text).ok_or_else(|| Error::Option {
        field: "date",
        got: text.to_owned(),
        expected: "a day such as 2025-06-28".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The demo model with another file beside it.
    fn with(name: &str, bytes: Vec<u8>) -> Container {
        let file = |(name, bytes): &(&str, &[u8])| ((*name).to_owned(), bytes.to_vec());
        let mut files: Vec<(String, Vec<u8>)> = oss_demo::files().iter().map(file).collect();
        files.retain(|(other, _)| other != name);
        files.push((name.to_owned(), bytes));
        Container::from_bytes("demo", oss_demo::SAFETENSORS, files).unwrap()
    }

    fn read(generation: String) -> Result<Text> {
        Text::from_container(&with("generation_config.json", generation.into_bytes()))
    }

    #[test]
    fn a_tokenizer_that_cannot_be_read_is_told_with_its_model() {
        for name in ["tokenizer.json", "tokenizer_config.json"] {
            let error = Text::from_container(&with(name, b"{x".to_vec())).unwrap_err();
            let said = error.to_string();
            assert!(matches!(error, Error::Tokenizer { .. }), "{error:?}");
            assert!(said.starts_with(&format!("demo: {name} cannot be read: ")), "{said}");
        }
    }

    /// Before they are decoded: a file's bytes would take eight times their memory.
    #[test]
    fn types_and_scores_are_as_many_as_tokens() {
        use oss_weights::{Array, gguf};
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("words.gguf");
        for key in ["tokenizer.ggml.token_type", "tokenizer.ggml.scores"] {
            let metadata = [
                ("general.architecture".to_owned(), "demo".into()),
                ("tokenizer.ggml.tokens".to_owned(), Array::of_strings(["a", "b"]).into()),
                (key.to_owned(), Array::of_numbers(&[1_u8; 3]).into()),
            ];
            gguf::Writer::create(&path, &metadata, &[]).unwrap().finish().unwrap();
            let error = Text::from_container(&Container::open(&path).unwrap()).unwrap_err();
            let said = format!("{key}: got 3 values, expected 2");
            assert!(error.to_string().ends_with(&said), "{error}");
        }
    }

    #[test]
    fn a_template_that_is_no_text_says_where() {
        let container = with("chat_template.jinja", b"Hi \xff!".to_vec());
        let error = side_files::read(&container).unwrap().template.unwrap().unwrap_err();
        let said = "chat_template.jinja: got byte ff at 3, expected UTF-8";
        assert_eq!(error.to_string(), format!("the chat template cannot be read: {said}"));
    }

    #[test]
    fn a_models_own_sampling_is_refused_where_nothing_can_be_drawn_by_it() {
        let wrong = [
            ("repetition_penalty", "0", "a number above 0"),
            ("top_p", "1.5", "a number between 0 and 1"),
            ("temperature", "-1", "a number from 0 up"),
        ];
        for (field, got, expected) in wrong {
            let error = read(format!("{{\"{field}\": {got}}}")).unwrap_err();
            assert!(matches!(error, Error::SideFile { .. }), "{error:?}");
            let said = format!("{field}: got {got}, expected {expected}");
            assert_eq!(error.to_string(), format!("demo: generation_config.json: {said}"));
        }
        let text = read("{\"top_p\": 0.5, \"top_k\": 7}".to_owned()).unwrap();
        assert_eq!((text.defaults().top_p, text.defaults().top_k), (0.5, 7));
    }

    #[test]
    fn metadata_is_named_as_the_file_spells_it() {
        let container = Container::from_bytes("demo", oss_demo::GGUF, Vec::new()).unwrap();
        let wrong = Options { repetition_penalty: 0.0, ..Options::default() };
        let error = check_defaults(&container, "metadata", &wrong, gguf::spelt).unwrap_err();
        let said = "general.sampling.penalty_repeat: got 0, expected a number above 0";
        assert_eq!(error.to_string(), format!("demo: metadata: {said}"));
    }
}
