//! The description of the API for programs.

use crate::anthropic::messages::{Message, MessagesRequest, TokenCount};
use crate::health::Health;
use crate::metadata::ServerStats;
use crate::models::{ModelInfo, ModelList};
use crate::openai::chat::{ChatChunk, ChatCompletion, ChatRequest};
use crate::openai::completions::{Completion, CompletionsRequest};
use crate::openai::responses::{ResponsesRequest, ResponsesResponse};
use crate::tokenize::{DetokenizeRequest, Detokenized, TokenizeRequest, Tokens};
use crate::tokens::TopLogprob;
use serde::Serialize;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::{Modify, OpenApi, ToSchema};

/// What goes wrong, in the form of OpenAI.
#[derive(Serialize, ToSchema)]
pub struct ErrorBody {
    error: ErrorObject,
}

/// What goes wrong, in the form of Anthropic.
#[derive(Serialize, ToSchema)]
pub struct AnthropicError {
    /// `error`
    r#type: String,
    error: ErrorObject,
}

#[derive(Serialize, ToSchema)]
pub struct ErrorObject {
    r#type: String,
    message: String,
    /// JSON path of the field that is to blame.
    param: Option<String>,
    code: String,
}

struct Keys;

impl Modify for Keys {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build();
        let components = document.components.get_or_insert_default();
        components.add_security_scheme("key", SecurityScheme::Http(bearer));
    }
}

#[derive(OpenApi)]
#[openapi(
    info(title = "martlet", description = "Local inference with the APIs of OpenAI and Anthropic"),
    paths(
        chat,
        responses,
        response,
        response_deletion,
        response_cancellation,
        response_input,
        completions,
        messages,
        count_tokens,
        models,
        model,
        tokenize,
        detokenize,
        health,
        ready,
        metrics,
        stats
    ),
    components(schemas(ChatChunk<'_>, ErrorBody, AnthropicError, TopLogprob)),
    modifiers(&Keys),
    security((), ("key" = []))
)]
struct Document;

pub fn document() -> utoipa::openapi::OpenApi {
    Document::openapi()
}

/// The answers that every route with a body may give.
macro_rules! errors {
    ($($name:ident: $error:ty),*) => {$(
        #[derive(utoipa::IntoResponses)]
        #[allow(dead_code, reason = "only its description is used")]
        enum $name {
            /// The request can not be answered as it is.
            #[response(status = 400)]
            BadRequest($error),
            /// A key is missing, or not known.
            #[response(status = 401)]
            Unauthorized($error),
            /// Under this name, or from this page, the server may not be used.
            #[response(status = 403)]
            Forbidden($error),
            /// The model is not loaded, or what is asked for is not there.
            #[response(status = 404)]
            NotFound($error),
            /// There is no such method here.
            #[response(status = 405)]
            MethodNotAllowed($error),
            /// The body did not come in time.
            #[response(status = 408)]
            Timeout($error),
            /// A script has no answer left.
            #[response(status = 409)]
            Conflict($error),
            /// The body is too large.
            #[response(status = 413)]
            TooLarge($error),
            /// The body is no JSON.
            #[response(status = 415)]
            MediaType($error),
            /// As many requests run and wait as may: see retry-after.
            #[response(status = 429)]
            Busy($error),
            /// The server failed.
            #[response(status = 500)]
            Failed($error),
            /// The server ends, or has no memory left.
            #[response(status = 503)]
            Unavailable($error),
        }
    )*};
}
errors!(Errors: ErrorBody, AnthropicErrors: AnthropicError);

/// An answer to a conversation.
#[utoipa::path(post, path = "/v1/chat/completions", tag = "openai", request_body = ChatRequest,
    responses((status = 200, content((ChatCompletion = "application/json"), (String = "text/event-stream"))), Errors))]
#[allow(dead_code, reason = "only its description is used")]
fn chat() {}

/// A response to items.
#[utoipa::path(post, path = "/v1/responses", tag = "openai", request_body = ResponsesRequest,
    responses((status = 200, content((ResponsesResponse = "application/json"), (String = "text/event-stream"))), Errors))]
#[allow(dead_code, reason = "only its description is used")]
fn responses() {}

/// A stored response.
#[utoipa::path(get, path = "/v1/responses/{id}", tag = "openai", params(("id" = String, Path)),
    responses((status = 200, body = ResponsesResponse), Errors))]
#[allow(dead_code, reason = "only its description is used")]
fn response() {}

/// Forgets a stored response.
#[utoipa::path(delete, path = "/v1/responses/{id}", tag = "openai", params(("id" = String, Path)),
    responses((status = 200, body = Object), Errors))]
#[allow(dead_code, reason = "only its description is used")]
fn response_deletion() {}

