//! The thread that unloads and loads.

use super::policy::Step;
use super::{Asked, Lease, Place, Residence, State, Waiter};
use crate::app::App;
use crate::error::ApiError;
use crate::log::Line;
use axum::http::StatusCode;
use martlet_session::{ModelSource, Options, Session};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Instant;

pub fn run(app: &Arc<App>) {
    while let Some(asked) = app.models.next_switch() {
        app.models.switch(app, &asked);
    }
}

impl Residence {
    /// Waits until another model is to be loaded, and lets in who may in the meantime; `None` at the end.
    fn next_switch(self: &Arc<Self>) -> Option<Asked> {
        let mut state = self.lock();
        while !state.drained {
            state.waiting.retain(|w| !w.admit.is_closed());
            let wait = match state.next() {
                Step::Switch => return state.wanted(),
                Step::Admit => {
                    let unread = state.admit_waiting(self, None);
                    drop(state);
                    drop(unread);
                    state = self.lock();
                    continue;
                }
                Step::Wait(until) => until,
            };
            state = self.wait(state, wait);
        }
        None
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>, until: Option<Instant>) -> MutexGuard<'a, State> {
        match until {
            None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            Some(until) => {
                let time = until.saturating_duration_since(Instant::now());
                self.changed.wait_timeout(state, time).unwrap_or_else(PoisonError::into_inner).0
            }
        }
    }

    /// Where a model is, if its files are what a model needs.
    pub(super) fn source(&self, name: &str) -> Result<ModelSource, ApiError> {
        let Some(library) = &self.library else { return Err(removed(name)) };
        let source = match name == self.own.name {
            true => library.own(),
            false => library.find(name).ok_or_else(|| removed(name))?.source,
        };
        source.check().map_err(|e| unusable(e.to_string()))?;
        Ok(source)
    }

    /// Puts another model in place. What goes wrong is told to those who wait for it.
    fn switch(self: &Arc<Self>, app: &App, asked: &Asked) {
        // It may have been removed since it was asked for: then the resident model stays.
        let source = match self.source(&asked.name) {
            Ok(source) => source,
            Err(e) => return self.fail(app, asked, &e),
        };
        let asked = match asked.version {
            0 => asked.clone(),
            _ => self.installed(&asked.name).unwrap_or_else(|| asked.clone()),
        };
        if !self.unload(app, &asked) {
            return;
        }
        let began = Instant::now();
        let options = self.library.as_ref().map(|l| l.options().clone()).unwrap_or_default();
        match open(&source, &options) {
            Ok(session) => self.put(app, asked, session, began),
            Err(e) => {
                self.lock().place = Place::Empty;
                self.fail(app, &asked, &e);
            }
        }
    }

    /// Makes room for a model; false where requests have begun meanwhile. Returns when the memory is free.
    fn unload(&self, app: &App, next: &Asked) -> bool {
        let mut state = self.lock();
        if state.drained || state.running > 0 {
            return false;
        }
        let Place::Taken(model, gone) = std::mem::replace(&mut state.place, Place::Loading(next.name.clone())) else {
            return true;
        };
        // Under the lock, so that counts never go back.
        model.served.keep(&model.session.stats());
        drop(state);
        app.log.write(Line::new("model").add("unloads", model.name()));
        drop(model);
        // Those that only look at it have it for a moment. The end of the channel is what is waited for.
        let _ = gone.recv();
        true
    }

    fn put(self: &Arc<Self>, app: &App, asked: Asked, session: Session, began: Instant) {
        let served = app.metrics.served(&asked.name);
        let took = began.elapsed();
        served.describe(&session);
        served.loading.add(took);
        let line = Line::new("model").add("loaded", &asked.name);
        app.log.write(line.add("context", session.context()).add("seconds", format!("{:.3}", took.as_secs_f64())));
        let mut state = self.lock();
        if state.drained {
            return;
        }
        let name = asked.name.clone();
        state.place = Place::taken(asked, Arc::new(session), served);
        (state.loaded, state.load_time, state.running) = (Instant::now(), took, 0);
        state.idle = state.loaded;
        // Whichever of its versions they asked for: there is no other now.
        let unread = state.admit_waiting(self, Some(&name));
        drop(state);
        drop(unread);
    }

    fn fail(&self, app: &App, asked: &Asked, error: &ApiError) {
        app.metrics.load_failures.add(1);
        app.log.write(Line::new("model").add("failed", &asked.name).add("error", &error.message));
        let mut state = self.lock();
        for waiter in state.take_waiting(|w| w.name == asked.name) {
            // Whoever is gone need not be told.
            let _ = waiter.admit.send(Err(error.clone()));
        }
    }
}

impl State {
    fn next(&self) -> Step {
        let Place::Taken(model, _) = &self.place else {
            return if self.waiting.is_empty() { Step::Wait(None) } else { Step::Switch };
        };
        let own = self.waiting.iter().any(|w| w.asked == model.asked);
        let others = self.waiting.iter().any(|w| w.asked != model.asked);
        self.resident().next(own, others, Instant::now())
    }

    /// What the oldest request that can not have the resident model waits for.
    fn wanted(&self) -> Option<Asked> {
        let other = |asked: &Asked| !matches!(&self.place, Place::Taken(model, _) if model.asked == *asked);
        self.waiting.iter().map(|w| &w.asked).find(|asked| other(asked)).cloned()
    }

    fn take_waiting(&mut self, wanted: impl Fn(&Asked) -> bool) -> Vec<Waiter> {
        let (taken, left): (Vec<_>, Vec<_>) = self.waiting.drain(..).partition(|w| wanted(&w.asked));
        self.waiting = left.into();
        taken
    }

    /// Lets in all that wait for the resident model, or for any version of `name`. Leases that nobody took are for the
    /// caller to drop, without the lock.
    fn admit_waiting(&mut self, residence: &Arc<Residence>, name: Option<&str>) -> Vec<Lease> {
        let Place::Taken(model, _) = &self.place else { return Vec::new() };
        let model = model.clone();
        let ours = |asked: &Asked| *asked == model.asked || name == Some(&asked.name);
        let mut unread = Vec::new();
        for waiter in self.take_waiting(ours) {
            let lease = self.lease(residence, model.clone());
            unread.extend(waiter.admit.send(Ok(lease)).err().and_then(Result::ok));
        }
        unread
    }
}

/// Opens a model; a bug there is an error of those who asked for it.
fn open(source: &ModelSource, options: &Options) -> Result<Session, ApiError> {
    let opened = catch_unwind(AssertUnwindSafe(|| Session::open(source, options, &mut |_, _| {})));
    match opened {
        Ok(opened) => opened.map_err(|e| unusable(e.to_string())),
        Err(_) => Err(ApiError::internal("the server has a bug: loading the model broke off")),
    }
}

fn unusable(message: String) -> ApiError {
    let error = ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "model_unusable", message);
    ApiError { param: Some("model".into()), ..error }
}

fn removed(name: &str) -> ApiError {
    let message = format!("the model \"{name}\" is not installed any more");
    ApiError { param: Some("model".into()), ..ApiError::not_found("model_not_found", message) }
}
