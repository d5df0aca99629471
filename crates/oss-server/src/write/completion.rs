//! Answers of `/v1/completions`.

use oss_engine::{Engine, Event, Token};
use serde::Serialize;

use crate::read::CompletionCall;
use crate::refusal::Refusal;
use crate::sse::{self, Frames, Out};
use crate::whole::Whole;
use crate::write::chat::FINGERPRINT;
use crate::write::logprobs::{Attribution, CompletionLogprobs, Control};
use crate::write::usage::WireUsage;
use crate::{clock, ids};

/// What every chunk and the whole answer begin with, and what decides their form.
#[derive(Clone, Serialize)]
pub(crate) struct CompletionHead {
    id: String,
    object: &'static str,
    created: u64,
    model: String,
    system_fingerprint: &'static str,
    #[serde(skip)]
    include_usage: bool,
    #[serde(skip)]
    logprobs: bool,
    /// Answers to each prompt.
    #[serde(skip)]
    n: usize,
    #[serde(skip)]
    choices: usize,
    /// Answers begin with their prompts.
    #[serde(skip)]
    echo: bool,
    /// These prompts, unless log-probabilities bring them.
    #[serde(skip)]
    echoed: Vec<Vec<u32>>,
    #[serde(skip)]
    control: Control,
}

impl CompletionHead {
    /// The head of the answer to a call.
    pub(crate) fn new(call: &CompletionCall, model: &str) -> Self {
        let n = call.common.n as usize;
        let logprobs = call.common.logprobs.is_some();
        Self {
            id: format!("cmpl-{}", ids::unique()),
            object: "text_completion",
            created: clock::unix_seconds(),
            model: model.to_owned(),
            system_fingerprint: FINGERPRINT,
            include_usage: call.common.include_usage,
            logprobs,
            n,
            choices: n * call.prompts.len(),
            echo: call.echo,
            echoed: if call.echo && !logprobs { call.prompts.clone() } else { Vec::new() },
            control: match call.common.show_control_tokens {
                true => Control::Shown,
                false => Control::Hidden,
            },
        }
    }

    fn attributions(&self, engine: &Engine) -> Vec<Attribution> {
        let one =
            |_| Attribution::new(engine, self.logprobs, self.control).reporting_all(self.echo);
        (0..self.choices).map(one).collect()
    }

    /// What an event shows of a choice's prompt: it waits for log-probabilities that are wanted.
    fn echo(
        &self,
        choice: usize,
        attribution: &mut Attribution,
        event: Event,
    ) -> Option<(String, Option<CompletionLogprobs>)> {
        let tokens = match event {
            Event::Prompt { tokens } => tokens,
            Event::Admitted { .. } => {
                let plain = |id: &u32| Token { id: *id, logprob: None, top: Vec::new() };
                self.echoed.get(choice / self.n)?.iter().map(plain).collect()
            }
            _ => return None,
        };
        // A long prompt takes milliseconds: others are not to wait behind it.
        Some(tokio::task::block_in_place(|| attribution.echo(tokens)))
    }
}

/// The log-probabilities of the text that just came.
fn logprobs(attribution: &mut Attribution, text: &str) -> Option<CompletionLogprobs> {
    let tokens = attribution.text(text);
    attribution.completion(tokens)
}

#[derive(Default, Serialize)]
struct Choice {
    index: usize,
    text: String,
    logprobs: Option<CompletionLogprobs>,
    finish_reason: Option<&'static str>,
}

impl Choice {
    /// Adds log-probabilities, where they are wanted.
    fn report(&mut self, new: Option<CompletionLogprobs>) {
        if let Some((all, new)) = self.logprobs.as_mut().zip(new) {
            all.extend(new);
        }
    }
}

#[derive(Serialize)]
struct Chunk<'a> {
    #[serde(flatten)]
    head: &'a CompletionHead,
    choices: &'a [Choice],
    /// Null in all chunks but the last, where usage was asked for at all.
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<WireUsage>>,
}

/// A whole answer while it comes.
pub(crate) struct CompletionSoFar {
    head: CompletionHead,
    attributions: Vec<Attribution>,
    choices: Vec<Choice>,
    usage: WireUsage,
}

impl CompletionSoFar {
    pub(crate) fn new(head: CompletionHead, engine: &Engine) -> Self {
        let logprobs = || head.logprobs.then(CompletionLogprobs::default);
        let choice = |index| Choice { index, logprobs: logprobs(), ..Choice::default() };
        let choices = (0..head.choices).map(choice).collect();
        let attributions = head.attributions(engine);
        Self { head, attributions, choices, usage: WireUsage::default() }
    }
}

impl Whole for CompletionSoFar {
    fn event(&mut self, choice: usize, event: Event) {
        let attribution = &mut self.attributions[choice];
        let so_far = &mut self.choices[choice];
        match event {
            Event::Token(token) => attribution.token(token),
            Event::Text(text) => {
                so_far.text.push_str(&text);
                so_far.report(logprobs(attribution, &text));
            }
            Event::End(end) => {
                so_far.report(attribution.rest());
                so_far.finish_reason = Some(end.finish.name());
                self.usage.add(&end.usage, 0, choice.is_multiple_of(self.head.n));
            }
            event => {
                if let Some((text, logprobs)) = self.head.echo(choice, attribution, event) {
                    so_far.text.push_str(&text);
                    so_far.report(logprobs);
                }
            }
        }
    }

    fn weight(&self) -> usize {
        let logprobs = self.choices.iter().filter_map(|choice| choice.logprobs.as_ref());
        logprobs.map(CompletionLogprobs::reported).sum()
    }

    fn finish(self) -> String {
        let usage = Some(Some(self.usage));
        let whole = Chunk { head: &self.head, choices: &self.choices, usage };
        serde_json::to_string(&whole).expect("wire types are JSON")
    }
}

/// An answer in chunks.
pub(crate) struct CompletionFrames {
    head: CompletionHead,
    attributions: Vec<Attribution>,
    usage: WireUsage,
}

impl CompletionFrames {
    pub(crate) fn new(head: CompletionHead, engine: &Engine) -> Self {
        let attributions = head.attributions(engine);
        Self { head, attributions, usage: WireUsage::default() }
    }

    fn chunk(&self, choice: Choice, out: &mut Out) {
        let usage = self.head.include_usage.then_some(None);
        out.data(&Chunk { head: &self.head, choices: &[choice], usage });
    }
}

impl Frames for CompletionFrames {
    fn event(&mut self, index: usize, event: Event, out: &mut Out) {
        let attribution = &mut self.attributions[index];
        match event {
            Event::Token(token) => attribution.token(token),
            Event::Text(text) => {
                let logprobs = logprobs(attribution, &text);
                self.chunk(Choice { index, text, logprobs, finish_reason: None }, out);
            }
            Event::End(end) => {
                self.usage.add(&end.usage, 0, index.is_multiple_of(self.head.n));
                let (logprobs, finish_reason) = (attribution.rest(), Some(end.finish.name()));
                self.chunk(Choice { index, logprobs, finish_reason, text: String::new() }, out);
            }
            event => {
                if let Some((text, logprobs)) = self.head.echo(index, attribution, event) {
                    self.chunk(Choice { index, text, logprobs, finish_reason: None }, out);
                }
            }
        }
    }

    fn finish(&mut self, out: &mut Out) {
        if self.head.include_usage {
            out.data(&Chunk { head: &self.head, choices: &[], usage: Some(Some(self.usage)) });
        }
        out.raw("[DONE]");
    }

    fn failed(&mut self, refusal: &Refusal, out: &mut Out) {
        sse::failed(refusal, out);
    }
}
