//! Books the tokens of an answer.

use oss_engine::Event;

use crate::write::logprobs::Attribution;
use crate::write::usage::WireUsage;

/// Follows the events of all choices: which tokens a text is made of, and how many there are.
pub(crate) struct Follower {
    attributions: Vec<Attribution>,
    /// Choices of each prompt, which counts once.
    n: usize,
    usage: WireUsage,
}

impl Follower {
    /// Follows `n` choices of each of so many prompts.
    pub(crate) fn new(prompts: usize, n: usize, attribution: &Attribution) -> Self {
        let attributions = vec![attribution.clone(); prompts * n];
        Self { attributions, n, usage: WireUsage::default() }
    }

    /// Books an event of a choice, whose tokens are then attributed to what it shows.
    pub(crate) fn book(&mut self, choice: usize, event: &Event) -> &mut Attribution {
        let attribution = &mut self.attributions[choice];
        match event {
            Event::Token(token) => attribution.token(token),
            Event::Text(text) => attribution.text(text),
            Event::Reasoning(_) => attribution.reasoning(),
            Event::ToolCallStart { .. } => attribution.skip(),
            Event::End(end) => {
                let counts_prompt = choice.is_multiple_of(self.n);
                self.usage.add(&end.usage, attribution.reasoning_tokens(), counts_prompt);
            }
            _ => {}
        }
        attribution
    }

    /// What all choices used that are over.
    pub(crate) fn usage(&self) -> WireUsage {
        self.usage
    }
}
