//! What an answer must look like, down to which tokens may come next.
//!
//! [`AnswerRule`] is made once for a turn: it follows the answer from its first token, lets the model think, and then
//! holds it to a [`Format`] or to well-formed calls of the declared tools ([`CallGrammar`]). What it allows depends on
//! the bytes so far and on nothing else. JSON schemas, regular expressions and Lark grammars are followed by llguidance;
//! the frame of Qwen's tool calls, with its raw strings, by an automaton of our own ([`frame`]).

mod answer;
mod bits;
mod compile;
mod error;
mod frame;
mod json;
mod schema;
mod tools;
mod vocabulary;

pub use answer::{AnswerMatcher, AnswerRule, Body, MAX_ROLLBACK, Thinking};
pub use compile::CompiledFormat;
pub use error::GrammarError;
pub use tools::{CallForm, CallGrammar};
pub use vocabulary::Vocabulary;

use serde_json::Value;

/// Tags of the family, as its templates write them.
const THINK: &str = "<think>";
const THINK_END: &str = "</think>";
const CALL: &str = "<tool_call>";
const CALL_END: &str = "</tool_call>";
const FUNCTION_END: &str = "</function>";
const PARAMETER: &str = "<parameter=";
const PARAMETER_END: &str = "</parameter>";

/// A form that an answer must have. It holds after the thinking.
#[derive(Clone, Debug, PartialEq)]
pub enum Format {
    /// Any JSON object.
    JsonObject,
    /// JSON that this schema allows.
    JsonSchema(Value),
    /// The whole answer matches this regular expression.
    Regex(String),
    /// A grammar in Lark's notation, as llguidance reads it.
    Lark(String),
    /// One of these texts.
    Choice(Vec<String>),
}

/// Which of the declared tools an answer may or must call.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum ToolChoice {
    /// Whatever the model does.
    #[default]
    Auto,
    /// No tool: what looks like a call is text.
    None,
    /// At least one call.
    Required,
    /// As `Auto`, of these tools alone.
    AutoOf(Vec<String>),
    /// At least one call, of these tools alone.
    RequiredOf(Vec<String>),
}

impl ToolChoice {
    /// Whether there must be a call.
    pub fn is_required(&self) -> bool {
        matches!(self, ToolChoice::Required | ToolChoice::RequiredOf(_))
    }

    /// The tools that may be called, where they are named.
    pub fn names(&self) -> Option<&[String]> {
        match self {
            ToolChoice::AutoOf(names) | ToolChoice::RequiredOf(names) => Some(names),
            ToolChoice::Auto | ToolChoice::None | ToolChoice::Required => None,
        }
    }
}

#[cfg(test)]
mod tests;
