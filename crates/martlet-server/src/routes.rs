//! Every route, on one page.

use crate::app::{App, Caller};
use crate::auth::{Client, Door};
use crate::error::{ApiError, Failed, Style};
use crate::generate::{self, Job, Logged, Task};
use crate::log::Line;
use crate::resume::Reader;
use crate::{anthropic, health, json, metadata, models, openai, openapi, page, tokenize};
use axum::extract::rejection::PathRejection;
use axum::extract::{MatchedPath, Path, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use axum::{Extension, Router};
use futures_util::future::FutureExt;
use serde::Serialize;
use serde_json::{Map, Value};
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Instant;

type Shared = State<Arc<App>>;
type Route = MethodRouter<Arc<App>>;
type Named = Result<Path<String>, PathRejection>;
/// Reads a request for what a model knows without computing.
type Read<T> = fn(&App, &Map<String, Value>) -> Result<Task<T>, ApiError>;
/// Reads a request into what is to be done.
type ReadJob = fn(&App, &Caller, &Map<String, Value>) -> Result<Job, ApiError>;

/// The server's whole face.
pub fn router(app: Arc<App>) -> Router {
    Router::new()
        // OpenAI
        .route("/v1/chat/completions", generation(openai::chat::ENDPOINT, openai::chat::job))
        .route("/v1/responses", generation(openai::responses::ENDPOINT, openai::responses::job))
        .route("/v1/responses/{id}", get(by_id(openai::responses::get)).delete(by_id(openai::responses::delete)))
        .route("/v1/responses/{id}/cancel", post(by_id(openai::responses::cancel)))
        .route("/v1/responses/{id}/input_items", get(by_id(openai::responses::input_items)))
        .route("/v1/completions", generation(openai::completions::ENDPOINT, openai::completions::job))
        .route("/v1/models", get(async |State(app): Shared| shown(&models::list(&app))))
        .route(
            "/v1/models/{*id}",
            get(async |State(app): Shared, id: Named| found(name(id).and_then(|id| models::get(&app, &id)))),
        )
        // Anthropic
        .route("/v1/messages", generation(anthropic::messages::ENDPOINT, anthropic::messages::job))
        .route("/v1/messages/count_tokens", reading(anthropic::messages::count_tokens))
        // Ours, in the words of vLLM and of routers
        .route("/tokenize", reading(tokenize::tokenize))
        .route("/detokenize", reading(tokenize::detokenize))
        .route("/health", get(async |State(app): Shared| shown(&health::health(&app))))
        .route("/ready", get(async |State(app): Shared| found(health::ready(&app))))
        .route("/metrics", get(async |State(app): Shared| metadata::metrics(&app)))
        .route("/stats", get(async |State(app): Shared| shown(&metadata::stats(&app))))
        .route("/openapi.json", get(async || shown(&openapi::document())))
        .route("/", get(page::index))
        .route("/page/{name}", get(page::file))
        .fallback(async |request: Request| {
            let message = format!("there is nothing at {} {}", request.method(), request.uri().path());
            ApiError::not_found("not_found", message).response(Style::of(request.uri().path()))
        })
        .method_not_allowed_fallback(async |request: Request| {
            let message = format!("{} can not be asked with {}", request.uri().path(), request.method());
            let error = ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message);
            error.response(Style::of(request.uri().path()))
        })
        .layer(middleware::from_fn_with_state(app.clone(), at_the_door))
        .with_state(app)
}

/// A route that generates: a body of JSON in, one response or a stream out; or a stream that was dropped goes on.
fn generation(endpoint: &'static str, read: ReadJob) -> Route {
    post(async move |State(app): Shared, request: Request| {
        let style = Style::of(request.uri().path());
        let (mut parts, body) = request.into_parts();
        let caller = parts.extensions.remove::<Caller>().unwrap_or_default();
        let answer = async {
            let mut body = app.bodies.json(&parts.headers, body).await?;
            let (app, who) = (app.clone(), caller.clone());
            let reads = app.clone();
            let asked = at_leisure(move || {
                let body = reads.bodies.object(&mut body)?;
                match resumed(&reads, &who, endpoint, &body)? {
                    Some(reader) => Ok(Asked::Again(reader)),
                    None => read(&reads, &who, &body).map(|job| Asked::New(Box::new(job))),
                }
            });
            match asked.await? {
                Asked::Again(reader) => Ok(generate::stream_response(&app, style, reader)),
                Asked::New(job) => generate::answer(&app, &caller, *job).await,
            }
        };
        answer.await.unwrap_or_else(|e| e.response(style))
    })
}

/// What a request to generate is.
enum Asked {
    New(Box<Job>),
    /// Goes on with a stream.
    Again(Reader),
}

/// A route that reads JSON and answers as soon as the model is there; the work is done where it may take its time.
fn reading<T: Serialize + Send + 'static>(handle: Read<T>) -> Route {
    post(async move |State(app): Shared, request: Request| {
        let style = Style::of(request.uri().path());
        let (parts, body) = request.into_parts();
        let answer = async {
            let mut body = app.bodies.json(&parts.headers, body).await?;
            let reads = app.clone();
            let Task { model, work } = at_leisure(move || handle(&reads, &reads.bodies.object(&mut body)?)).await?;
            let lease = app.models.lease(&model).await?;
            at_leisure(move || work(&lease.model.session)).await
        };
        match answer.await {
            Ok((value, warnings)) => {
                let mut response = shown(&value);
                generate::warn(&mut response, &warnings);
                response
            }
            Err(e) => e.response(style),
        }
    })
}

