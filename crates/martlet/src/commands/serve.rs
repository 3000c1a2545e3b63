//! `martlet serve`: the model behind the APIs of OpenAI and Anthropic.

use crate::app::App;
use crate::exit::Usage;
use martlet_hub::Store;
use martlet_server::{Found, Library, Limits, Options, ServeError, Server};
use martlet_session::ModelSource;
use martlet_weights::pack::MANIFEST_FILE;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::sync::Arc;

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Address to listen on; beyond loopback it needs --api-key or --no-auth [default: 127.0.0.1]
    #[arg(long, value_name = "ADDRESS")]
    pub host: Option<String>,
    /// 0: any free one [default: 8080]
    #[arg(short, long, value_name = "N")]
    pub port: Option<String>,
    /// Keys, separated by commas, one of which clients must show. MARTLET_API_KEY keeps them out of the process list
    #[arg(long, value_name = "KEYS")]
    pub api_key: Option<String>,
    /// Listen beyond loopback without keys
    #[arg(long)]
    pub no_auth: bool,
    /// Web origins whose pages may use the server, separated by commas
    #[arg(long, value_name = "ORIGINS")]
    pub allow_origin: Option<String>,
    /// Names besides localhost and addresses under which it may be called, separated by commas
    #[arg(long, value_name = "NAMES")]
    pub allow_host: Option<String>,
    /// The model's name for clients [default: the checkpoint's]
    #[arg(long, value_name = "NAME")]
    pub model_name: Option<String>,
    /// Further names of the model, separated by commas
    #[arg(long, value_name = "NAMES")]
    pub alias: Option<String>,
    /// Answer whatever model a client asks for
    #[arg(long)]
    pub any_model: bool,
    /// Which models requests may name: installed ones, of which one is in memory at a time, or one, its own
    /// [default: installed]
    #[arg(long, value_name = "WHICH")]
    pub models: Option<String>,
    /// Answers at a time; more wait [default: 4]
    #[arg(long, value_name = "N")]
    pub sequences: Option<String>,
    /// Requests that may run and wait; more are refused with 429 [default: 256]
    #[arg(long, value_name = "N")]
    pub queue: Option<String>,
    /// Where an answer that repeats itself is ended: thinking, all or off [default: thinking]
    #[arg(long, value_name = "WHERE")]
    pub loop_guard: Option<String>,
    /// Largest body of a request [default: 32MiB]
    #[arg(long, value_name = "SIZE")]
    pub body_limit: Option<String>,
    /// Seconds for which a stream goes on without its reader [default: 0]
    #[arg(long, value_name = "SECONDS")]
    pub resume: Option<String>,
    /// Seconds for running requests when it stops [default: 30]
    #[arg(long, value_name = "SECONDS")]
    pub drain: Option<String>,
    /// A folder for traces of answers, for `martlet replay`. They hold what was said
    #[arg(long, value_name = "DIR")]
    pub trace: Option<String>,
    /// A file for the access log, besides standard error; it is rotated
    #[arg(long, value_name = "FILE")]
    pub log_file: Option<String>,
    /// For tests of clients: say the answers of this file instead of the model's, see docs/server.md
    #[arg(long, value_name = "FILE")]
    pub script: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  martlet serve -m ~/models/Qwen3.5-35B-A3B-4bit
  martlet serve --host 0.0.0.0 --api-key \"$KEY\"
  martlet serve --port 9000 --alias gpt-5,claude-sonnet-4-5
  martlet serve -m qwen3.5-4b --models one
  curl localhost:8080/v1/chat/completions -H 'content-type: application/json' \\
    -d '{\"messages\": [{\"role\": \"user\", \"content\": \"hello\"}]}'

The address is printed when it answers. Ctrl-C or SIGTERM stops it when its
requests have ended, a second one at once.";

