//! What a turn tells.

use martlet_engine::{Timings, TokenEvent};

/// Events of one turn: `Prefill` any number of times, then tokens and text as they come, then `Finished` once.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Event {
    /// Prompt tokens computed so far, those of the prefix cache among them.
    Prefill {
        /// So many of them are done.
        done: usize,
        /// Tokens of the prompt.
        total: usize,
    },
    /// A generated token, where asked for, the end token included; it comes before the text that it completes.
    Token(TokenInfo),
    /// Thinking, of conversations only. Never empty.
    Reasoning(String),
    /// The answer. Never empty.
    Text(String),
    /// The end.
    Finished(Outcome),
}

/// A generated token: id, log-probability and the most probable tokens, the last two where asked for.
pub type TokenInfo = TokenEvent;

/// How a turn ended.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Outcome {
    /// Why it ended.
    pub reason: FinishReason,
    /// Tokens read and written.
    pub usage: Usage,
    /// Where the time went.
    pub timings: Timings,
}

/// Why a turn ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FinishReason {
    /// The model ended its answer with this token.
    EndToken(u32),
    /// This stop string came; the text ends before it.
    StopString(String),
    /// As many tokens as asked for, or as the context holds.
    Length,
    /// Its caller cancelled it.
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
#[non_exhaustive]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// How many of them came from the prefix cache.
    pub cached_tokens: usize,
    /// Up to the end of the answer, its end token included.
    pub generated_tokens: usize,
    /// How many of them were thinking, its closing tag included.
    pub reasoning_tokens: usize,
    /// Guesses of next tokens that were checked.
    pub drafted_tokens: usize,
    /// How many of them were right.
    pub accepted_tokens: usize,
}

/// A whole turn, put together from its events.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answer {
    /// The thinking, of conversations only.
    pub reasoning: String,
    /// The answer.
    pub text: String,
    /// Generated tokens, where asked for.
    pub tokens: Vec<TokenInfo>,
    /// `None` until the end.
    pub outcome: Option<Outcome>,
}

impl Answer {
    /// Puts the next event into its place.
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
