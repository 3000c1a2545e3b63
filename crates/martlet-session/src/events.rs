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
    /// A tool call begins; its arguments follow.
    ToolCall {
        /// Counted from 0 within the answer.
        index: usize,
        /// The tool.
        name: String,
    },
    /// The next piece of a call's arguments: together they are one JSON object. Never empty.
    ToolArguments {
        /// The call.
        index: usize,
        /// A piece of JSON text.
        piece: String,
    },
    /// A call is complete.
    ToolCallEnd {
        /// The call.
        index: usize,
    },
    /// The end.
    Finished(Outcome),
}

/// A tool call of an answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AnswerCall {
    /// The tool.
    pub name: String,
    /// A JSON object, as text.
    pub arguments: String,
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

impl Outcome {
    /// For tests of what reads events.
    pub fn new(reason: FinishReason, usage: Usage, timings: Timings) -> Outcome {
        Outcome { reason, usage, timings }
    }
}

/// Why a turn ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FinishReason {
    /// The model ended its answer with this token.
    EndToken(u32),
    /// The model ended its answer, and calls tools.
    ToolCalls,
    /// It repeated itself, see [`crate::LoopGuard`].
    Repetition,
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
            FinishReason::ToolCalls => "tool_calls",
            FinishReason::Repetition => "repetition",
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
    /// Tool calls, in order.
    pub calls: Vec<AnswerCall>,
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
            Event::ToolCall { name, .. } => self.calls.push(AnswerCall { name, arguments: String::new() }),
            Event::ToolArguments { index, piece } => {
                if let Some(call) = self.calls.get_mut(index) {
                    call.arguments += &piece;
                }
            }
            Event::ToolCallEnd { .. } => {}
            Event::Finished(outcome) => self.outcome = Some(outcome),
        }
    }
}
