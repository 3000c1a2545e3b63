//! `/v1/completions`.

mod request;
mod stream;
mod types;

pub use types::{Completion, CompletionsRequest};

use crate::app::{App, Caller};
use crate::ask::form;
use crate::error::{ApiError, Fields, Style};
use crate::generate::{Job, Traced};
use crate::usage::UsageIn;
use martlet_session::Prompt;
use serde_json::{Map, Value};

/// The name of this endpoint in logs and metrics.
pub const ENDPOINT: &str = "completions";

/// What a request asks for.
pub fn job(app: &App, _: &Caller, body: &Map<String, Value>) -> Result<Job, ApiError> {
    let read = request::read(body, &app.options)?;
    app.check_model(read.model.as_deref())?;
    let id = app.id("cmpl-");
    let mut turns = Vec::new();
    let mut echoes = Vec::new();
    for prompt in read.prompts {
        for choice in 0..read.n {
            let mut options = read.options.clone();
            options.choice = choice as u32;
            options.tokens = read.usage == UsageIn::EveryChunk;
            app.scripted(&request::text(&prompt), &mut options)?;
            echoes.push(if read.echo { text(app, &prompt) } else { String::new() });
            turns.push((prompt.clone(), options));
        }
    }
    let about = stream::About {
        id: id.clone(),
        created: crate::log::unix_seconds(),
        model: app.model.clone(),
        logprobs: read.options.logprobs.is_some(),
        usage: read.usage,
        bytes_of: app.bytes_of(),
    };
    let adapter = Box::new(stream::Completions::new(about, echoes, read.n));
    let (stream, warnings, traced) = (read.stream, read.warnings, Traced::default());
    let fields = Fields { prompt: "prompt", form: form(body), ..Fields::default() };
    Ok(Job {
        id,
        endpoint: ENDPOINT,
        style: Style::OpenAi,
        turns,
        adapter,
        stream,
        warnings,
        traced,
        fields,
        then: None,
    })
}

/// A prompt as text.
fn text(app: &App, prompt: &Prompt) -> String {
    match (prompt, app.session.text()) {
        (Prompt::Text(text), _) => text.clone(),
        (Prompt::Ids(ids), Some(text)) => text.tokenizer.decode(ids, martlet_chat::SpecialTokens::Show),
        _ => String::new(),
    }
}
