//! `/v1/messages` and `/v1/messages/count_tokens`.

mod request;
mod stream;
mod types;

pub use types::{Message, MessagesRequest, TokenCount};

use crate::app::{App, Caller};
use crate::error::{ApiError, Style};
use crate::generate::{Adapter, Job, Task};
use crate::residence::Resident;
use martlet_session::Session;
use serde_json::{Map, Value};
use std::sync::Arc;

/// The name of this endpoint in logs and metrics.
pub const ENDPOINT: &str = "messages";

/// What a request asks for.
pub fn job(app: &App, _: &Caller, body: &Map<String, Value>) -> Result<Job, ApiError> {
    let mut read = request::read(body, &app.options)?;
    let model = app.asked(read.model.as_deref())?;
    app.scripted(&read.last, &mut read.options)?;
    let id = app.id("msg_");
    let of = id.clone();
    let adapter = move |model: &Arc<Resident>| Box::new(stream::Messages::new(&of, model.name())) as Box<dyn Adapter>;
    Ok(Job {
        id,
        endpoint: ENDPOINT,
        model,
        style: Style::Anthropic,
        turns: vec![(read.prompt, read.options)],
        adapter: Box::new(adapter),
        stream: read.stream,
        warnings: read.warnings,
        traced: read.traced,
        fields: read.fields,
        then: None,
    })
}

/// Tokens of what a request would send.
pub fn count_tokens(app: &App, body: &Map<String, Value>) -> Result<Task<TokenCount>, ApiError> {
    let read = request::read(body, &app.options)?;
    let model = app.asked(read.model.as_deref())?;
    let work = move |session: &Session| {
        let input_tokens = session.prompt_ids(&read.prompt)?.len();
        Ok((TokenCount { input_tokens }, read.warnings))
    };
    Ok(Task { model, work: Box::new(work) })
}
