//! `/v1/chat/completions`.

mod request;
mod stream;
mod types;

pub use stream::finish_of;
pub use types::{ChatChunk, ChatCompletion, ChatRequest, StreamOptions};

use crate::app::{App, Caller};
use crate::error::{ApiError, Style};
use crate::generate::Job;
use crate::usage::UsageIn;
use serde_json::{Map, Value};

/// The name of this endpoint in logs and metrics.
pub const ENDPOINT: &str = "chat";

/// What a request asks for.
pub fn job(app: &App, _: &Caller, body: &Map<String, Value>) -> Result<Job, ApiError> {
    let read = request::read(body, &app.options)?;
    app.check_model(read.model.as_deref())?;
    let id = app.id("chatcmpl-");
    let mut turns = Vec::new();
    for choice in 0..read.n {
        let mut options = read.options.clone();
        options.choice = choice as u32;
        options.tokens = read.usage == UsageIn::EveryChunk;
        app.scripted(&read.last, &mut options)?;
        turns.push((read.prompt.clone(), options));
    }
    let about = stream::About {
        id: id.clone(),
        created: crate::log::unix_seconds(),
        model: app.model.clone(),
        tools: read.tools,
        logprobs: read.options.logprobs.is_some(),
        usage: read.usage,
        bytes_of: app.bytes_of(),
    };
    let adapter = Box::new(stream::Chat::new(about, read.n));
    let (stream, warnings, traced, fields) = (read.stream, read.warnings, read.traced, read.fields);
    Ok(Job {
        id,
        endpoint: ENDPOINT,
        turns,
        adapter,
        stream,
        style: Style::OpenAi,
        warnings,
        traced,
        fields,
        then: None,
    })
}
