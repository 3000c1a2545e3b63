//! Tokens that were read and written, as the APIs count them.

use martlet_session::Outcome;
use serde::Serialize;
use utoipa::ToSchema;

/// Sums over the answers to one prompt, which counts once.
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

impl std::iter::Sum for Sum {
    /// Of several prompts.
    fn sum<I: Iterator<Item = Sum>>(sums: I) -> Sum {
        sums.fold(Sum::default(), |a, b| Sum {
            prompt: a.prompt + b.prompt,
            cached: a.cached + b.cached,
            generated: a.generated + b.generated,
            reasoning: a.reasoning + b.reasoning,
        })
    }
}

/// In which chunks of a stream the usage is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum UsageIn {
    None,
    LastChunk,
    EveryChunk,
}

/// What is known while an answer is on its way.
#[derive(Clone, Copy, Debug, Default)]
pub struct SoFar {
    pub prompt: usize,
    pub generated: usize,
}

impl UsageIn {
    /// The field of a chunk: left out, null, or the usage, which is `whole` in the last chunk.
    pub fn of_chunk(self, whole: Option<Usage>, so_far: SoFar) -> Option<Option<Usage>> {
        match self {
            UsageIn::None => None,
            UsageIn::LastChunk => Some(whole),
            UsageIn::EveryChunk => Some(Some(whole.unwrap_or(so_far.into()))),
        }
    }
}

impl From<SoFar> for Usage {
    fn from(SoFar { prompt, generated }: SoFar) -> Usage {
        Usage {
            prompt_tokens: prompt,
            completion_tokens: generated,
            total_tokens: prompt + generated,
            prompt_tokens_details: None,
            completion_tokens_details: None,
        }
    }
}

/// Usage of chat completions and completions. Details are known at the end.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, ToSchema)]
pub struct Usage {
    pub prompt_tokens: usize,
    pub completion_tokens: usize,
    pub total_tokens: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_tokens_details: Option<PromptDetails>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion_tokens_details: Option<CompletionDetails>,
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
            prompt_tokens_details: Some(PromptDetails { cached_tokens: sum.cached }),
            completion_tokens_details: Some(CompletionDetails { reasoning_tokens: sum.reasoning }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{json, to_value};

    #[test]
    fn chunks_have_the_usage_that_was_asked_for() {
        let so_far = SoFar { prompt: 7, generated: 2 };
        let whole = Usage::from(Sum { prompt: 7, cached: 3, generated: 5, reasoning: 2 });
        let last = to_value(whole).unwrap();
        let of = |usage: UsageIn| {
            let field = |chunk: Option<Usage>| usage.of_chunk(chunk, so_far).map(|usage| to_value(usage).unwrap());
            [field(None), field(Some(whole))]
        };
        let now = json!({"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9});
        assert_eq!(of(UsageIn::None), [None, None]);
        assert_eq!(of(UsageIn::LastChunk), [Some(json!(null)), Some(last.clone())]);
        assert_eq!(of(UsageIn::EveryChunk), [Some(now), Some(last)]);
    }
}
