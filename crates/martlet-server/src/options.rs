//! How a server is run.

use crate::library::Library;
use crate::server::ServeError;
use martlet_session::LoopGuard;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// How a server is run. Fields will be added: begin with `..Options::default()`.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where to listen. Anything but loopback needs [`Options::api_keys`] or [`Options::no_auth`].
    pub host: IpAddr,
    /// 0: any free one.
    pub port: u16,
    /// Who shows one of these keys may come in; empty: everybody.
    pub api_keys: Vec<String>,
    /// Listen beyond loopback without keys.
    pub no_auth: bool,
    /// Web origins whose pages may use the server, such as `http://localhost:3000`.
    pub allow_origins: Vec<String>,
    /// Names besides `localhost` and addresses under which the server may be called.
    pub allow_hosts: Vec<String>,
    /// The model's name for clients; `None`: the checkpoint's.
    pub model_name: Option<String>,
    /// Further names that it answers to.
    pub aliases: Vec<String>,
    /// Answer to every name: what no model has means the server's own.
    pub any_model: bool,
    /// The models that may take the place of the server's own when a request names them; `None`: there is one model, and a
    /// request for another is refused. Whoever else keeps the session that the server begins with keeps its memory.
    pub library: Option<Arc<dyn Library>>,
    /// Whether to think where a request says nothing; `None`: the template's choice.
    pub think: Option<bool>,
    /// Where an answer that repeats itself is ended.
    pub loop_guard: LoopGuard,
    /// Limits on what comes from outside.
    pub limits: Limits,
    /// How long a stream that lost its reader goes on, where a request does not say; zero: it ends at once.
    pub resume: Duration,
    /// A comment is sent when a stream has been silent for so long.
    pub ping: Duration,
    /// Answers that are said instead of the model's: a test mode for clients, see [`crate::Script`].
    pub script: Option<PathBuf>,
    /// A folder for traces of requests. They hold what was said.
    pub trace: Option<PathBuf>,
    /// A file for the access log, besides standard error.
    pub log_file: Option<PathBuf>,
    /// No access log on standard error.
    pub quiet: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            host: IpAddr::V4(Ipv4Addr::LOCALHOST),
            port: 8080,
            api_keys: Vec::new(),
            no_auth: false,
            allow_origins: Vec::new(),
            allow_hosts: Vec::new(),
            model_name: None,
            aliases: Vec::new(),
            any_model: false,
            library: None,
            think: None,
            loop_guard: LoopGuard::default(),
            limits: Limits::default(),
            resume: Duration::ZERO,
            ping: Duration::from_secs(5),
            script: None,
            trace: None,
            log_file: None,
            quiet: false,
        }
    }
}

impl Options {
    /// Whether a server with them would be open to everybody on the network, which nobody asked for.
    pub fn check(&self) -> Result<(), ServeError> {
        match self.host.is_loopback() || self.no_auth || !self.api_keys.is_empty() {
            true => Ok(()),
            false => Err(ServeError::Unprotected { host: self.host }),
        }
    }
}

/// What a client may cost. Each limit ends in an ordinary answer or a closed connection, never in more memory.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Turns that run or wait; more are refused with 429.
    pub requests: usize,
    /// Connections at a time: 503 beyond.
    pub connections: usize,
    /// Bytes of one body: 413 beyond.
    pub body: usize,
    /// Bytes of all bodies that are being read, and of what they are read into: 503 beyond.
    pub bodies: usize,
    /// Bytes of a request's head, about (what comes in the same read counts): 431 beyond.
    pub head: usize,
    /// For a request's head, also on a connection that is kept open.
    pub head_time: Duration,
    /// For a request's body: 408 beyond.
    pub body_time: Duration,
    /// A client that takes nothing for so long is cut off.
    pub write_time: Duration,
    /// For requests to end when the server stops.
    pub drain_time: Duration,
    /// Bytes of streams that wait for their readers, those included that are kept for readers who come back: beyond, the
    /// largest is given up.
    pub streams: usize,
    /// Answers to one prompt (`n`), and prompts of one completion, multiplied.
    pub choices: usize,
    /// Bytes of stored responses.
    pub store: usize,
    /// How long a response is stored.
    pub store_time: Duration,
}

impl Limits {
    /// Most answers to one request: more than may run and wait at all would be told to come again for ever.
    pub fn answers(&self) -> usize {
        self.choices.min(self.requests)
    }
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            requests: 256,
            connections: 1024,
            body: 32 << 20,
            bodies: 256 << 20,
            head: 64 << 10,
            head_time: Duration::from_secs(60),
            body_time: Duration::from_secs(60),
            write_time: Duration::from_secs(60),
            drain_time: Duration::from_secs(30),
            streams: 256 << 20,
            choices: 16,
            store: 64 << 20,
            store_time: Duration::from_secs(60 * 60),
        }
    }
}
