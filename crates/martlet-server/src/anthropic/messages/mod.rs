//! `/v1/messages` and `/v1/messages/count_tokens`.

mod request;
mod stream;
mod types;

pub use types::{Message, MessagesRequest, TokenCount};

use crate::app::{App, Caller};
use crate::error::{ApiError, Style};
use crate::generate::Job;
use serde_json::{Map, Value};

/// The name of this endpoint in logs and metrics.
pub const ENDPOINT: &str = "messages";

/// What a request asks for.
pub fn job(app: &App, _: &Caller, body: &Map<String, Value>) -> Result<Job, ApiError> {
    let mut read = request::read(body, &app.options)?;
    app.check_model(read.model.as_deref())?;
    app.scripted(&read.last, &mut read.options)?;
    let id = app.id("msg_");
    let adapter = Box::new(stream::Messages::new(&id, &app.model));
    Ok(Job {
        id,
        endpoint: ENDPOINT,
        style: Style::Anthropic,
        turns: vec![(read.prompt, read.options)],
        adapter,
        stream: read.stream,
        warnings: read.warnings,
        traced: read.traced,
        fields: read.fields,
        then: None,
    })
}

/// Tokens of what a request would send.
pub fn count_tokens(app: &App, body: &Map<String, Value>) -> Result<(TokenCount, Vec<String>), ApiError> {
    let read = request::read(body, &app.options)?;
    app.check_model(read.model.as_deref())?;
    let input_tokens = app.session.prompt_ids(&read.prompt)?.len();
    Ok((TokenCount { input_tokens }, read.warnings))
}
