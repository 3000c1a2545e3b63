//! The APIs of OpenAI.

pub mod chat;
pub mod completions;
pub mod messages;
pub mod responses;
mod sampled;
