//! One model at a time: requests for the resident one are let in, those for others wait until it makes room.
//!
//! A thread of its own unloads and loads (`driver.rs`); **the old model is gone before the new one is opened**, so that
//! the peak is one model. `policy.rs` says who is next. Without a library there is one model for ever, and nobody waits.

mod driver;
mod policy;

use crate::app::App;
use crate::error::ApiError;
use crate::library::Library;
use crate::served::Served;
use crate::tokens::TokenBytes;
use axum::http::StatusCode;
use martlet_session::Session;
use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// A model that a request may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// For clients; one of the names that the server knows.
    pub name: String,
    /// See [`crate::Found::version`]; 0 of the server's own model.
    version: u64,
}

/// A model in memory.
pub struct Resident {
    asked: Asked,
    pub session: Arc<Session>,
    pub served: Arc<Served>,
    /// Falls silent when the session is gone: fields are dropped in their order.
    _lives: Sender<()>,
}

impl Resident {
    /// For clients.
    pub fn name(&self) -> &str {
        &self.asked.name
    }

    /// How its tokens look.
    pub fn bytes_of(self: &Arc<Self>) -> TokenBytes {
        let model = self.clone();
        Arc::new(move |id| model.session.text().map_or(Vec::new(), |t| t.tokenizer.token_bytes(id).to_vec()))
    }
}

/// Keeps a model resident.
pub struct Lease {
    pub model: Arc<Resident>,
    residence: Arc<Residence>,
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut state = self.residence.lock();
        state.running -= 1;
        state.idle = Instant::now();
        drop(state);
        self.residence.changed.notify_all();
    }
}

/// See the module.
pub struct Residence {
    /// The server's own model.
    own: Asked,
    library: Option<Arc<dyn Library>>,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    place: Place,
    /// Leases of the resident model.
    running: usize,
    loaded: Instant,
    load_time: Duration,
    /// Since when nothing runs, if nothing does.
    idle: Instant,
    /// In the order in which they came.
    waiting: VecDeque<Waiter>,
    /// No model is loaded any more.
    drained: bool,
}

enum Place {
    Empty,
    Loading(String),
    Taken(Arc<Resident>, Receiver<()>),
}

struct Waiter {
    asked: Asked,
    admit: oneshot::Sender<Result<Lease, ApiError>>,
}

/// What the one place holds.
pub enum Seen {
    Resident(Arc<Resident>),
    /// The name of what is being loaded.
    Loading(String),
    /// A model could not be loaded, and nobody has asked for another since.
    Empty,
}

impl Seen {
    /// Of the model; empty where there is none.
    pub fn name(&self) -> &str {
        match self {
            Seen::Resident(model) => model.name(),
            Seen::Loading(name) => name,
            Seen::Empty => "",
        }
    }
}

