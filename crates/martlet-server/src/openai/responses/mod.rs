//! `/v1/responses`.

mod items;
mod request;
mod stream;
mod types;

pub use types::{ResponsesRequest, ResponsesResponse};

use crate::app::{App, Caller};
use crate::error::{ApiError, Style};
use crate::generate::{Adapter, Job, Then};
use crate::residence::Resident;
use crate::store::Stored;
use martlet_chat::Message;
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// The name of this endpoint in logs and metrics.
pub const ENDPOINT: &str = "responses";

/// What a request asks for.
pub fn job(app: &App, caller: &Caller, body: &Map<String, Value>) -> Result<Job, ApiError> {
    let id = app.id("resp_");
    let find = items::Find { store: &app.store, client: &caller.client };
    let mut read = request::read(body, &app.options, &find)?;
    let model = app.asked(read.model.as_deref())?;
    app.scripted(&read.last, &mut read.options)?;
    read.response.id = id.clone();
    read.response.model = model.name.clone();
    read.response.created_at = crate::log::unix_seconds();
    let store = read.store.then(|| Keep {
        app_store: app.store.clone(),
        client: caller.client.clone(),
        id: id.clone(),
        input: with_ids(read.input, &id),
        messages: read.messages,
    });
    let (response, tools) = (read.response, read.tools);
    let adapter = Box::new(move |model: &Arc<Resident>| {
        let about = stream::About {
            tools,
            summary: read.summary,
            encrypted: read.encrypted,
            logprobs: read.logprobs,
            bytes_of: model.bytes_of(),
        };
        Box::new(stream::Responses::new(response, about)) as Box<dyn Adapter>
    });
    let then = store.map(|keep| Box::new(move |response: &Value| keep.put(response)) as Then);
    Ok(Job {
        id,
        endpoint: ENDPOINT,
        model,
        style: Style::OpenAi,
        turns: vec![(read.prompt, read.options)],
        adapter,
        stream: read.stream,
        warnings: read.warnings,
        traced: read.traced,
        fields: read.fields,
        then,
    })
}

/// What is stored when a response has ended.
struct Keep {
    app_store: Arc<crate::store::Store>,
    client: crate::auth::Client,
    id: String,
    input: Vec<Value>,
    messages: Vec<Message>,
}

impl Keep {
    fn put(self, response: &Value) {
        let output = response.get("output").and_then(Value::as_array).cloned().unwrap_or_default();
        let find = items::Find { store: &self.app_store, client: &self.client };
        let mut messages = self.messages;
        // What the server said itself can be read back.
        if let Ok(said) = items::messages(&output, "output", &find, &mut Vec::new()) {
            messages.extend(said);
        }
        let stored = Stored { id: self.id, response: response.clone(), input: self.input, messages };
        self.app_store.put(stored, self.client.clone());
    }
}

/// Items by which clients may ask for them later; those that have an id keep it.
fn with_ids(mut items: Vec<Value>, response: &str) -> Vec<Value> {
    let own = response.trim_start_matches("resp_");
    for (i, item) in items.iter_mut().enumerate().filter(|(_, item)| item.get("id").is_none_or(Value::is_null)) {
        if let Value::Object(item) = item {
            item.insert("id".into(), format!("in_{own}{i:02}").into());
        }
    }
    items
}

fn stored(app: &App, caller: &Caller, id: &str) -> Result<Arc<Stored>, ApiError> {
    app.store.get(id, &caller.client).ok_or_else(|| {
        let message = format!("there is no response {id}: it was not stored, or its time has passed");
        ApiError::not_found("response_not_found", message)
    })
}

/// A stored response.
pub fn get(app: &App, caller: &Caller, id: &str) -> Result<Value, ApiError> {
    Ok(stored(app, caller, id)?.response.clone())
}

/// Forgets a stored response.
pub fn delete(app: &App, caller: &Caller, id: &str) -> Result<Value, ApiError> {
    stored(app, caller, id)?;
    app.store.remove(id, &caller.client);
    Ok(json!({"id": id, "object": "response", "deleted": true}))
}

/// Ends an answer whose stream is kept, of whichever API it is.
pub fn cancel(app: &App, caller: &Caller, id: &str) -> Result<Value, ApiError> {
    let cancelled = app.streams.cancel(id, &caller.client)?;
    let status = if cancelled { "cancelled" } else { "completed" };
    Ok(json!({"id": id, "object": "response", "status": status}))
}

/// What a stored response was an answer to.
pub fn input_items(app: &App, caller: &Caller, id: &str) -> Result<Value, ApiError> {
    let stored = stored(app, caller, id)?;
    let id_of = |item: Option<&Value>| item.and_then(|i| i.get("id")).cloned();
    Ok(json!({
        "object": "list",
        "data": stored.input,
        "first_id": id_of(stored.input.first()),
        "last_id": id_of(stored.input.last()),
        "has_more": false,
    }))
}
