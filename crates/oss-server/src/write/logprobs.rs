//! Which tokens a text is made of, and their log-probabilities.

use oss_engine::text::Tokenizer;
use oss_engine::{Engine, Token};
use serde::Serialize;

/// What stands for the logarithm of 0, which JSON cannot write.
const IMPOSSIBLE: f32 = -9999.0;

/// Follows the events of a choice: tokens come before the text that they complete, and what is
/// neither text nor reasoning (control tokens, the header of a message) belongs to no text.
pub(crate) struct Attribution {
    engine: Engine,
    wanted: bool,
    /// Tokens since the last text.
    pending: Vec<Token>,
    /// How many there were.
    count: usize,
    reasoning_tokens: usize,
}

impl Attribution {
    /// `wanted`: tokens are kept for their log-probabilities.
    pub(crate) fn new(engine: &Engine, wanted: bool) -> Self {
        let (pending, count, reasoning_tokens) = (Vec::new(), 0, 0);
        Self { engine: engine.clone(), wanted, pending, count, reasoning_tokens }
    }

    pub(crate) fn token(&mut self, token: Token) {
        let tokenizer = self.engine.text().tokenizer();
        if tokenizer.is_ok_and(|tokenizer| tokenizer.is_special(token.id)) {
            self.pending.clear();
            self.count = 0;
            return;
        }
        self.count += 1;
        if self.wanted {
            self.pending.push(token);
        }
    }

    /// A text came: its tokens.
    pub(crate) fn text(&mut self) -> Vec<Token> {
        self.count = 0;
        std::mem::take(&mut self.pending)
    }

    /// Reasoning came.
    pub(crate) fn reasoning(&mut self) {
        self.reasoning_tokens += self.count;
        self.text();
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

    /// Tokens as completions report them, the first `offset` characters into the text.
    pub(crate) fn completion(
        &self,
        tokens: Vec<Token>,
        offset: &mut usize,
    ) -> Option<CompletionLogprobs> {
        let tokenizer = self.engine.text().tokenizer().ok().filter(|_| self.wanted)?;
        let mut out = CompletionLogprobs::default();
        for token in tokens {
            let text = written(tokenizer, token.id);
            out.text_offset.push(*offset);
            *offset += text.chars().count();
            out.tokens.push(text);
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
