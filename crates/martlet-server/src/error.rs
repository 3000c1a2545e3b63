//! Errors as both APIs send them; the one place that knows statuses.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use martlet_chat::{ChatModelError, ConversationError, GrammarError, TemplateError};
use martlet_session::{EngineError, Refused, SessionError};
use serde_json::{Map, Value, json};

/// Whose error objects a request expects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    OpenAi,
    Anthropic,
}

impl Style {
    /// By the path of a request.
    pub fn of(path: &str) -> Style {
        if path.starts_with("/v1/messages") { Style::Anthropic } else { Style::OpenAi }
    }
}

/// Where a request has what only its turn can find impossible, by JSON path.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Fields {
    /// The conversation or text.
    pub prompt: &'static str,
    /// The form of the answer.
    pub form: String,
    /// The schema of each tool that is declared.
    pub schemas: Vec<String>,
}

/// A request that is not answered as asked.
#[derive(Clone, Debug, PartialEq)]
pub struct ApiError {
    pub status: StatusCode,
    /// For programs, such as `context_length_exceeded`.
    pub code: &'static str,
    pub message: String,
    /// JSON path of the field that is to blame.
    pub param: Option<String>,
    /// Seconds after which to try again.
    pub retry_after: Option<u64>,
    /// Numbers of the message, for programs.
    pub numbers: Vec<(&'static str, usize)>,
}

impl ApiError {
    pub fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> ApiError {
        ApiError { status, code, message: message.into(), param: None, retry_after: None, numbers: Vec::new() }
    }

    /// 400 for a field, by its JSON path.
    pub fn field(path: impl Into<String>, message: impl Into<String>) -> ApiError {
        let path = path.into();
        let message = format!("{path}: {}", message.into());
        ApiError { param: Some(path), ..ApiError::bad_request("invalid_value", message) }
    }

    /// 400 for a field that is known, and can not be honoured here.
    pub fn unsupported(path: impl Into<String>, message: impl Into<String>) -> ApiError {
        ApiError { code: "unsupported_value", ..ApiError::field(path, message) }
    }

    pub fn bad_request(code: &'static str, message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::BAD_REQUEST, code, message)
    }

    pub fn not_found(code: &'static str, message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::NOT_FOUND, code, message)
    }

    pub fn busy(message: impl Into<String>, retry_after: u64) -> ApiError {
        let error = ApiError::new(StatusCode::TOO_MANY_REQUESTS, "queue_full", message);
        ApiError { retry_after: Some(retry_after), ..error }
    }

    pub fn internal(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal_error", message)
    }

    /// The error's word for its status.
    fn kind(&self, style: Style) -> &'static str {
        match (style, self.status.as_u16()) {
            (_, 401) => "authentication_error",
            (_, 403) => "permission_error",
            (Style::Anthropic, 404) => "not_found_error",
            (Style::Anthropic, 413) => "request_too_large",
            (_, 429) => "rate_limit_error",
            (Style::Anthropic, 503) => "overloaded_error",
            (Style::Anthropic, 500..) => "api_error",
            (Style::OpenAi, 500..) => "server_error",
            _ => "invalid_request_error",
        }
    }

    /// The error object of an API.
    pub fn body(&self, style: Style) -> Value {
        let mut error = Map::new();
        error.insert("type".into(), self.kind(style).into());
        error.insert("message".into(), self.message.as_str().into());
        error.insert("param".into(), self.param.as_deref().into());
        error.insert("code".into(), self.code.into());
        error.extend(self.numbers.iter().map(|(name, n)| (name.to_string(), Value::from(*n))));
        match style {
            Style::OpenAi => json!({"error": error}),
            Style::Anthropic => json!({"type": "error", "error": error}),
        }
    }

    /// Of a turn that does not begin.
    pub fn of_turn(e: SessionError, fields: &Fields) -> ApiError {
        match e {
            SessionError::Grammar(e) => ApiError::grammar(&e, fields),
            SessionError::Refused(Refused::TooLong { .. } | Refused::Empty) => {
                ApiError { param: Some(fields.prompt.into()), ..e.into() }
            }
            e => e.into(),
        }
    }

    /// Of a form that answers can not be held to.
    fn grammar(e: &GrammarError, fields: &Fields) -> ApiError {
        let place = match e {
            GrammarError::NoTools | GrammarError::UnknownTool { .. } => "tool_choice",
            GrammarError::Tool { index, .. } => fields.schemas.get(*index).map_or("tools", String::as_str),
            _ => &fields.form,
        };
        let message = match e {
            GrammarError::Tool { message, .. } => message.clone(),
            e => e.to_string(),
        };
        let path = e.path().unwrap_or_default();
        let message = message.strip_prefix(&format!("{path}: ")).unwrap_or(&message);
        // That is how tools are declared to the model.
        let path =
            if matches!(e, GrammarError::Tool { .. }) { path.trim_start_matches("function.parameters") } else { path };
        let dot = if path.is_empty() || path.starts_with(['[', '.']) { "" } else { "." };
        ApiError::field(format!("{place}{dot}{path}"), message)
    }

    pub fn response(&self, style: Style) -> Response {
        let mut response =
            (self.status, [(header::CONTENT_TYPE, "application/json")], self.body(style).to_string()).into_response();
        let headers = response.headers_mut();
        if let Some(seconds) = self.retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response.extensions_mut().insert(Failed(self.clone()));
        response
    }
}

/// Left in a response for the access log.
#[derive(Clone)]
pub struct Failed(pub ApiError);

