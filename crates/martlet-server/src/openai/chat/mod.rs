//! `/v1/chat/completions`.

mod request;
mod stream;
mod types;

pub use stream::finish_of;
pub use types::{ChatChunk, ChatCompletion, ChatRequest, StreamOptions};

use crate::app::{App, Caller};
use crate::error::{ApiError, Style};
use crate::generate::{Adapter, Job};
use crate::residence::Resident;
use crate::usage::UsageIn;
use serde_json::{Map, Value};
use std::sync::Arc;

/// The name of this endpoint in logs and metrics.
pub const ENDPOINT: &str = "chat";

/// What a request asks for.
pub fn job(app: &App, _: &Caller, body: &Map<String, Value>) -> Result<Job, ApiError> {
    let read = request::read(body, &app.options)?;
    let model = app.asked(read.model.as_deref())?;
    let id = app.id("chatcmpl-");
    let mut turns = Vec::new();
    for choice in 0..read.n {
        let mut options = read.options.clone();
        options.choice = choice as u32;
        options.tokens = read.usage == UsageIn::EveryChunk;
        app.scripted(&read.last, &mut options)?;
        turns.push((read.prompt.clone(), options));
    }
    let about = (id.clone(), read.tools, read.options.logprobs.is_some());
    let adapter = Box::new(move |model: &Arc<Resident>| {
        let (id, tools, logprobs) = about;
        let about = stream::About {
            id,
            created: crate::log::unix_seconds(),
            model: model.name().to_string(),
            tools,
            logprobs,
            usage: read.usage,
            bytes_of: model.bytes_of(),
        };
        Box::new(stream::Chat::new(about, read.n)) as Box<dyn Adapter>
    });
    let (stream, warnings, traced, fields) = (read.stream, read.warnings, read.traced, read.fields);
    Ok(Job {
        id,
        endpoint: ENDPOINT,
        model,
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