/// A handler of something that a client has stored.
fn by_id(
    handle: fn(&App, &Caller, &str) -> Result<Value, ApiError>,
) -> impl Fn(Shared, Named, Extension<Caller>) -> std::future::Ready<Response> + Clone + Send + Sync + 'static {
    move |State(app), id, Extension(caller)| {
        std::future::ready(found(name(id).and_then(|id| handle(&app, &caller, &id))))
    }
}

/// The part of a path that names something.
fn name(id: Named) -> Result<String, ApiError> {
    let wrong = |e: PathRejection| ApiError::bad_request("invalid_path", e.body_text());
    id.map(|Path(id)| id).map_err(wrong)
}

/// Work that may take its time, on a thread that may.
async fn at_leisure<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let work = tokio::task::spawn_blocking(work);
    work.await.unwrap_or_else(|_| Err(ApiError::internal("the request's thread ended early")))
}

/// The stream that a request wants to go on with, by its last event or by its id.
fn resumed(
    app: &App,
    caller: &Caller,
    endpoint: &'static str,
    body: &Map<String, Value>,
) -> Result<Option<Reader>, ApiError> {
    let named = json::get(body, "resume_response_id").map(|v| json::text(v, "resume_response_id")).transpose()?;
    let last = caller.last_event.as_deref().and_then(|event| event.rsplit_once(':'));
    let (id, after) = match (named, last) {
        (Some(id), Some((of, number))) if of == id => (id, number),
        (Some(id), _) => (id, "0"),
        (None, Some((id, number))) => (id, number),
        (None, None) if caller.last_event.is_some() => {
            return Err(ApiError::field("last-event-id", "is no id of an event of this server"));
        }
        (None, None) => return Ok(None),
    };
    let after = after.parse().map_err(|_| ApiError::field("last-event-id", "ends with no number"))?;
    app.streams.resume(id, after, endpoint, &caller.client).map(Some)
}

fn shown(value: &impl Serialize) -> Response {
    match serde_json::to_string(value) {
        Ok(text) => ([(header::CONTENT_TYPE, "application/json")], text).into_response(),
        Err(e) => ApiError::internal(e.to_string()).response(Style::OpenAi),
    }
}

fn found<T: Serialize>(value: Result<T, ApiError>) -> Response {
    match value {
        Ok(value) => shown(&value),
        Err(e) => e.response(Style::OpenAi),
    }
}

/// Before and after every request: who it is, its id, its line in the log, and what pages may see.
async fn at_the_door(State(app): Shared, mut request: Request, next: Next) -> Response {
    let began = Instant::now();
    let headers = request.headers().clone();
    let (method, path) = (request.method().clone(), request.uri().path().to_string());
    let endpoint = request.extensions().get::<MatchedPath>().map_or("none", |m| known(m.as_str()));
    let request_id = app.id("req_");
    let preflight = Door::is_preflight(&method, &headers);
    let mut response = match app.door.check(request.uri(), &headers) {
        Err(e) if !(preflight && e.status == StatusCode::UNAUTHORIZED) => e.response(Style::of(&path)),
        _ if preflight => StatusCode::NO_CONTENT.into_response(),
        checked => {
            let client = checked.unwrap_or_default();
            request.extensions_mut().insert(caller(&headers, client, &request_id));
            unbroken(next.run(request)).await
        }
    };
    app.door.share(&headers, response.headers_mut(), preflight);
    if let Ok(id) = HeaderValue::from_str(&request_id) {
        response.headers_mut().insert("x-request-id", id);
    }
    response.headers_mut().insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    app.metrics.response(endpoint, response.status().as_u16());
    if response.extensions().get::<Logged>().is_none() {
        let mut line = Line::new("request")
            .add("id", &request_id)
            .add("method", &method)
            .add("path", path.chars().take(200).collect::<String>())
            .add("status", response.status().as_u16())
            .add("total_s", format!("{:.3}", began.elapsed().as_secs_f64()));
        if let Some(Failed(e)) = response.extensions().get() {
            line = line.add("code", e.code).add("message", e.message.chars().take(300).collect::<String>());
        }
        app.log.write(line);
    }
    response
}

/// A bug in a handler is an answer too, and the server goes on.
async fn unbroken(handled: impl Future<Output = Response>) -> Response {
    match AssertUnwindSafe(handled).catch_unwind().await {
        Ok(response) => response,
        Err(_) => ApiError::internal("the server has a bug: its handler broke off").response(Style::OpenAi),
    }
}

fn caller(headers: &HeaderMap, client: Client, request_id: &str) -> Caller {
    let text = |name: &HeaderName| headers.get(name).and_then(|v| v.to_str().ok()).map(str::trim);
    let ours = |name| text(&HeaderName::from_static(name));
    let resume = match ours("x-martlet-resume") {
        Some("true") => Some(120),
        Some(seconds) => seconds.parse().ok(),
        None => None,
    };
    Caller {
        client,
        request_id: request_id.to_string(),
        progress: ours("x-martlet-progress").is_some_and(|v| v != "0" && v != "false"),
        resume,
        last_event: ours("last-event-id").filter(|v| !v.is_empty()).map(str::to_string),
    }
}

/// Paths as labels of metrics: there are only so many.
fn known(path: &str) -> &'static str {
    const PATHS: [&str; 18] = [
        "/",
        "/v1/chat/completions",
        "/v1/responses",
        "/v1/responses/{id}",
        "/v1/responses/{id}/cancel",
        "/v1/responses/{id}/input_items",
        "/v1/completions",
        "/v1/messages",
        "/v1/messages/count_tokens",
        "/v1/models",
        "/tokenize",
        "/detokenize",
        "/health",
        "/ready",
        "/metrics",
        "/stats",
        "/openapi.json",
        "/v1/models/{*id}",
    ];
    PATHS.iter().find(|known| **known == path).copied().unwrap_or("other")
}
