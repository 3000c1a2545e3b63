//! Tokens that were read and written, as the APIs count them.

use martlet_session::Outcome;
use serde::Serialize;
use utoipa::ToSchema;

/// Sums over the answers to a request; the prompt counts once.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sum {
    pub prompt: usize,
    pub cached: usize,
    pub generated: usize,
    pub reasoning: usize,
}

impl Sum {
    pub fn add(&mut self, outcome: &Outcome) {
        let usage = &outcome.usage;
        self.prompt = self.prompt.max(usage.prompt_tokens);
        self.cached = self.cached.max(usage.cached_tokens);
        self.generated += usage.generated_tokens;
        self.reasoning += usage.reasoning_tokens;
    }
}

/// Usage of chat completions and completions.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, ToSchema)]
pub struct Usage {
    pub prompt_tokens: usize,
    pub completion_tokens: usize,
    pub total_tokens: usize,
    pub prompt_tokens_details: PromptDetails,
    pub completion_tokens_details: CompletionDetails,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, ToSchema)]
pub struct PromptDetails {
    /// Of the prompt's tokens, those that the prefix cache had.
    pub cached_tokens: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, ToSchema)]
pub struct CompletionDetails {
    /// Of the answer's tokens, those of the thinking.
    pub reasoning_tokens: usize,
}

impl From<Sum> for Usage {
    fn from(sum: Sum) -> Usage {
        Usage {
            prompt_tokens: sum.prompt,
            completion_tokens: sum.generated,
            total_tokens: sum.prompt + sum.generated,
            prompt_tokens_details: PromptDetails { cached_tokens: sum.cached },
            completion_tokens_details: CompletionDetails { reasoning_tokens: sum.reasoning },
        }
    }
}
