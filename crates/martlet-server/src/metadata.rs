//! What the server has done so far, for Prometheus and for people.

use crate::app::App;
use crate::metrics::{View, Whole};
use crate::residence::Seen;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use martlet_session::Stats;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;

pub fn metrics(app: &App) -> Response {
    let (_, models) = app.seen();
    let whole = Whole {
        name: &app.model,
        models,
        turns: app.queue.taken(),
        detached: app.streams.detached(),
        waiting: app.models.waiting(),
    };
    let page = app.metrics.render(&whole);
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], page).into_response()
}

/// A snapshot, as `GET /stats` gives it and `martlet stats` reads it.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize, ToSchema)]
pub struct ServerStats {
    /// Of martlet.
    pub version: String,
    /// The model in memory, or the one that is being loaded, by its name for clients; empty where one could not be loaded,
    /// until the next request.
    pub model: String,
    /// Further names of the server's own model.
    pub aliases: Vec<String>,
    /// How one model takes the place of another.
    #[serde(default)]
    pub switching: SwitchStats,
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

/// How one model takes the place of another.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize, ToSchema)]
pub struct SwitchStats {
    /// Whether requests may name other models than the server's own.
    pub on: bool,
    /// The server's own model.
    pub own: String,
    /// One is being loaded.
    pub loading: bool,
    /// Requests that wait for another model than the one in memory, or behind such.
    pub waiting: usize,
    /// Models that were loaded since the server began.
    pub loads: u64,
    /// Models that could not be loaded.
    pub failures: u64,
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
    let (seen, views) = app.seen();
    let about = views.iter().find(|view| view.name == seen.name()).map(|view| view.served.about()).unwrap_or_default();
    let sum = |of: &dyn Fn(&Stats) -> u64| views.iter().map(|view| of(&view.stats)).sum::<u64>();
    let now = |of: &dyn Fn(&Stats) -> usize| views.iter().map(|view| of(&view.stats)).sum::<usize>();
    let (stored, stored_bytes) = app.store.size();
    ServerStats {
        version: env!("CARGO_PKG_VERSION").to_string(),
        model: seen.name().to_string(),
        aliases: app.options.aliases.clone(),
        switching: switching(app, &seen, &views),
        architecture: about.architecture,
        device: about.device.to_string(),
        uptime_s: app.started.elapsed().as_secs(),
        context: about.context,
        sequences: about.sequences,
        connections: app.metrics.connections.value(),
        requests: RequestStats {
            turns: app.queue.taken(),
            limit: app.options.limits.requests,
            engine_running: now(&|s| s.running),
            engine_waiting: now(&|s| s.waiting),
            streams_detached: app.streams.detached(),
        },
        finished: app.metrics.finished().into_iter().map(|(reason, n)| (reason.to_string(), n)).collect(),
        tokens: TokenStats {
            prompt: sum(&|s| s.prompt_tokens),
            cached: sum(&|s| s.cached_tokens),
            generated: sum(&|s| s.generated_tokens),
        },
        cache: CacheStats {
            entries: now(&|s| s.cache.entries),
            state_bytes: sum(&|s| s.cache.state_bytes),
            memory_hits: sum(&|s| s.cache.memory_hits),
            disk_hits: sum(&|s| s.cache.disk_hits),
            misses: sum(&|s| s.cache.misses),
            evicted: sum(&|s| s.cache.evicted),
            pages: now(&|s| s.pages),
            pages_limit: now(&|s| s.pages_limit),
        },
        drafts: DraftStats {
            drafted: sum(&|s| s.mtp.drafted + s.suffix.drafted),
            accepted: sum(&|s| s.mtp.accepted + s.suffix.accepted),
        },
        memory: MemoryStats { budget: about.budget, weights: about.weights, pool: about.pool },
        stored_responses: StoreStats { count: stored, bytes: stored_bytes },
    }
}

fn switching(app: &App, seen: &Seen, views: &[View]) -> SwitchStats {
    SwitchStats {
        on: app.models.switches(),
        own: app.model.clone(),
        loading: matches!(seen, Seen::Loading(_)),
        waiting: app.models.waiting(),
        loads: views.iter().map(|view| view.served.loading.count()).sum(),
        failures: app.metrics.load_failures.value().unsigned_abs(),
    }
}
