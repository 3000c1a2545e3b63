//! What goes over the wire.

use crate::openai::sampled::sampled_request;
use crate::tokens::TokenLogprob;
use crate::usage::{Usage, UsageIn};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

sampled_request! {
    /// A request for an answer to a conversation. Fields that are not listed are accepted, and named in the response's header
    /// `x-martlet-warning`.
    pub struct ChatRequest {
        /// Roles: system, developer, user, assistant, tool. Content: a string, null, or parts of text.
        #[schema(value_type = Vec<Object>, min_items = 1)]
        pub messages: Vec<Value>,
        /// Most tokens of the answer, thinking included; negative: until its end or the context's.
        pub max_completion_tokens: Option<i64>,
        /// The older name of `max_completion_tokens`.
        pub max_tokens: Option<i64>,
        pub logprobs: Option<bool>,
        #[schema(minimum = 0, maximum = 20)]
        pub top_logprobs: Option<i64>,
        /// Functions and custom tools.
        #[schema(value_type = Option<Vec<Object>>)]
        pub tools: Option<Value>,
        /// none, auto, required, a tool, or allowed_tools.
        #[schema(value_type = Option<Object>)]
        pub tool_choice: Option<Value>,
        pub parallel_tool_calls: Option<bool>,
        /// none, minimal, low, medium, high, xhigh or max.
        pub reasoning_effort: Option<String>,
        /// `{effort, max_tokens, enabled}`.
        #[schema(value_type = Option<Object>)]
        pub reasoning: Option<Value>,
        /// `{type: enabled | disabled, budget_tokens}`.
        #[schema(value_type = Option<Object>)]
        pub thinking: Option<Value>,
        pub enable_thinking: Option<bool>,
        /// Most tokens of thinking.
        pub thinking_budget: Option<i64>,
        /// Variables for the checkpoint's template.
        #[schema(value_type = Option<Object>)]
        pub chat_template_kwargs: Option<Map<String, Value>>,
        #[schema(ignore)]
        pub modalities: Option<Vec<String>>,
        #[schema(ignore)]
        pub audio: Option<Value>,
        #[schema(ignore)]
        pub functions: Option<Value>,
        #[schema(ignore)]
        pub function_call: Option<Value>,
    }
}

#[derive(Clone, Debug, Deserialize, ToSchema)]
pub struct StreamOptions {
    /// One more chunk with the usage, before the end.
    pub include_usage: Option<bool>,
    /// The usage so far in every chunk, too.
    pub continuous_usage_stats: Option<bool>,
}

impl StreamOptions {
    pub fn usage(&self) -> UsageIn {
        match (self.include_usage, self.continuous_usage_stats) {
            (_, Some(true)) => UsageIn::EveryChunk,
            (Some(true), _) => UsageIn::LastChunk,
            _ => UsageIn::None,
        }
    }
}

/// An answer.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ChatCompletion {
    pub id: String,
    /// `chat.completion`
    pub object: &'static str,
    pub created: u64,
    pub model: String,
    pub choices: Vec<ChatChoice>,
    pub usage: Usage,
}

#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ChatChoice {
    pub index: usize,
    pub message: ChatMessage,
    pub logprobs: Option<Logprobs>,
    /// stop, length or tool_calls.
    pub finish_reason: Option<&'static str>,
    /// The stop string that ended the answer, or `repetition`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_reason: Option<String>,
}

#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub struct ChatMessage {
    pub role: &'static str,
    pub content: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    pub refusal: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<Object>)]
    pub tool_calls: Vec<Value>,
}

#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub struct Logprobs {
    pub content: Vec<TokenLogprob>,
}

/// A piece of a stream.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ChatChunk<'a> {
    pub id: &'a str,
    /// `chat.completion.chunk`
    pub object: &'static str,
    pub created: u64,
    pub model: &'a str,
    pub choices: Vec<ChunkChoice>,
    /// In the last chunk or in all, where `stream_options` asks for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Option<Usage>>,
}

#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ChunkChoice {
    pub index: usize,
    pub delta: Delta,
    pub logprobs: Option<Logprobs>,
    pub finish_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_reason: Option<String>,
}

#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub struct Delta {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<Object>)]
    pub tool_calls: Vec<Value>,
}
