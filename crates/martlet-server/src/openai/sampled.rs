//! What completions and chat completions ask for in the same words.

/// A request with fields of its own and those that both have; `turn_options` is what the latter mean.
macro_rules! sampled_request {
    ($(#[$about:meta])* pub struct $name:ident { $($own:tt)* }) => {
        $(#[$about])*
        #[derive(Clone, Debug, serde::Deserialize, utoipa::ToSchema)]
        pub struct $name {
            /// A model of `/v1/models`; without it, the server's own.
            pub model: Option<String>,
            $($own)*
            pub stream: Option<bool>,
            pub stream_options: Option<$crate::openai::chat::StreamOptions>,
            /// 0 is greedy.
            #[schema(minimum = 0, maximum = 100)]
            pub temperature: Option<f32>,
            #[schema(minimum = 0, maximum = 1)]
            pub top_p: Option<f32>,
            /// 0 and -1: off.
            pub top_k: Option<i64>,
            #[schema(minimum = 0, maximum = 1)]
            pub min_p: Option<f32>,
            pub presence_penalty: Option<f32>,
            pub frequency_penalty: Option<f32>,
            pub repetition_penalty: Option<f32>,
            /// The same seed gives the same text.
            pub seed: Option<i64>,
            /// Token ids and what is added to their logits, from -100 to 100.
            #[schema(value_type = Option<Object>)]
            pub logit_bias: Option<serde_json::Map<String, serde_json::Value>>,
            /// A string, or up to 16 of them.
            #[schema(value_type = Option<Object>)]
            pub stop: Option<serde_json::Value>,
            /// Answers to each prompt.
            #[schema(minimum = 1)]
            pub n: Option<i64>,
            /// text, json_object, json_schema; and regex, lark, choice.
            #[schema(value_type = Option<Object>)]
            pub response_format: Option<serde_json::Value>,
            /// As vLLM has it: json, regex, choice or grammar.
            #[schema(value_type = Option<Object>)]
            pub structured_outputs: Option<serde_json::Value>,
            /// Go on when the model ends its answer.
            pub ignore_eos: Option<bool>,
        }

        impl $name {
            /// What both kinds of request say of a turn; formats apart.
            pub fn turn_options(&self) -> Result<martlet_session::TurnOptions, $crate::error::ApiError> {
                use $crate::ask;
                Ok(martlet_session::TurnOptions {
                    sampling: martlet_session::Sampling {
                        temperature: self.temperature,
                        top_k: ask::top_k(self.top_k)?,
                        top_p: ask::top_p(self.top_p),
                        min_p: self.min_p,
                        repetition_penalty: self.repetition_penalty,
                        presence_penalty: self.presence_penalty,
                        frequency_penalty: self.frequency_penalty,
                        seed: self.seed.map(|seed| seed as u64),
                    },
                    ignore_eos: self.ignore_eos.unwrap_or(false),
                    stop: ask::stops(self.stop.as_ref(), "stop")?,
                    logit_bias: ask::bias(self.logit_bias.as_ref(), "logit_bias")?,
                    ..Default::default()
                })
            }

            /// `response_format` or `structured_outputs`.
            pub fn format(&self) -> Result<Option<martlet_session::Format>, $crate::error::ApiError> {
                use $crate::ask;
                let usual = self.response_format.as_ref().map(|f| ask::format(f, "response_format"));
                let other = self.structured_outputs.as_ref().map(|f| ask::structured(f, "structured_outputs"));
                match (usual.transpose()?.flatten(), other.transpose()?.flatten()) {
                    (Some(_), Some(_)) => Err($crate::error::ApiError::field(
                        "structured_outputs",
                        "response_format asks for a format already",
                    )),
                    (usual, other) => Ok(usual.or(other)),
                }
            }
        }
    };
}
pub(super) use sampled_request;