/// Ends an answer whose stream is kept without a reader (`x-martlet-resume`), by the id of whichever API.
#[utoipa::path(post, path = "/v1/responses/{id}/cancel", tag = "openai", params(("id" = String, Path)),
    responses((status = 200, body = Object), Errors))]
#[allow(dead_code, reason = "only its description is used")]
fn response_cancellation() {}

/// What a stored response was an answer to.
#[utoipa::path(get, path = "/v1/responses/{id}/input_items", tag = "openai", params(("id" = String, Path)),
    responses((status = 200, body = Object), Errors))]
#[allow(dead_code, reason = "only its description is used")]
fn response_input() {}

/// Goes on from a text.
#[utoipa::path(post, path = "/v1/completions", tag = "openai", request_body = CompletionsRequest,
    responses((status = 200, content((Completion = "application/json"), (String = "text/event-stream"))), Errors))]
#[allow(dead_code, reason = "only its description is used")]
fn completions() {}

/// The next message of a conversation.
#[utoipa::path(post, path = "/v1/messages", tag = "anthropic", request_body = MessagesRequest,
    responses((status = 200, content((Message = "application/json"), (String = "text/event-stream"))), AnthropicErrors))]
#[allow(dead_code, reason = "only its description is used")]
fn messages() {}

/// Tokens of what a request would send.
#[utoipa::path(post, path = "/v1/messages/count_tokens", tag = "anthropic", request_body = MessagesRequest,
    responses((status = 200, body = TokenCount), AnthropicErrors))]
#[allow(dead_code, reason = "only its description is used")]
fn count_tokens() {}

/// The names of the loaded model.
#[utoipa::path(get, path = "/v1/models", tag = "openai", responses((status = 200, body = ModelList), Errors))]
#[allow(dead_code, reason = "only its description is used")]
fn models() {}

/// What a model can do.
#[utoipa::path(get, path = "/v1/models/{id}", tag = "openai", params(("id" = String, Path)),
    responses((status = 200, body = ModelInfo), Errors))]
#[allow(dead_code, reason = "only its description is used")]
fn model() {}

/// Text or messages to token ids.
#[utoipa::path(post, path = "/tokenize", tag = "martlet", request_body = TokenizeRequest,
    responses((status = 200, body = Tokens), Errors))]
#[allow(dead_code, reason = "only its description is used")]
fn tokenize() {}

/// Token ids to text.
#[utoipa::path(post, path = "/detokenize", tag = "martlet", request_body = DetokenizeRequest,
    responses((status = 200, body = Detokenized), Errors))]
#[allow(dead_code, reason = "only its description is used")]
fn detokenize() {}

/// Whether the server lives.
#[utoipa::path(get, path = "/health", tag = "martlet", responses((status = 200, body = Health), Errors))]
#[allow(dead_code, reason = "only its description is used")]
fn health() {}

/// Whether the server takes work.
#[utoipa::path(get, path = "/ready", tag = "martlet", responses((status = 200, body = Health), Errors))]
#[allow(dead_code, reason = "only its description is used")]
fn ready() {}

/// Counters, for Prometheus.
#[utoipa::path(get, path = "/metrics", tag = "martlet",
    responses((status = 200, body = String, content_type = "text/plain"), Errors))]
#[allow(dead_code, reason = "only its description is used")]
fn metrics() {}

/// What the server has done so far.
#[utoipa::path(get, path = "/stats", tag = "martlet", responses((status = 200, body = ServerStats), Errors))]
#[allow(dead_code, reason = "only its description is used")]
fn stats() {}

#[cfg(test)]
mod tests {
    #[test]
    fn the_document_describes_the_routes() {
        let document = serde_json::to_value(super::document()).unwrap();
        let routes = include_str!("routes.rs");
        let paths = document["paths"].as_object().unwrap();
        for path in paths.keys().map(|p| p.replace("/v1/models/{id}", "/v1/models/{*id}")) {
            assert!(routes.contains(&format!("\"{path}\"")), "{path} is described, and no route");
        }
        let described = |path: &str| paths.contains_key(path) || path == "/v1/models/{*id}";
        let routed = routes.split(".route(\"").skip(1).filter_map(|rest| rest.split('"').next());
        for path in routed.filter(|p| !["/", "/page/{name}", "/openapi.json"].contains(p)) {
            assert!(described(path), "{path} is a route, and not described");
        }
        let text = document.to_string();
        for name in text.split("\"#/components/schemas/").skip(1).filter_map(|rest| rest.split('"').next()) {
            assert!(document["components"]["schemas"][name].is_object(), "{name} is pointed at, and not there");
        }
        let chat = &document["components"]["schemas"]["ChatRequest"]["properties"];
        assert!(chat["messages"].is_object() && chat["audio"].is_null(), "{chat}");
    }
}
