//! `/v1/completions`.

mod request;
mod stream;
mod types;

pub use types::{Completion, CompletionsRequest};

use crate::app::{App, Caller};
use crate::ask::form;
use crate::error::{ApiError, Fields, Style};
use crate::generate::{Adapter, Job, Traced};
use crate::residence::Resident;
use crate::usage::UsageIn;
use martlet_session::Prompt;
use serde_json::{Map, Value};
use std::sync::Arc;

/// The name of this endpoint in logs and metrics.
pub const ENDPOINT: &str = "completions";

/// What a request asks for.
pub fn job(app: &App, _: &Caller, body: &Map<String, Value>) -> Result<Job, ApiError> {
    let read = request::read(body, &app.options)?;
    let model = app.asked(read.model.as_deref())?;
    let id = app.id("cmpl-");
    let mut turns = Vec::new();
    let mut echoes = Vec::new();
    for prompt in read.prompts {
        for choice in 0..read.n {
            let mut options = read.options.clone();
            options.choice = choice as u32;
            options.tokens = read.usage == UsageIn::EveryChunk;
            app.scripted(&request::text(&prompt), &mut options)?;
            echoes.push(read.echo.then(|| prompt.clone()));
            turns.push((prompt.clone(), options));
        }
    }
    let about = (id.clone(), read.options.logprobs.is_some());
    let adapter = Box::new(move |model: &Arc<Resident>| {
        let (id, logprobs) = about;
        let about = stream::About {
            id,
            created: crate::log::unix_seconds(),
            model: model.name().to_string(),
            logprobs,
            usage: read.usage,
            bytes_of: model.bytes_of(),
        };
        let echo = |prompt: Option<Prompt>| prompt.map_or(String::new(), |prompt| text(model, &prompt));
        let echoes = echoes.into_iter().map(echo).collect();
        Box::new(stream::Completions::new(about, echoes, read.n)) as Box<dyn Adapter>
    });
    let (stream, warnings, traced) = (read.stream, read.warnings, Traced::default());
    let fields = Fields { prompt: "prompt", form: form(body), ..Fields::default() };
    Ok(Job {
        id,
        endpoint: ENDPOINT,
        model,
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
fn text(model: &Resident, prompt: &Prompt) -> String {
    match (prompt, model.session.text()) {
        (Prompt::Text(text), _) => text.clone(),
        (Prompt::Ids(ids), Some(text)) => text.tokenizer.decode(ids, martlet_chat::SpecialTokens::Show),
        _ => String::new(),
    }
}
