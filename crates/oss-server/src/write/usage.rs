//! Counts of tokens.

use oss_engine::Usage;
use serde::Serialize;

/// OpenAI's `usage`, the sum over all choices. A prompt with several choices counts once.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct WireUsage {
    prompt_tokens: usize,
    completion_tokens: usize,
    total_tokens: usize,
    prompt_tokens_details: PromptDetails,
    completion_tokens_details: CompletionDetails,
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
struct PromptDetails {
    cached_tokens: usize,
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
struct CompletionDetails {
    reasoning_tokens: usize,
}

impl WireUsage {
    /// Adds a choice, whose prompt counts if it is its first one.
    pub(crate) fn add(&mut self, usage: &Usage, reasoning_tokens: usize, counts_prompt: bool) {
        if counts_prompt {
            self.prompt_tokens += usage.prompt_tokens;
            self.prompt_tokens_details.cached_tokens += usage.cached_tokens;
        }
        self.completion_tokens += usage.completion_tokens;
        self.completion_tokens_details.reasoning_tokens += reasoning_tokens;
        self.total_tokens = self.prompt_tokens + self.completion_tokens;
    }
}

/// The same as the responses API names it.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct ResponseUsage {
    input_tokens: usize,
    input_tokens_details: PromptDetails,
    output_tokens: usize,
    output_tokens_details: CompletionDetails,
    total_tokens: usize,
}

impl From<WireUsage> for ResponseUsage {
    fn from(usage: WireUsage) -> Self {
        Self {
            input_tokens: usage.prompt_tokens,
            input_tokens_details: usage.prompt_tokens_details,
            output_tokens: usage.completion_tokens,
            output_tokens_details: usage.completion_tokens_details,
            total_tokens: usage.total_tokens,
        }
    }
}
