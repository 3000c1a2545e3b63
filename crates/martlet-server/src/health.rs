//! Whether the server lives, and whether it takes work.

use crate::app::App;
use crate::error::ApiError;
use axum::http::StatusCode;
use serde::Serialize;
use std::sync::atomic::Ordering;
use utoipa::ToSchema;

#[derive(Debug, Serialize, ToSchema)]
pub struct Health {
    /// `ok`, or `draining` once it is about to end.
    pub status: &'static str,
    pub model: String,
}

pub fn health(app: &App) -> Health {
    let draining = app.draining.load(Ordering::Relaxed);
    Health { status: if draining { "draining" } else { "ok" }, model: app.model.clone() }
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
