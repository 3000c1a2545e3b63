//! An HTTP server that speaks the APIs of OpenAI and Anthropic, in front of a session.
//!
//! ```no_run
//! use martlet_server::{Options, Server};
//! use martlet_session::{ModelSource, Session};
//! use std::sync::Arc;
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let source = ModelSource::Path("models/fledgling".into());
//! let session = Session::open(&source, &martlet_session::Options::default(), &mut |_, _| {})?;
//! let server = Server::bind(Arc::new(session), Options::default())?;
//! println!("http://{}", server.address());
//! server.run(true);
//! # Ok(()) }
//! ```

#![warn(missing_docs)]

mod anthropic;
mod app;
mod ask;
mod auth;
mod error;
mod generate;
#[cfg(test)]
mod golden;
mod health;
mod json;
mod library;
mod limits;
mod log;
mod metadata;
mod metrics;
mod models;
mod openai;
mod openapi;
mod options;
mod page;
mod queue;
mod residence;
mod resume;
mod routes;
mod script;
mod served;
mod server;
mod sse;
mod stall;
mod store;
mod text;
mod thinking;
mod tokenize;
mod tokens;
mod tools;
mod trace;
mod usage;

pub use library::{Found, Library};
pub use metadata::{
    CacheStats, DraftStats, MemoryStats, RequestStats, ServerStats, StoreStats, SwitchStats, TokenStats,
};
pub use options::{Limits, Options};
pub use script::{Script, ScriptError};
pub use server::{ServeError, Server, Stop};