impl Args {
    /// The flags that are settings too.
    pub fn flags(&self) -> Vec<(&'static str, String)> {
        let given = [
            ("host", &self.host),
            ("port", &self.port),
            ("api_key", &self.api_key),
            ("allow_origin", &self.allow_origin),
            ("allow_host", &self.allow_host),
            ("model_name", &self.model_name),
            ("alias", &self.alias),
            ("models", &self.models),
            ("sequences", &self.sequences),
            ("queue", &self.queue),
            ("loop_guard", &self.loop_guard),
            ("body_limit", &self.body_limit),
            ("resume", &self.resume),
            ("drain", &self.drain),
            ("trace", &self.trace),
            ("log_file", &self.log_file),
        ];
        let given = given.into_iter().filter_map(|(key, value)| Some((key, value.clone()?)));
        let switches = [("no_auth", self.no_auth), ("any_model", self.any_model)];
        given.chain(switches.into_iter().filter(|s| s.1).map(|(key, _)| (key, "true".to_string()))).collect()
    }
}

pub fn run(args: &Args, app: &App) -> anyhow::Result<()> {
    let serve = &app.settings.serve;
    let session = app.open_for(serve.sequences)?;
    let mut options = options(args, app);
    if serve.installed_models {
        share_installed(&mut options, app)?;
    }
    let server = Server::bind(Arc::new(session), options).map_err(mistake)?;
    app.terminal.result(&format!("http://{}\n", server.address()))?;
    let stop = server.stop();
    let _guard = app.interrupt.during(move || stop.stop());
    server.run(true);
    Ok(())
}

/// Lets requests name the installed models.
fn share_installed(options: &mut Options, app: &App) -> anyhow::Result<()> {
    let Some(store) = app.settings.store() else { return Ok(()) };
    let settings = &app.settings;
    let own = settings.model.as_deref().filter(|name| settings.installed(name).is_some());
    // Under another name it would be loaded a second time in its own place.
    if let Some(name) = own.filter(|name| options.model_name.is_some() && !options.aliases.iter().any(|a| a == name)) {
        options.aliases.push(name.to_string());
    }
    let open = martlet_session::Options { sequences: settings.serve.sequences, ..app.options()? };
    options.library = Some(Arc::new(Shelf { store, own: app.model(), open }));
    Ok(())
}

/// The installed models, as a server sees them.
#[derive(Debug)]
struct Shelf {
    store: Store,
    own: ModelSource,
    open: martlet_session::Options,
}

impl Library for Shelf {
    fn names(&self) -> Vec<String> {
        // A folder that can not be read has none; who asks for one is told.
        self.store.names().unwrap_or_default()
    }

    fn find(&self, name: &str) -> Option<Found> {
        let path = self.store.find(name)?;
        let manifest = path.join(MANIFEST_FILE).metadata().ok()?;
        let mut version = DefaultHasher::new();
        (manifest.len(), manifest.modified().ok()).hash(&mut version);
        #[cfg(unix)]
        std::os::unix::fs::MetadataExt::ino(&manifest).hash(&mut version);
        Some(Found { source: ModelSource::Path(path), version: version.finish() })
    }

    fn own(&self) -> ModelSource {
        self.own.clone()
    }

    fn options(&self) -> &martlet_session::Options {
        &self.open
    }
}

/// Refuses what would not be served.
pub fn check(args: &Args, app: &App) -> anyhow::Result<()> {
    options(args, app).check().map_err(mistake)
}

fn options(args: &Args, app: &App) -> Options {
    let serve = app.settings.serve.clone();
    let defaults = Limits::default();
    Options {
        host: serve.host,
        port: serve.port,
        api_keys: serve.api_keys,
        no_auth: serve.no_auth,
        allow_origins: serve.allow_origins,
        allow_hosts: serve.allow_hosts,
        model_name: serve.model_name,
        aliases: serve.aliases,
        any_model: serve.any_model,
        think: app.settings.think,
        loop_guard: serve.loop_guard,
        limits: Limits {
            requests: serve.queue,
            body: usize::try_from(serve.body_limit).unwrap_or(usize::MAX),
            drain_time: serve.drain,
            ..defaults
        },
        resume: serve.resume,
        script: args.script.clone(),
        trace: serve.trace,
        log_file: serve.log_file,
        quiet: app.settings.quiet,
        ..Options::default()
    }
}

/// What a person can put right is said as such.
fn mistake(error: ServeError) -> anyhow::Error {
    match error {
        ServeError::Threads(_) => error.into(),
        _ => Usage(error.to_string()).into(),
    }
}
