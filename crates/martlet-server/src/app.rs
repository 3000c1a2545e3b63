//! What all handlers share.

use crate::auth::{Client, Door};
use crate::error::ApiError;
use crate::limits::Bodies;
use crate::log::Logger;
use crate::metrics::Metrics;
use crate::options::Options;
use crate::queue::Queue;
use crate::resume::Streams;
use crate::script::Script;
use crate::store::Store;
use crate::tokens::TokenBytes;
use crate::trace::Tracer;
use martlet_chat::{Content, Conversation};
use martlet_session::{Session, TurnOptions};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

pub struct App {
    pub session: Arc<Session>,
    pub options: Options,
    /// The model's name for clients.
    pub model: String,
    pub door: Door,
    pub bodies: Bodies,
    pub queue: Arc<Queue>,
    pub streams: Arc<Streams>,
    pub store: Arc<Store>,
    pub metrics: Metrics,
    pub log: Logger,
    pub script: Option<Script>,
    pub tracer: Option<Tracer>,
    /// Seconds since 1970 and the moment at which it began.
    pub created: u64,
    pub started: Instant,
    /// The server is about to end: no more work is taken.
    pub draining: AtomicBool,
    /// Makes ids unlike those of other runs.
    salt: u64,
    ids: AtomicU64,
}

/// Parts of [`App`] that can fail to be made.
pub struct Made {
    pub log: Logger,
    pub script: Option<Script>,
    pub tracer: Option<Tracer>,
}

impl App {
    pub fn new(session: Arc<Session>, options: Options, made: Made) -> Arc<App> {
        use std::hash::{BuildHasher, RandomState};
        let limits = &options.limits;
        Arc::new(App {
            model: options.model_name.clone().unwrap_or_else(|| session.name().to_string()),
            door: Door::new(&options),
            bodies: Bodies::new(limits),
            queue: Queue::new(limits.requests, session.plan().sequences),
            streams: Streams::new(limits.requests, limits.streams),
            store: Arc::new(Store::new(limits.store, limits.store_time)),
            metrics: Metrics::default(),
            log: made.log,
            script: made.script,
            tracer: made.tracer,
            created: crate::log::unix_seconds(),
            started: Instant::now(),
            draining: AtomicBool::new(false),
            // The standard library seeds its hash tables from the system's entropy.
            salt: RandomState::new().hash_one(std::process::id()),
            ids: AtomicU64::new(0),
            session,
            options,
        })
    }

    /// A fresh id such as `chatcmpl-...`.
    pub fn id(&self, prefix: &str) -> String {
        let n = self.ids.fetch_add(1, Ordering::Relaxed);
        let digest = blake3::hash(&[self.salt.to_le_bytes(), n.to_le_bytes()].concat());
        format!("{prefix}{}", &digest.to_hex()[..24])
    }

    /// Whether a request's `model` is the one that is loaded.
    pub fn check_model(&self, name: Option<&str>) -> Result<(), ApiError> {
        match name {
            None | Some("") => Ok(()),
            Some(name) if self.options.any_model || self.is_model(name) => Ok(()),
            Some(name) => {
                let message = format!(
                    "the model \"{name}\" is not loaded; this server has \"{}\". Ask for that one, or start the server with \
                     --alias {name} or --any-model",
                    self.model
                );
                Err(ApiError { param: Some("model".into()), ..ApiError::not_found("model_not_found", message) })
            }
        }
    }

    pub fn is_model(&self, name: &str) -> bool {
        name == self.model || self.options.aliases.iter().any(|alias| alias == name)
    }

    /// How tokens look.
    pub fn bytes_of(&self) -> TokenBytes {
        let session = self.session.clone();
        Arc::new(move |id| session.text().map_or(Vec::new(), |t| t.tokenizer.token_bytes(id).to_vec()))
    }

    /// What a conversation's turn needs besides what was asked for: the words of a script.
    pub fn scripted(&self, last: &str, options: &mut TurnOptions) -> Result<(), ApiError> {
        if let Some(script) = &self.script {
            options.script = Some(script.next(last)?);
        }
        Ok(())
    }
}

/// The text of a conversation's last message.
pub fn last_text(chat: &Conversation) -> String {
    match chat.messages.last().and_then(|m| m.content.as_ref()) {
        Some(Content::Text(text)) => text.clone(),
        Some(Content::Parts(parts)) => parts.iter().filter_map(|p| p.text()).collect::<Vec<_>>().join("\n"),
        None => String::new(),
    }
}

/// Who asks, and how, as the headers say.
#[derive(Clone, Debug, Default)]
pub struct Caller {
    pub client: Client,
    pub request_id: String,
    /// Wants to know how far the prompt is.
    pub progress: bool,
    /// Seconds for which a stream is kept without a reader.
    pub resume: Option<u64>,
    /// The last event that it has.
    pub last_event: Option<String>,
}
