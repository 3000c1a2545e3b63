//! What goes over the wire.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

/// A request for a response. Fields that are not listed are accepted, and named in the response's header
/// `x-martlet-warning`.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub struct ResponsesRequest {
    /// A model of `/v1/models`; without it, the server's own.
    pub model: Option<String>,
    /// A text, or items: messages, reasoning, function_call, function_call_output, custom_tool_call,
    /// custom_tool_call_output, item_reference.
    #[schema(value_type = Object)]
    pub input: Option<Value>,
    /// A system message that is not stored.
    pub instructions: Option<String>,
    /// Goes on from a stored response.
    pub previous_response_id: Option<String>,
    /// Keep the response for a time (default: yes).
    pub store: Option<bool>,
    pub stream: Option<bool>,
    /// `reasoning.encrypted_content` and `message.output_text.logprobs` have a meaning here.
    pub include: Option<Vec<String>>,
    #[schema(value_type = Option<Vec<Object>>)]
    pub tools: Option<Value>,
    #[schema(value_type = Option<Object>)]
    pub tool_choice: Option<Value>,
    pub parallel_tool_calls: Option<bool>,
    /// Most tokens of the answer, thinking included.
    pub max_output_tokens: Option<i64>,
    #[schema(minimum = 0, maximum = 100)]
    pub temperature: Option<f32>,
    #[schema(minimum = 0, maximum = 1)]
    pub top_p: Option<f32>,
    #[schema(minimum = 0, maximum = 20)]
    pub top_logprobs: Option<i64>,
    /// `{format: {type: text | json_object | json_schema | regex | lark | choice}}`.
    pub text: Option<TextOptions>,
    /// `{effort, summary}`; with a summary the thinking comes as one.
    pub reasoning: Option<ReasoningOptions>,
    /// disabled; auto is taken as that too, since nothing is ever cut silently.
    pub truncation: Option<String>,
    #[schema(ignore)]
    pub background: Option<bool>,
    #[schema(ignore)]
    pub conversation: Option<Value>,
    #[schema(ignore)]
    pub prompt: Option<Value>,
    #[schema(value_type = Option<Object>)]
    pub metadata: Option<Value>,
    /// The same seed gives the same text.
    pub seed: Option<i64>,
    /// A string, or up to 16 of them.
    #[schema(value_type = Option<Object>)]
    pub stop: Option<Value>,
}

#[derive(Clone, Debug, Deserialize, ToSchema)]
pub struct TextOptions {
    #[schema(value_type = Option<Object>)]
    pub format: Option<Value>,
}

#[derive(Clone, Debug, Deserialize, ToSchema)]
pub struct ReasoningOptions {
    /// none, minimal, low, medium, high, xhigh or max.
    pub effort: Option<String>,
    /// auto, concise or detailed.
    pub summary: Option<String>,
    /// Most tokens of thinking.
    pub max_tokens: Option<i64>,
}

/// A response.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ResponsesResponse {
    pub id: String,
    /// `response`
    pub object: &'static str,
    pub created_at: u64,
    /// in_progress, completed, incomplete or failed.
    pub status: &'static str,
    pub background: bool,
    #[schema(value_type = Option<Object>)]
    pub error: Option<Value>,
    #[schema(value_type = Option<Object>)]
    pub incomplete_details: Option<Value>,
    pub instructions: Option<String>,
    pub max_output_tokens: Option<i64>,
    pub model: String,
    /// Items: reasoning, message, function_call, custom_tool_call.
    #[schema(value_type = Vec<Object>)]
    pub output: Vec<Value>,
    pub parallel_tool_calls: bool,
    pub previous_response_id: Option<String>,
    #[schema(value_type = Object)]
    pub reasoning: Value,
    pub store: bool,
    pub temperature: Option<f32>,
    #[schema(value_type = Object)]
    pub text: Value,
    #[schema(value_type = Object)]
    pub tool_choice: Value,
    #[schema(value_type = Vec<Object>)]
    pub tools: Value,
    pub top_logprobs: i64,
    pub top_p: Option<f32>,
    pub truncation: &'static str,
    pub usage: Option<ResponsesUsage>,
    #[schema(value_type = Object)]
    pub metadata: Value,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, ToSchema)]
pub struct ResponsesUsage {
    pub input_tokens: usize,
    pub input_tokens_details: InputDetails,
    pub output_tokens: usize,
    pub output_tokens_details: OutputDetails,
    pub total_tokens: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, ToSchema)]
pub struct InputDetails {
    pub cached_tokens: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, ToSchema)]
pub struct OutputDetails {
    pub reasoning_tokens: usize,
}
