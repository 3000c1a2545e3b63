//! Whether the server lives, and whether it takes work.

use crate::app::App;
use crate::error::ApiError;
use crate::residence::Seen;
use axum::http::StatusCode;
use serde::Serialize;
use std::sync::atomic::Ordering;
use utoipa::ToSchema;

#[derive(Debug, Serialize, ToSchema)]
pub struct Health {
    /// `ok`, or `draining` once it is about to end.
    pub status: &'static str,
    /// The model in memory, or the one that is being loaded; empty where one could not be loaded, until the next request.
    pub model: String,
    /// It is being loaded, and requests wait for it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub loading: bool,
}

pub fn health(app: &App) -> Health {
    let draining = app.draining.load(Ordering::Relaxed);
    let (seen, ()) = app.models.look(|_| ());
    let loading = matches!(seen, Seen::Loading(_));
    Health { status: if draining { "draining" } else { "ok" }, model: seen.name().to_string(), loading }
}

/// 503 where another request would be turned away.
pub fn ready(app: &App) -> Result<Health, ApiError> {
    let unavailable = |code, message: &str| Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, code, message));
    if app.draining.load(Ordering::Relaxed) {
        return unavailable("draining", "the server is about to end");
    }
    if app.queue.taken() >= app.options.limits.requests {
        return unavailable("queue_full", "as many requests run and wait as may");
    }
    Ok(health(app))
}
