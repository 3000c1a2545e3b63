//! What goes over the wire.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

/// A request for the next message of a conversation. Fields that are not listed are accepted, and named in the response's
/// header `x-martlet-warning`.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub struct MessagesRequest {
    /// A model of `/v1/models`; without it, the server's own.
    pub model: Option<String>,
    /// Most tokens of the answer, thinking included; none: until its end or the context's.
    pub max_tokens: Option<i64>,
    /// Roles: user, assistant, system. Content: a string or blocks (text, thinking, tool_use, tool_result).
    #[schema(value_type = Vec<Object>, min_items = 1)]
    pub messages: Vec<Value>,
    /// A string or blocks of text.
    #[schema(value_type = Option<Object>)]
    pub system: Option<Value>,
    pub stream: Option<bool>,
    #[schema(minimum = 0, maximum = 100)]
    pub temperature: Option<f32>,
    #[schema(minimum = 0, maximum = 1)]
    pub top_p: Option<f32>,
    pub top_k: Option<i64>,
    /// Up to 16.
    #[schema(value_type = Option<Vec<String>>)]
    pub stop_sequences: Option<Value>,
    #[schema(value_type = Option<Vec<Object>>)]
    pub tools: Option<Value>,
    /// `{type: auto | any | tool | none, name, disable_parallel_tool_use}`.
    #[schema(value_type = Option<Object>)]
    pub tool_choice: Option<Value>,
    /// `{type: enabled | adaptive | disabled, budget_tokens}`.
    #[schema(value_type = Option<Object>)]
    pub thinking: Option<Value>,
    /// `{effort, format}`.
    #[schema(value_type = Option<Object>)]
    pub output_config: Option<Value>,
    /// An older place of `output_config.format`.
    #[schema(value_type = Option<Object>)]
    pub output_format: Option<Value>,
    #[schema(ignore)]
    pub mcp_servers: Option<Value>,
    #[schema(ignore)]
    pub container: Option<Value>,
    /// The same seed gives the same text.
    pub seed: Option<i64>,
    /// Go on when the model ends its answer.
    pub ignore_eos: Option<bool>,
}

/// The answer.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Message {
    pub id: String,
    /// `message`
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// `assistant`
    pub role: &'static str,
    pub model: String,
    /// Blocks of type thinking, text and tool_use.
    #[schema(value_type = Vec<Object>)]
    pub content: Vec<Value>,
    /// end_turn, max_tokens, stop_sequence or tool_use.
    pub stop_reason: Option<&'static str>,
    pub stop_sequence: Option<String>,
    /// `{type: repetition}` where the loop guard ended the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub stop_details: Option<Value>,
    pub usage: MessageUsage,
}

/// Tokens; the prompt is the sum of the three kinds of input.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, ToSchema)]
pub struct MessageUsage {
    pub input_tokens: usize,
    pub cache_creation_input_tokens: usize,
    pub cache_read_input_tokens: usize,
    pub output_tokens: usize,
    pub output_tokens_details: ThinkingTokens,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, ToSchema)]
pub struct ThinkingTokens {
    /// Of the answer's tokens, those of the thinking.
    pub thinking_tokens: usize,
}

#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub struct TokenCount {
    pub input_tokens: usize,
}
