//! Answers of `/v1/completions`.

use oss_engine::{Engine, Event, Token};
use serde::Serialize;

use crate::read::CompletionCall;
use crate::sse::Out;
use crate::write::Wire;
use crate::write::chunks::Head;
use crate::write::follower::Follower;
use crate::write::logprobs::{Attribution, CompletionLogprobs, Control};

/// Writes the answers to prompts.
pub(crate) struct CompletionWriter {
    head: Head,
    follower: Follower,
    choices: Vec<Choice>,
    /// Answers to each prompt.
    n: usize,
    /// The prompts that answers begin with, unless log-probabilities bring them.
    echoed: Vec<Vec<u32>>,
}

/// A choice as far as it came, or a part of one.
#[derive(Default, Serialize)]
struct Choice {
    index: usize,
    text: String,
    logprobs: Option<CompletionLogprobs>,
    finish_reason: Option<&'static str>,
}

impl Choice {
    fn new(index: usize, logprobs: bool) -> Self {
        Self { index, logprobs: logprobs.then(CompletionLogprobs::default), ..Self::default() }
    }

    /// Adds what comes next.
    fn add(&mut self, part: Self) {
        self.text.push_str(&part.text);
        if let Some((all, new)) = self.logprobs.as_mut().zip(part.logprobs) {
            all.extend(new);
        }
        self.finish_reason = part.finish_reason;
    }
}

/// A prompt that an answer begins with.
fn echo(attribution: &mut Attribution, tokens: Vec<Token>) -> (String, Option<CompletionLogprobs>) {
    // A long prompt takes milliseconds: others are not to wait behind it.
    tokio::task::block_in_place(|| attribution.echo(tokens))
}

impl CompletionWriter {
    /// What an event adds to a choice; `None` where it adds nothing.
    fn part(&mut self, index: usize, event: Event) -> Option<Choice> {
        let attribution = self.follower.book(index, &event);
        let mut finish_reason = None;
        let (text, logprobs) = match event {
            Event::Text(text) => (text, attribution.completion()),
            Event::End(end) => {
                finish_reason = Some(end.finish_reason.as_str());
                (String::new(), attribution.rest())
            }
            // A prompt waits for log-probabilities that are wanted.
            Event::Prompt { tokens } => echo(attribution, tokens),
            Event::Admitted { .. } => {
                let plain = |id: &u32| Token { id: *id, logprob: None, top: Vec::new() };
                let ids = self.echoed.get(index / self.n)?;
                echo(attribution, ids.iter().map(plain).collect())
            }
            _ => return None,
        };
        Some(Choice { index, text, logprobs, finish_reason })
    }
}

impl Wire for CompletionWriter {
    type Call = CompletionCall;

    fn new(call: &CompletionCall, engine: &Engine, model: &str) -> Self {
        let CompletionCall { common, prompts, echo } = call;
        let (n, logprobs) = (common.n as usize, common.logprobs.is_some());
        let control = match common.skip_special_tokens {
            true => Control::Hidden,
            false => Control::Shown,
        };
        let attribution = Attribution::new(engine, logprobs, control).reporting_all(*echo);
        Self {
            head: Head::new("cmpl", "text_completion", common, model),
            follower: Follower::new(prompts.len(), n, &attribution),
            choices: (0..prompts.len() * n).map(|index| Choice::new(index, logprobs)).collect(),
            n,
            echoed: if *echo && !logprobs { prompts.clone() } else { Vec::new() },
        }
    }

    fn event(&mut self, choice: usize, event: Event, out: Option<&mut Out>) {
        if let Some(part) = self.part(choice, event) {
            self.head.put(part, out, |part| self.choices[choice].add(part));
        }
    }

    fn close(&mut self, out: &mut Out) {
        self.head.close(self.follower.usage(), out);
    }

    fn weight(&self) -> usize {
        let logprobs = self.choices.iter().filter_map(|choice| choice.logprobs.as_ref());
        logprobs.map(CompletionLogprobs::reported).sum()
    }

    fn whole(self) -> String {
        self.head.whole(&self.choices, self.follower.usage())
    }
}
