//! The API of Anthropic.

pub mod messages;
