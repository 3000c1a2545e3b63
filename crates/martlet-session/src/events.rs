//! What a turn tells.

use martlet_engine::{Timings, TokenEvent};

/// Events of one turn: `Prefill` any number of times, then tokens and text as they come, then `Finished` once.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// Prompt tokens computed so far.
    Prefill {
        done: usize,
        total: usize,
    },
    /// A generated token, where asked for, the end token included; it comes before the text that it completes.
    Token(TokenInfo),
    /// Thinking, of conversations only. Never empty.
    Reasoning(String),
    /// The answer. Never empty.
    Text(String),
    Finished(Outcome),
}

/// A generated token: id, log-probability and the most probable tokens, the last two where asked for.
pub type TokenInfo = TokenEvent;

/// How a turn ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    pub reason: FinishReason,
    pub usage: Usage,
    pub timings: Timings,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// The model ended its answer with this token.
    EndToken(u32),
    /// This stop string came; the text ends before it.
    StopString(String),
    /// As many tokens as asked for, or as the context holds.
    Length,
    Cancelled,
    /// The turn's deadline passed.
    Deadline,
}

impl FinishReason {
    /// The word that APIs use.
    pub fn as_str(&self) -> &'static str {
        match self {
            FinishReason::EndToken(_) | FinishReason::StopString(_) => "stop",
            FinishReason::Length => "length",
            FinishReason::Cancelled => "cancelled",
            FinishReason::Deadline => "deadline",
        }
    }
}

/// Tokens of a turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub prompt_tokens: usize,
    /// How many of them came from the prefix cache.
    pub cached_tokens: usize,
    /// Up to the end of the answer, its end token included.
    pub generated_tokens: usize,
    /// How many of them were thinking, its closing tag included.
    pub reasoning_tokens: usize,
}

/// A whole turn, put together from its events.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answer {
    pub reasoning: String,
    pub text: String,
    /// Generated tokens, where asked for.
    pub tokens: Vec<TokenInfo>,
    pub outcome: Option<Outcome>,
}

impl Answer {
    pub fn add(&mut self, event: Event) {
        match event {
            Event::Prefill { .. } => {}
            Event::Token(token) => self.tokens.push(token),
            Event::Reasoning(piece) => self.reasoning += &piece,
            Event::Text(piece) => self.text += &piece,
            Event::Finished(outcome) => self.outcome = Some(outcome),
        }
    }
}
