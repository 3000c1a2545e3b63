//! What the server has done so far, for Prometheus and for people.

use crate::app::App;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use utoipa::ToSchema;

pub fn metrics(app: &App) -> Response {
    let page = app.metrics.render(&app.session, &app.queue, app.streams.detached(), &app.model);
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], page).into_response()
}

/// A snapshot, for `martlet stats`.
#[derive(Debug, Serialize, ToSchema)]
pub struct ServerStats {
    pub version: &'static str,
    pub model: String,
    pub aliases: Vec<String>,
    pub architecture: String,
    pub device: &'static str,
    pub uptime_s: u64,
    /// Tokens of the longest sequence.
    pub context: usize,
    /// Sequences at a time.
    pub sequences: usize,
    pub connections: i64,
    pub requests: Requests,
    /// Turns by how they ended.
    #[schema(value_type = Object)]
    pub finished: BTreeMap<&'static str, u64>,
    #[schema(value_type = Object)]
    pub tokens: Value,
    #[schema(value_type = Object)]
    pub cache: Value,
    #[schema(value_type = Object)]
    pub drafts: Value,
    #[schema(value_type = Object)]
    pub memory: Value,
    #[schema(value_type = Object)]
    pub stored_responses: Value,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct Requests {
    /// Turns that run or wait, and as many as may.
    pub turns: usize,
    pub limit: usize,
    pub engine_running: usize,
    pub engine_waiting: usize,
    pub streams_detached: usize,
}

pub fn stats(app: &App) -> ServerStats {
    let (session, stats) = (&app.session, app.session.stats());
    let plan = session.plan();
    let (stored, stored_bytes) = app.store.size();
    ServerStats {
        version: env!("CARGO_PKG_VERSION"),
        model: app.model.clone(),
        aliases: app.options.aliases.clone(),
        architecture: session.spec().model_type.to_string(),
        device: session.device(),
        uptime_s: app.started.elapsed().as_secs(),
        context: session.context(),
        sequences: plan.sequences,
        connections: app.metrics.connections.value(),
        requests: Requests {
            turns: app.queue.taken(),
            limit: app.options.limits.requests,
            engine_running: stats.running,
            engine_waiting: stats.waiting,
            streams_detached: app.streams.detached(),
        },
        finished: app.metrics.finished(),
        tokens: json!({
            "prompt": stats.prompt_tokens,
            "cached": stats.cached_tokens,
            "generated": stats.generated_tokens,
        }),
        cache: json!({
            "entries": stats.cache.entries,
            "state_bytes": stats.cache.state_bytes,
            "memory_hits": stats.cache.memory_hits,
            "disk_hits": stats.cache.disk_hits,
            "misses": stats.cache.misses,
            "evicted": stats.cache.evicted,
            "pages": stats.pages,
            "pages_limit": stats.pages_limit,
        }),
        drafts: json!({
            "drafted": stats.mtp.drafted + stats.suffix.drafted,
            "accepted": stats.mtp.accepted + stats.suffix.accepted,
        }),
        memory: json!({"budget": plan.memory, "weights": plan.weights, "pool": plan.pool}),
        stored_responses: json!({"count": stored, "bytes": stored_bytes}),
    }
}
