//! What all handlers share.

use crate::auth::{Client, Door};
use crate::error::ApiError;
use crate::limits::Bodies;
use crate::log::Logger;
use crate::metrics::{Metrics, View};
use crate::options::Options;
use crate::queue::Queue;
use crate::residence::{Asked, Residence, Seen};
use crate::resume::Streams;
use crate::script::Script;
use crate::store::Store;
use crate::trace::Tracer;
use martlet_chat::{Content, Conversation};
use martlet_session::{Session, TurnOptions};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

pub struct App {
    pub models: Arc<Residence>,
    pub options: Options,
    /// The name of the server's own model for clients.
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
        let metrics = Metrics::default();
        let model = options.model_name.clone().unwrap_or_else(|| session.name().to_string());
        let served = metrics.served(&model);
        served.describe(&session);
        let width = session.plan().sequences;
        Arc::new(App {
            models: Residence::new(&model, session, served, options.library.clone()),
            model,
            door: Door::new(&options),
            bodies: Bodies::new(limits),
            queue: Queue::new(limits.requests, width),
            streams: Streams::new(limits.requests, limits.streams),
            store: Arc::new(Store::new(limits.store, limits.store_time)),
            metrics,
            log: made.log,
            script: made.script,
            tracer: made.tracer,
            created: crate::log::unix_seconds(),
            started: Instant::now(),
            draining: AtomicBool::new(false),
            // The standard library seeds its hash tables from the system's entropy.
            salt: RandomState::new().hash_one(std::process::id()),
            ids: AtomicU64::new(0),
            options,
        })
    }

    /// A fresh id such as `chatcmpl-...`.
    pub fn id(&self, prefix: &str) -> String {
        let n = self.ids.fetch_add(1, Ordering::Relaxed);
        let digest = blake3::hash(&[self.salt.to_le_bytes(), n.to_le_bytes()].concat());
        format!("{prefix}{}", &digest.to_hex()[..24])
    }

    /// The model that a request wants, by its `model`. No name, and with [`Options::any_model`] any that nothing has, means the
    /// server's own.
    pub fn asked(&self, name: Option<&str>) -> Result<Asked, ApiError> {
        let Some(name) = name.filter(|name| !name.is_empty()) else { return Ok(self.models.own()) };
        if self.is_own(name) {
            return Ok(self.models.own());
        }
        match self.models.installed(name) {
            Some(asked) => Ok(asked),
            None if self.options.any_model => Ok(self.models.own()),
            None => Err(self.unknown(name)),
        }
    }

    fn unknown(&self, name: &str) -> ApiError {
        /// Names in a message.
        const SHOWN: usize = 8;
        let name: String = name.chars().take(200).collect();
        let message = match self.models.switches() {
            false => format!(
                "the model \"{name}\" is not loaded; this server has \"{}\". Ask for that one, or start the server with \
                 --alias {name} or --any-model",
                self.model
            ),
            true => {
                let names = self.names();
                let known: Vec<String> = names.iter().take(SHOWN).map(|n| format!("\"{n}\"")).collect();
                let more = if names.len() > SHOWN { " and more, see /v1/models" } else { "" };
                format!(
                    "there is no model \"{name}\" here; this server has {}{more}. Ask for one of them, or install it with \
                     `martlet pull`",
                    known.join(", ")
                )
            }
        };
        ApiError { param: Some("model".into()), ..ApiError::not_found("model_not_found", message) }
    }

    /// Whether a name is one of the server's own model.
    fn is_own(&self, name: &str) -> bool {
        name == self.model || self.options.aliases.iter().any(|alias| alias == name)
    }

    /// All names that requests may give: those of the server's own model, then the installed ones.
    pub fn names(&self) -> Vec<String> {
        let own = [&self.model].into_iter().chain(&self.options.aliases).cloned();
        own.chain(self.models.names().into_iter().filter(|name| !self.is_own(name))).collect()
    }

    /// What is in memory, and what was done with each model so far.
    pub fn seen(&self) -> (Seen, Vec<View>) {
        // One look at both, so that what an engine has done is counted once.
        self.models.look(|seen| {
            let views = self.metrics.models().into_iter().map(|(name, served)| {
                let running = match seen {
                    Seen::Resident(model) if model.name() == name => Some(model.session.stats()),
                    _ => None,
                };
                View { stats: served.stats(running.as_ref()), name, served }
            });
            views.collect()
        })
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