impl From<SessionError> for ApiError {
    fn from(e: SessionError) -> ApiError {
        let message = e.to_string();
        match e {
            SessionError::NotText { path, kind } => ApiError::unsupported(
                path,
                format!("this model has no vision: a part of type \"{kind}\" can not be read; say it in words"),
            ),
            SessionError::Refused(refused) => refused.into(),
            SessionError::TooManyStops { .. } | SessionError::EmptyStop { .. } => ApiError::field("stop", message),
            SessionError::Prompt(ChatModelError::Render(TemplateError::ReservedKey(key))) => {
                ApiError::field(format!("chat_template_kwargs.{key}"), message)
            }
            SessionError::Prompt(e @ (ChatModelError::Render(_) | ChatModelError::NoTemplate { .. })) => {
                ApiError { param: Some("messages".into()), ..ApiError::bad_request("invalid_prompt", e.to_string()) }
            }
            SessionError::Engine(EngineError::Impossible { .. }) => {
                ApiError { param: Some("logit_bias".into()), ..ApiError::bad_request("impossible", message) }
            }
            SessionError::Engine(EngineError::Memory { .. }) => {
                ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "out_of_memory", message)
            }
            SessionError::Engine(_) | SessionError::Open { .. } => ApiError::internal(message),
            _ => ApiError::bad_request("invalid_value", message),
        }
    }
}

impl From<Refused> for ApiError {
    fn from(refused: Refused) -> ApiError {
        let message = refused.to_string();
        match refused {
            Refused::TooLong { prompt, max_tokens, context } => ApiError {
                param: Some("messages".into()),
                numbers: vec![("prompt_tokens", prompt), ("max_tokens", max_tokens), ("context", context)],
                ..ApiError::bad_request("context_length_exceeded", message)
            },
            Refused::Busy { .. } => ApiError::busy(message, 5),
            Refused::Stopped => ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "engine_stopped", message),
            Refused::Param(e) => ApiError::field(e.name, message),
            Refused::Bias { token, .. } | Refused::BiasTwice { token } => {
                ApiError::field(format!("logit_bias.{token}"), message)
            }
            Refused::Token { place: "logit_bias", token, .. } => {
                ApiError::field(format!("logit_bias.{token}"), message)
            }
            Refused::Token { .. } => ApiError::field("prompt", message),
            Refused::NoTokens => ApiError::field("max_tokens", message),
            Refused::Empty => ApiError::field("prompt", message),
            _ => ApiError::bad_request("invalid_value", message),
        }
    }
}

impl From<ConversationError> for ApiError {
    fn from(e: ConversationError) -> ApiError {
        let message = e.to_string();
        let param = match e {
            ConversationError::WrongType { path, .. } | ConversationError::UnknownRole { path, .. } => Some(path),
            ConversationError::MissingKey { path, key } => Some(format!("{path}.{key}")),
            _ => Some("messages".into()),
        };
        ApiError { param, ..ApiError::bad_request("invalid_value", message) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_turn_refuses_is_named_where_the_request_has_it() {
        let fields = Fields {
            prompt: "input",
            form: "text.format.schema".into(),
            schemas: vec!["tools[2].input_schema".into()],
        };
        let of = |e: SessionError| {
            let error = ApiError::of_turn(e, &fields);
            (error.param.unwrap(), error.message)
        };
        let grammar = |e: GrammarError| of(SessionError::Grammar(e));
        let named = |path: &str, message: &str| (path.to_string(), format!("{path}: {message}"));
        let (path, message) = ("properties.a.not".to_string(), "no".to_string());
        let schema = GrammarError::Schema { path: path.clone(), message: message.clone() };
        assert_eq!(grammar(schema), named("text.format.schema.properties.a.not", "no"));
        let tool = GrammarError::Tool { index: 0, path: format!("function.parameters.{path}"), message };
        assert_eq!(grammar(tool), named("tools[2].input_schema.properties.a.not", "no"));
        assert_eq!(grammar(GrammarError::NoTools).0, "tool_choice");
        let refused = |e: Refused| of(e.into()).0;
        assert_eq!(refused(Refused::TooLong { prompt: 9, max_tokens: 1, context: 8 }), "input");
        let token = Refused::Token { place: "logit_bias", token: 9999, vocabulary: 8 };
        assert_eq!(
            (refused(token), refused(Refused::BiasTwice { token: 3 })),
            ("logit_bias.9999".into(), "logit_bias.3".into())
        );
    }

    #[test]
    fn both_apis_get_their_own_objects() {
        let refused = Refused::TooLong { prompt: 36_000, max_tokens: 1, context: 32_768 };
        let error = ApiError::from(SessionError::from(refused.clone()));
        assert_eq!(error.status, 400);
        let body = error.body(Style::OpenAi);
        assert_eq!(body["error"]["code"], "context_length_exceeded");
        assert_eq!((&body["error"]["prompt_tokens"], &body["error"]["context"]), (&json!(36_000), &json!(32_768)));
        assert_eq!(body["error"]["message"], refused.to_string());
        let body = error.body(Style::Anthropic);
        assert_eq!((&body["type"], &body["error"]["type"]), (&json!("error"), &json!("invalid_request_error")));
        let kinds = [400, 401, 403, 404, 413, 429, 500, 503].map(|status| {
            let error = ApiError::new(StatusCode::from_u16(status).unwrap(), "x", "y");
            (error.kind(Style::OpenAi), error.kind(Style::Anthropic))
        });
        assert_eq!(kinds[3], ("invalid_request_error", "not_found_error"));
        assert_eq!(kinds[5], ("rate_limit_error", "rate_limit_error"));
        assert_eq!(kinds[6], ("server_error", "api_error"));
        assert_eq!(kinds[7], ("server_error", "overloaded_error"));
    }
}
