//! What goes over the wire.

use crate::openai::sampled::sampled_request;
use crate::usage::Usage;
use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

sampled_request! {
    /// A request to go on from a text. Fields that are not listed are accepted, and named in the response's header
    /// `x-martlet-warning`.
    pub struct CompletionsRequest {
        /// A text, texts, token ids, or lists of token ids.
        #[schema(value_type = Object)]
        pub prompt: Value,
        /// Default: 16, as OpenAI has it; negative: until the end of the answer or of the context.
        pub max_tokens: Option<i64>,
        /// Most probable tokens to report with each.
        #[schema(minimum = 0, maximum = 20)]
        pub logprobs: Option<i64>,
        /// The prompt before the answer.
        pub echo: Option<bool>,
        #[schema(ignore)]
        pub suffix: Option<String>,
        #[schema(ignore)]
        pub best_of: Option<i64>,
    }
}

/// The answers.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Completion {
    pub id: String,
    /// `text_completion`
    pub object: &'static str,
    pub created: u64,
    pub model: String,
    pub choices: Vec<CompletionChoice>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Option<Usage>>,
}

#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct CompletionChoice {
    pub index: usize,
    pub text: String,
    pub logprobs: Option<TextLogprobs>,
    /// stop or length.
    pub finish_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_reason: Option<String>,
}

/// Lists with an entry for each token.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub struct TextLogprobs {
    pub tokens: Vec<String>,
    pub token_logprobs: Vec<f32>,
    #[schema(value_type = Vec<Object>)]
    pub top_logprobs: Vec<Map<String, Value>>,
    /// Where each token begins in the text, in characters.
    pub text_offset: Vec<usize>,
}
