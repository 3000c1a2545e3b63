//! What the server has done so far, for Prometheus and for people.

use crate::app::App;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;

pub fn metrics(app: &App) -> Response {
    let page = app.metrics.render(&app.session, &app.queue, app.streams.detached(), &app.model);
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], page).into_response()
}

/// A snapshot, as `GET /stats` gives it and `martlet stats` reads it.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize, ToSchema)]
pub struct ServerStats {
    /// Of martlet.
    pub version: String,
    /// The model's name for clients.
    pub model: String,
    /// Its further names.
    pub aliases: Vec<String>,
    /// The checkpoint's `model_type`.
    pub architecture: String,
    /// What computes.
    pub device: String,
    /// Seconds since the server began.
    pub uptime_s: u64,
    /// Tokens of the longest sequence.
    pub context: usize,
    /// Sequences at a time.
    pub sequences: usize,
    /// Open connections, the one that asked included.
    pub connections: i64,
    /// Turns on their way.
    pub requests: RequestStats,
    /// Turns by how they ended.
    pub finished: BTreeMap<String, u64>,
    /// Tokens so far.
    pub tokens: TokenStats,
    /// The prefix cache, and the KV pages that it shares with sequences.
    pub cache: CacheStats,
    /// Guesses so far.
    pub drafts: DraftStats,
    /// The budget.
    pub memory: MemoryStats,
    /// Responses that clients may come back to.
    pub stored_responses: StoreStats,
}

/// Turns on their way.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize, ToSchema)]
pub struct RequestStats {
    /// Turns that run or wait.
    pub turns: usize,
    /// As many as may.
    pub limit: usize,
    /// Sequences that the engine computes.
    pub engine_running: usize,
    /// Sequences that wait for it.
    pub engine_waiting: usize,
    /// Streams that lost their reader and go on.
    pub streams_detached: usize,
}

/// Tokens so far.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize, ToSchema)]
pub struct TokenStats {
    /// Of prompts, computed.
    pub prompt: u64,
    /// Of prompts, taken from the cache.
    pub cached: u64,
    /// Of answers.
    pub generated: u64,
}

/// The prefix cache, and KV pages.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize, ToSchema)]
pub struct CacheStats {
    /// States in memory.
    pub entries: usize,
    /// Bytes of their recurrent part.
    pub state_bytes: u64,
    /// Prompts whose beginning was in memory.
    pub memory_hits: u64,
    /// Prompts whose beginning was on disk.
    pub disk_hits: u64,
    /// Prompts that found nothing.
    pub misses: u64,
    /// States that made room.
    pub evicted: u64,
    /// KV pages in use, by sequences and the cache.
    pub pages: usize,
    /// As many as may be.
    pub pages_limit: usize,
}

/// Guesses so far.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize, ToSchema)]
pub struct DraftStats {
    /// Tokens that were checked.
    pub drafted: u64,
    /// Those that were right.
    pub accepted: u64,
}

/// Bytes.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize, ToSchema)]
pub struct MemoryStats {
    /// All that may be used; `null` where nobody knows how much there is.
    pub budget: Option<u64>,
    /// Of it, weights.
    pub weights: u64,
    /// Of it, keys, values and kept states.
    pub pool: Option<u64>,
}

/// Responses that clients may come back to.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize, ToSchema)]
pub struct StoreStats {
    /// How many.
    pub count: usize,
    /// Their bytes.
    pub bytes: usize,
}

pub fn stats(app: &App) -> ServerStats {
    let (session, stats) = (&app.session, app.session.stats());
    let plan = session.plan();
    let (stored, stored_bytes) = app.store.size();
    ServerStats {
        version: env!("CARGO_PKG_VERSION").to_string(),
        model: app.model.clone(),
        aliases: app.options.aliases.clone(),
        architecture: session.spec().model_type.to_string(),
        device: session.device().to_string(),
        uptime_s: app.started.elapsed().as_secs(),
        context: session.context(),
        sequences: plan.sequences,
        connections: app.metrics.connections.value(),
        requests: RequestStats {
            turns: app.queue.taken(),
            limit: app.options.limits.requests,
            engine_running: stats.running,
            engine_waiting: stats.waiting,
            streams_detached: app.streams.detached(),
        },
        finished: app.metrics.finished().into_iter().map(|(reason, n)| (reason.to_string(), n)).collect(),
        tokens: TokenStats {
            prompt: stats.prompt_tokens,
            cached: stats.cached_tokens,
            generated: stats.generated_tokens,
        },
        cache: CacheStats {
            entries: stats.cache.entries,
            state_bytes: stats.cache.state_bytes,
            memory_hits: stats.cache.memory_hits,
            disk_hits: stats.cache.disk_hits,
            misses: stats.cache.misses,
            evicted: stats.cache.evicted,
            pages: stats.pages,
            pages_limit: stats.pages_limit,
        },
        drafts: DraftStats {
            drafted: stats.mtp.drafted + stats.suffix.drafted,
            accepted: stats.mtp.accepted + stats.suffix.accepted,
        },
        memory: MemoryStats { budget: plan.memory, weights: plan.weights, pool: plan.pool },
        stored_responses: StoreStats { count: stored, bytes: stored_bytes },
    }
}
