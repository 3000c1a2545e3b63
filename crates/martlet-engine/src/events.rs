//! What an engine tells about a request.

use crate::runner::StepError;
use std::time::Duration;

/// Events of one request, in order: `Prefill` any number of times, `Token` any number of times, `End` if a stop token
/// came, then `Finished` or `Failed` once.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// Prompt tokens computed so far.
    Prefill {
        done: usize,
        total: usize,
    },
    Token(TokenEvent),
    /// The stop token that ends the answer.
    End(TokenEvent),
    Finished {
        reason: Finish,
        timings: Timings,
    },
    Failed(EngineError),
}

/// A generated token.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenEvent {
    pub id: u32,
    /// Natural log of the model's own probability, where asked for.
    pub logprob: Option<f32>,
    /// The most probable tokens, most probable first, as many as asked for.
    pub top: Vec<(u32, f32)>,
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// A stop token came: this one.
    Stop(u32),
    /// As many tokens as asked for, or as the context holds.
    Length,
    /// The caller went away or cancelled.
    Cancelled,
    /// The request's deadline passed.
    Deadline,
}

/// Where the time of a request went.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Timings {
    pub prompt_tokens: usize,
    /// Tokens of the prompt that were not computed, because the prefix cache had them.
    pub cached_tokens: usize,
    /// Drafts that were checked, and those that were right.
    pub drafted_tokens: usize,
    pub accepted_tokens: usize,
    /// Tokens computed by decoding, a stop token included.
    pub generated_tokens: usize,
    /// Waiting for its turn.
    pub queued: Duration,
    /// From its first step to the first token.
    pub prefill: Duration,
    /// From the first token to the last.
    pub decode: Duration,
    /// Seed that was used.
    pub seed: u64,
}

impl Timings {
    /// Prompt tokens computed a second.
    pub fn prefill_rate(&self) -> f64 {
        rate(self.prompt_tokens - self.cached_tokens, self.prefill)
    }

    /// Tokens a second after the first.
    pub fn decode_rate(&self) -> f64 {
        rate(self.generated_tokens.saturating_sub(1), self.decode)
    }
}

fn rate(tokens: usize, time: Duration) -> f64 {
    if time.is_zero() { 0.0 } else { tokens as f64 / time.as_secs_f64() }
}

#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum EngineError {
    #[error("the engine could not start: {0}")]
    Start(String),
    #[error("the model needs {} ({parts}), and {} may be used", mib(*needed), mib(*memory))]
    Room { needed: u64, memory: u64, parts: String },
    #[error("the step failed: {0}")]
    Step(String),
    #[error(
        "no token is possible at position {position}: logit_bias forbids all that the model knows, or its logits are not \
         numbers, as those of damaged weights are"
    )]
    Impossible { position: usize },
    #[error(
        "the sequence has {tokens} tokens, and with less memory free than at the start there is room for {room}: free \
         memory, or begin with a smaller --context"
    )]
    Memory { tokens: usize, room: usize },
    #[error("the engine has stopped")]
    Stopped,
}

pub(crate) fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

impl From<&StepError> for EngineError {
    fn from(e: &StepError) -> Self {
        EngineError::Step(e.to_string())
    }
}
