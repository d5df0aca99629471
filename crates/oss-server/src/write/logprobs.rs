//! Which tokens a text is made of, and their log-probabilities.

use oss_engine::{Decoder, Engine, Token, Tokenizer};
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
        let offered = !call.chat.offered_tools().is_empty();
        match (engine.text().is_harmony(), offered) {
            (true, _) => Self::Header,
            (false, true) => Self::Shown,
            (false, false) => Self::Hidden,
        }
    }
}

/// Follows the events of a choice: tokens come before the text that they complete, and what is
/// neither text nor reasoning (control tokens, the header of a message) belongs to no text.
#[derive(Clone)]
pub(crate) struct Attribution {
    engine: Engine,
    wanted: bool,
    control: Control,
    /// Tokens that no text shows are reported too.
    reports_all: bool,
    /// Tokens since the last text.
    pending: Vec<Token>,
    /// Those of the last text.
    shown: Vec<Token>,
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
            reports_all: false,
            pending: Vec::new(),
            shown: Vec::new(),
            count: 0,
            is_over: false,
            reasoning_tokens: 0,
            decoder: engine.text().tokenizer().ok().map(Decoder::new),
            offset: 0,
        }
    }

    /// Reports tokens that no text shows as well: those of a prompt that is echoed are, and whoever
    /// counts tokens counts on the answer's.
    pub(crate) fn reporting_all(self, reports_all: bool) -> Self {
        Self { reports_all, ..self }
    }

    pub(crate) fn token(&mut self, token: &Token) {
        if std::mem::take(&mut self.is_over) {
            self.skip();
        }
        let hides = self.control != Control::Shown && !self.reports_all;
        if hides && self.name(token.id).is_some() {
            self.is_over = self.control == Control::Header;
            return;
        }
        self.count += 1;
        if self.wanted {
            self.pending.push(token.clone());
        }
    }

    /// The name of a control token; `None` for others.
    fn name(&self, id: u32) -> Option<String> {
        let tokenizer = self.engine.text().tokenizer().ok()?;
        tokenizer.is_special(id).then(|| written(tokenizer, id))
    }

    /// A text came, which is made of the tokens before it.
    pub(crate) fn text(&mut self, text: &str) {
        self.count = 0;
        self.shown = std::mem::take(&mut self.pending);
        // The control token that lets go what was held back is no part of it.
        let name = self.shown.last().and_then(|token| self.name(token.id));
        if name.is_some_and(|name| !text.ends_with(&name)) {
            self.pending.extend(self.shown.pop());
        }
    }

    /// The answer is over: what no text has shown is reported, where all is.
    pub(crate) fn rest(&mut self) -> Option<CompletionLogprobs> {
        let tokens = std::mem::take(&mut self.pending);
        let some = self.reports_all && !tokens.is_empty();
        some.then(|| self.report(tokens)).flatten()
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

    /// The last text's tokens as chats report them; `None` where nobody asked.
    pub(crate) fn chat(&mut self) -> Option<ChatLogprobs> {
        let tokens = std::mem::take(&mut self.shown);
        let tokenizer = self.engine.text().tokenizer().ok().filter(|_| self.wanted)?;
        let content = tokens.into_iter().map(|token| {
            let own = TokenLogprob::new(tokenizer, token.id, token.logprob.unwrap_or(IMPOSSIBLE));
            let top =
                token.top.iter().map(|(id, logprob)| TokenLogprob::new(tokenizer, *id, *logprob));
            ContentLogprob { top_logprobs: top.collect(), own }
        });
        Some(ChatLogprobs { content: content.collect() })
    }

    /// The last text's tokens as completions report them; `None` where nobody asked.
    pub(crate) fn completion(&mut self) -> Option<CompletionLogprobs> {
        let tokens = std::mem::take(&mut self.shown);
        self.report(tokens)
    }

    /// The tokens of one character all begin where it does.
    fn report(&mut self, tokens: Vec<Token>) -> Option<CompletionLogprobs> {
        let tokenizer = self.engine.text().tokenizer().ok().filter(|_| self.wanted)?;
        let decoder = self.decoder.as_mut()?;
        let mut out = CompletionLogprobs::default();
        for token in tokens {
            out.text_offset.push(self.offset);
            if self.control == Control::Shown || !tokenizer.is_special(token.id) {
                self.offset += decoder.push(token.id).chars().count();
            }
            out.tokens.push(written(tokenizer, token.id));
            out.token_logprobs.push(token.logprob.map(|logprob| finite(logprob).into()));
            out.top_logprobs.push(token.logprob.map(|own| {
                let mut top = serde_json::Map::new();
                // The token is among the best ones, or comes after them. Of those that are written
                // alike (parts of characters), the best stays.
                for (id, logprob) in token.top.into_iter().chain([(token.id, own)]) {
                    top.entry(written(tokenizer, id)).or_insert_with(|| finite(logprob).into());
                }
                top
            }));
        }
        Some(out)
    }

    /// A prompt as completions show and report it: all its tokens, the first without a
    /// log-probability.
    pub(crate) fn echo(&mut self, tokens: Vec<Token>) -> (String, Option<CompletionLogprobs>) {
        let ids: Vec<u32> = tokens.iter().map(|token| token.id).collect();
        let text = self.engine.text().tokenizer().map(|tokenizer| match self.control {
            Control::Shown => tokenizer.decode(&ids),
            Control::Hidden | Control::Header => tokenizer.decode_text(&ids),
        });
        let text = text.unwrap_or_default();
        let mut logprobs = self.report(tokens);
        if let Some((logprobs, decoder)) = logprobs.as_mut().zip(self.decoder.as_mut()) {
            // The answer's text begins anew, also where the prompt ends within a character.
            let end = self.offset + decoder.finish().chars().count();
            self.offset = text.chars().count();
            // The space that some encodings put before a text is not shown.
            let unseen = end.saturating_sub(self.offset);
            let offsets = logprobs.text_offset.iter_mut();
            offsets.for_each(|offset| *offset = offset.saturating_sub(unseen));
        }
        (text, logprobs)
    }
}

/// A chat's log-probabilities.
#[derive(Default, Serialize)]
pub(crate) struct ChatLogprobs {
    pub(crate) content: Vec<ContentLogprob>,
}

impl ChatLogprobs {
    /// How many it reports.
    pub(crate) fn reported(&self) -> usize {
        self.content.iter().map(|token| 1 + token.top_logprobs.len()).sum()
    }
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
    /// As many digits as the best ones have, since clients compare them.
    token_logprobs: Vec<Option<f64>>,
    top_logprobs: Vec<Option<serde_json::Map<String, serde_json::Value>>>,
    text_offset: Vec<usize>,
}

impl CompletionLogprobs {
    /// How many log-probabilities it reports.
    pub(crate) fn reported(&self) -> usize {
        let best = self.top_logprobs.iter().flatten().map(serde_json::Map::len);
        self.tokens.len() + best.sum::<usize>()
    }

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
