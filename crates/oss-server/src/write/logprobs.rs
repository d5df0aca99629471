//! Which tokens a text is made of, and their log-probabilities.

use oss_engine::text::{Decoder, Tokenizer};
use oss_engine::{Engine, Token, ToolChoice};
use serde::Serialize;

use crate::read::ChatCall;

/// What stands for the logarithm of 0, which JSON cannot write.
const IMPOSSIBLE: f32 = -9999.0;

/// What control tokens are in the text of an answer.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Control {
    /// They are left out.
    Hidden,
    /// Their names are text, but for one that ends the answer.
    Shown,
    /// They are left out, and so are the words between them that are the header of a message.
    Header,
}

impl Control {
    /// In the answer to a chat. Where tools are offered, control tokens mark calls in a template,
    /// and are shown in what turns out to be none.
    pub(crate) fn of_chat(call: &ChatCall, engine: &Engine) -> Self {
        let offered = !call.chat.tools.is_empty() && call.chat.tool_choice != ToolChoice::None;
        match (engine.text().is_harmony(), offered) {
            (true, _) => Self::Header,
            (false, true) => Self::Shown,
            (false, false) => Self::Hidden,
        }
    }
}

/// Follows the events of a choice: tokens come before the text that they complete, and what is
/// neither text nor reasoning (control tokens, the header of a message) belongs to no text.
pub(crate) struct Attribution {
    engine: Engine,
    wanted: bool,
    control: Control,
    /// Tokens since the last text.
    pending: Vec<Token>,
    /// How many there were.
    count: usize,
    /// A control token came: text that was held back until then may still come, but what follows
    /// the next token is made of none of these.
    is_over: bool,
    reasoning_tokens: usize,
    /// The text of the tokens that completions reported, and how many characters it has.
    decoder: Option<Decoder>,
    offset: usize,
}

impl Attribution {
    /// `wanted`: tokens are kept for their log-probabilities.
    pub(crate) fn new(engine: &Engine, wanted: bool, control: Control) -> Self {
        Self {
            engine: engine.clone(),
            wanted,
            control,
            pending: Vec::new(),
            count: 0,
            is_over: false,
            reasoning_tokens: 0,
            decoder: engine.text().tokenizer().ok().map(Decoder::new),
            offset: 0,
        }
    }

    pub(crate) fn token(&mut self, token: Token) {
        if std::mem::take(&mut self.is_over) {
            self.skip();
        }
        if self.name(token.id).is_some() && self.control != Control::Shown {
            self.is_over = self.control == Control::Header;
            return;
        }
        self.count += 1;
        if self.wanted {
            self.pending.push(token);
        }
    }

    /// The name of a control token; `None` for others.
    fn name(&self, id: u32) -> Option<String> {
        let tokenizer = self.engine.text().tokenizer().ok()?;
        tokenizer.is_special(id).then(|| written(tokenizer, id))
    }

    /// A text came: its tokens.
    pub(crate) fn text(&mut self, text: &str) -> Vec<Token> {
        self.count = 0;
        let mut tokens = std::mem::take(&mut self.pending);
        // The control token that lets go what was held back is no part of it.
        let name = tokens.last().and_then(|token| self.name(token.id));
        if name.is_some_and(|name| !text.ends_with(&name)) {
            self.pending.extend(tokens.pop());
        }
        tokens
    }

    /// What came is reported of no text.
    pub(crate) fn skip(&mut self) {
        self.count = 0;
        self.pending.clear();
    }

    /// Reasoning came.
    pub(crate) fn reasoning(&mut self) {
        self.reasoning_tokens += self.count;
        self.skip();
    }

    pub(crate) fn reasoning_tokens(&self) -> usize {
        self.reasoning_tokens
    }

    /// Tokens as chats report them; `None` where nobody asked.
    pub(crate) fn chat(&self, tokens: Vec<Token>) -> Option<ChatLogprobs> {
        let tokenizer = self.engine.text().tokenizer().ok().filter(|_| self.wanted)?;
        let content = tokens.into_iter().map(|token| {
            let own = TokenLogprob::new(tokenizer, token.id, token.logprob.unwrap_or(IMPOSSIBLE));
            let top =
                token.top.iter().map(|(id, logprob)| TokenLogprob::new(tokenizer, *id, *logprob));
            ContentLogprob { top_logprobs: top.collect(), own }
        });
        Some(ChatLogprobs { content: content.collect() })
    }

    /// Tokens as completions report them. The tokens of one character all begin where it does.
    pub(crate) fn completion(&mut self, tokens: Vec<Token>) -> Option<CompletionLogprobs> {
        let tokenizer = self.engine.text().tokenizer().ok().filter(|_| self.wanted)?;
        let decoder = self.decoder.as_mut()?;
        let mut out = CompletionLogprobs::default();
        for token in tokens {
            out.text_offset.push(self.offset);
            self.offset += decoder.push(token.id).chars().count();
            out.tokens.push(written(tokenizer, token.id));
            out.token_logprobs.push(finite(token.logprob.unwrap_or(IMPOSSIBLE)));
            let top = token.top.iter();
            let top = top.map(|(id, logprob)| (written(tokenizer, *id), finite(*logprob).into()));
            out.top_logprobs.push(top.collect());
        }
        Some(out)
    }
}

/// A chat's log-probabilities.
#[derive(Default, Serialize)]
pub(crate) struct ChatLogprobs {
    pub(crate) content: Vec<ContentLogprob>,
}

/// One token of a chat's answer.
#[derive(Serialize)]
pub(crate) struct ContentLogprob {
    #[serde(flatten)]
    own: TokenLogprob,
    top_logprobs: Vec<TokenLogprob>,
}

#[derive(Serialize)]
struct TokenLogprob {
    token: String,
    logprob: f32,
    bytes: Option<Vec<u8>>,
}

impl TokenLogprob {
    fn new(tokenizer: &Tokenizer, id: u32, logprob: f32) -> Self {
        let bytes = tokenizer.token_bytes(id).map(<[u8]>::to_vec);
        Self { token: written(tokenizer, id), logprob: finite(logprob), bytes }
    }
}

/// A completion's log-probabilities.
#[derive(Default, Serialize)]
pub(crate) struct CompletionLogprobs {
    tokens: Vec<String>,
    token_logprobs: Vec<f32>,
    top_logprobs: Vec<serde_json::Map<String, serde_json::Value>>,
    text_offset: Vec<usize>,
}

impl CompletionLogprobs {
    /// Adds what comes after it.
    pub(crate) fn extend(&mut self, other: Self) {
        self.tokens.extend(other.tokens);
        self.token_logprobs.extend(other.token_logprobs);
        self.top_logprobs.extend(other.top_logprobs);
        self.text_offset.extend(other.text_offset);
    }
}

fn written(tokenizer: &Tokenizer, id: u32) -> String {
    String::from_utf8_lossy(tokenizer.token_bytes(id).unwrap_or_default()).into_owned()
}

fn finite(logprob: f32) -> f32 {
    logprob.max(IMPOSSIBLE)
}
