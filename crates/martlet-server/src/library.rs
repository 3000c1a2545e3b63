//! Where a server finds models besides the one that it begins with.

use martlet_session::{ModelSource, Options};
use std::fmt::Debug;

/// The models that requests may name. It is asked anew each time, since models come and go while a server runs.
pub trait Library: Debug + Send + Sync {
    /// Names of the models that are there now. The server's own names go before them.
    fn names(&self) -> Vec<String>;

    /// The model of a name; `None`: there is none, or not any more.
    fn find(&self, name: &str) -> Option<Found>;

    /// The server's own model, so that it can come back.
    fn own(&self) -> ModelSource;

    /// How models are opened.
    fn options(&self) -> &Options;
}

/// A model of a library.
#[derive(Clone, Debug)]
pub struct Found {
    /// Where it is.
    pub source: ModelSource,
    /// Another number when other files have taken its name.
    pub version: u64,
}
