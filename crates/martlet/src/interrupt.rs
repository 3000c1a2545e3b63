//! Ctrl-C: ends the turn that runs; a second one, or one while no turn runs, ends the program.

use crate::exit;
use std::sync::{Arc, Mutex, PoisonError};

type Cancel = Box<dyn Fn() + Send>;

/// What Ctrl-C does now.
#[derive(Clone, Default)]
pub struct Interrupt(Arc<Mutex<Option<Cancel>>>);

impl Interrupt {
    /// Takes over Ctrl-C.
    pub fn install() -> Result<Interrupt, ctrlc::Error> {
        let interrupt = Interrupt::default();
        let state = interrupt.clone();
        ctrlc::set_handler(move || match state.take() {
            Some(cancel) => cancel(),
            None => std::process::exit(exit::INTERRUPTED.into()),
        })?;
        Ok(interrupt)
    }

    /// Until the guard is dropped, the first Ctrl-C calls `cancel`.
    pub fn during(&self, cancel: impl Fn() + Send + 'static) -> Guard<'_> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(cancel));
        Guard(self)
    }

    fn take(&self) -> Option<Cancel> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// See [`Interrupt::during`].
pub struct Guard<'a>(&'a Interrupt);

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.0.take();
    }
}