impl Residence {
    /// With the server's own model in place.
    pub fn new(
        name: &str,
        session: Arc<Session>,
        served: Arc<Served>,
        library: Option<Arc<dyn Library>>,
    ) -> Arc<Residence> {
        let own = Asked { name: name.to_string(), version: 0 };
        let now = Instant::now();
        let state = State {
            place: Place::taken(own.clone(), session, served),
            running: 0,
            loaded: now,
            load_time: Duration::ZERO,
            idle: now,
            waiting: VecDeque::new(),
            drained: false,
        };
        Arc::new(Residence { own, library, state: Mutex::new(state), changed: Condvar::new() })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The server's own model.
    pub fn own(&self) -> Asked {
        self.own.clone()
    }

    /// An installed model.
    pub fn installed(&self, name: &str) -> Option<Asked> {
        let found = self.library.as_ref()?.find(name)?;
        Some(Asked { name: name.to_string(), version: found.version })
    }

    /// Names of the installed models.
    pub fn names(&self) -> Vec<String> {
        self.library.as_ref().map_or(Vec::new(), |library| library.names())
    }

    /// Whether other models than the server's own can be had.
    pub fn switches(&self) -> bool {
        self.library.is_some()
    }

    /// What is in place now, and what `look` makes of it before anything can change. Whoever keeps the model keeps others
    /// from being loaded.
    pub fn look<T>(&self, look: impl FnOnce(&Seen) -> T) -> (Seen, T) {
        let state = self.lock();
        let seen = match &state.place {
            Place::Empty => Seen::Empty,
            Place::Loading(name) => Seen::Loading(name.clone()),
            Place::Taken(model, _) => Seen::Resident(model.clone()),
        };
        let looked = look(&seen);
        (seen, looked)
    }

    /// Requests that wait for a model.
    pub fn waiting(&self) -> usize {
        self.lock().waiting.len()
    }

    /// Waits until the model is resident, and keeps it so. To give up, drop the future.
    pub async fn lease(self: &Arc<Self>, asked: &Asked) -> Result<Lease, ApiError> {
        if let Some(lease) = self.lock().admit(self, asked) {
            return Ok(lease);
        }
        // An error now leaves the resident model alone.
        self.check(asked).await?;
        let admitted = {
            let mut state = self.lock();
            if state.drained {
                return Err(draining());
            }
            let (admit, admitted) = oneshot::channel();
            state.waiting.push_back(Waiter { asked: asked.clone(), admit });
            admitted
        };
        self.changed.notify_all();
        // Whoever gives up may have been the reason why others wait.
        let _given_up = Changes(self);
        admitted.await.unwrap_or_else(|_| Err(ApiError::internal("the thread that loads models ended early")))
    }

    /// Looks at a model's files, unless somebody waits for it and they were looked at.
    async fn check(self: &Arc<Self>, asked: &Asked) -> Result<(), ApiError> {
        if self.lock().waiting.iter().any(|w| w.asked == *asked) {
            return Ok(());
        }
        let (residence, name) = (self.clone(), asked.name.clone());
        let checked = tokio::task::spawn_blocking(move || residence.source(&name).map(drop));
        checked.await.unwrap_or_else(|_| Err(ApiError::internal("the model's check ended early")))
    }

    /// Refuses all that waits for another model, from now on.
    pub fn drain(&self) {
        let mut state = self.lock();
        state.drained = true;
        for waiter in state.waiting.drain(..) {
            // Whoever is gone need not be told.
            let _ = waiter.admit.send(Err(draining()));
        }
        drop(state);
        self.changed.notify_all();
    }
}

impl Place {
    fn taken(asked: Asked, session: Arc<Session>, served: Arc<Served>) -> Place {
        let (lives, gone) = channel();
        Place::Taken(Arc::new(Resident { asked, session, served, _lives: lives }), gone)
    }
}

impl State {
    /// A lease, if this is the resident model and it is open.
    fn admit(&mut self, residence: &Arc<Residence>, asked: &Asked) -> Option<Lease> {
        let Place::Taken(model, _) = &self.place else { return None };
        let others = self.waiting.iter().any(|w| w.asked != model.asked && !w.admit.is_closed());
        let open = model.asked == *asked && self.resident().is_open(others, Instant::now());
        let model = open.then(|| model.clone())?;
        Some(self.lease(residence, model))
    }

    fn lease(&mut self, residence: &Arc<Residence>, model: Arc<Resident>) -> Lease {
        self.running += 1;
        Lease { model, residence: residence.clone() }
    }

    fn resident(&self) -> policy::Resident {
        policy::Resident { loaded: self.loaded, load_time: self.load_time, running: self.running, idle: self.idle }
    }
}

struct Changes<'a>(&'a Residence);

impl Drop for Changes<'_> {
    fn drop(&mut self) {
        self.0.changed.notify_all();
    }
}

fn draining() -> ApiError {
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "draining", "the server is about to end, and loads no other model")
}

/// Starts the thread that loads models. It ends when the residence is drained.
pub fn start(app: &Arc<App>) {
    if app.models.switches() {
        let app = app.clone();
        std::thread::spawn(move || driver::run(&app));
    }
}
