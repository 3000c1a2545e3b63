//! `martlet pull`: a published model, fetched, checked, packed and installed under a name.

mod arriving;

use crate::app::App;
use crate::commands::pack;
use crate::exit::Usage;
use crate::news::News;
use crate::{paths, settings, size};
use anyhow::Context;
use martlet_hub::{Hub, HubCache, HubOptions, Locked, RemoteFile, Snapshot, Store, Target, cache, catalogue, select};
use martlet_session::ModelSource;
use martlet_session::machine::Machine;
use martlet_weights::pack::Repository;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Short name (see `martlet list --all`), OWNER/REPOSITORY, either with @REVISION, or a checkpoint that is here
    /// [default: what fits this machine's memory]
    #[arg(value_name = "MODEL")]
    pub target: Option<String>,
    /// Install it under this name
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Which GGUF file of the repository; of several parts, the first
    #[arg(long, value_name = "FILE")]
    pub file: Option<String>,
    /// Keep the fetched files beside the pack
    #[arg(long)]
    pub keep_source: bool,
    /// Connections at a time
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u8).range(1..=64))]
    pub connections: u8,
    /// Print a JSON object when it is done
    #[arg(long)]
    pub json: bool,
}

const EXAMPLES: &str = "\
Examples:
  martlet pull                       the model that fits this machine
  martlet pull qwen3.5-4b
  martlet pull mlx-community/Qwen3.5-4B-MLX-4bit@main --name small
  martlet chat -m qwen3.5-4b

Interrupted or killed, the same command goes on where it ended. HF_ENDPOINT,
HF_TOKEN, HF_HOME, HF_HUB_CACHE and HF_HUB_OFFLINE mean what they mean to
Hugging Face's tools; what those have fetched is used.";

/// What a fetched folder is of, beside it: a later run goes on with the same commit.
#[derive(Serialize, Deserialize, PartialEq)]
struct Pinned {
    repository: String,
    revision: String,
    commit: String,
}

const PINNED: &str = ".pull.json";

/// The work on one name.
struct Pull<'a> {
    args: &'a Args,
    app: &'a App,
    name: String,
    /// Of the pack.
    path: PathBuf,
    /// Of the fetched files.
    source: PathBuf,
    started: Instant,
}

pub fn run(args: &Args, app: &App) -> anyhow::Result<()> {
    app.news.iter().for_each(News::ask);
    let target = match &args.target {
        Some(text) => Target::parse(text)?,
        None => recommended(app)?,
    };
    let store = app.store()?;
    let name = args.name.clone().unwrap_or_else(|| target.short_name());
    let (path, source) = (store.path(&name)?, store.source(&name)?);
    let lock = store.lock(&name)?;
    let pull = Pull { args, app, name, path, source, started: Instant::now() };
    pull.make_way(&store)?;
    match &target {
        Target::Local(from) => pull.local(from)?,
        Target::Repository { repository, revision, .. } => pull.repository(repository, revision)?,
    }
    drop::<Locked>(lock);
    if args.target.is_none() {
        write_setting(&pull.name, app)?;
    }
    Ok(())
}

/// What fits into the memory here, said before it is fetched.
fn recommended(app: &App) -> anyhow::Result<Target> {
    let memory = app.settings.memory.or(Machine::here().memory);
    let memory =
        memory.ok_or_else(|| Usage("this machine does not say how much memory it has: name a model".into()))?;
    let model = catalogue::recommended(memory);
    let about = if model.download.is_estimate() { "about " } else { "" };
    app.terminal.note(&format!(
        "{} fits this machine ({} of memory): {about}{:.1} GB from {}, licence {}",
        model.name,
        size::bytes(memory),
        model.download.bytes() as f64 / 1e9,
        model.repository,
        model.licence.unwrap_or("on its page"),
    ));
    Ok(Target::parse(model.name)?)
}

/// The hub that the environment says.
fn hub(args: &Args) -> anyhow::Result<Hub> {
    let (environment, home) = (&crate::environment, paths::home());
    let set = |name: &str| environment(name).map(|v| v.trim().to_string()).filter(|v| !v.is_empty());
    let yes = |v: String| !["0", "no", "off", "false"].contains(&v.to_ascii_lowercase().as_str());
    let options = HubOptions {
        endpoint: set("HF_ENDPOINT").unwrap_or_else(|| martlet_hub::ENDPOINT.to_string()),
        token: cache::token(environment, home.as_deref()),
        offline: set("HF_HUB_OFFLINE").is_some_and(yes),
        connections: args.connections.into(),
        ..HubOptions::default()
    };
    Ok(Hub::new(options, HubCache::from_environment(environment, home.as_deref()))?)
}

impl Pull<'_> {
    /// A pack that can not be read is made again.
    fn make_way(&self, store: &Store) -> anyhow::Result<()> {
        if let Ok(installed) = store.installed(&self.name)
            && let Err(what) = &installed.manifest
        {
            self.app.terminal.note(&format!("{} is made again: its manifest {what}", self.name));
            store.remove_pack(&self.name)?;
        }
        Ok(())
    }

    fn local(&self, from: &Path) -> anyhow::Result<()> {
        if self.path.join(martlet_weights::pack::MANIFEST_FILE).is_file() {
            let text = format!("\"{}\" is installed already: `martlet rm {}` removes it", self.name, self.name);
            return Err(Usage(text).into());
        }
        pack::write(&ModelSource::Path(from.to_path_buf()), &self.path, None, self.app)?;
        self.say(json!({"source": from.display().to_string()}))
    }

    fn repository(&self, repository: &str, revision: &str) -> anyhow::Result<()> {
        let hub = hub(self.args)?;
        let pinned = self.pinned(repository, revision);
        let snapshot = match &pinned {
            // The branch may have moved on since: what has arrived would be of no use.
            Some(commit) => hub.snapshot(repository, commit).or_else(|_| hub.snapshot(repository, revision))?,
            None => hub.snapshot(repository, revision)?,
        };
        if self.is_there(&snapshot)? {
            return self.say(json!({"repository": repository, "revision": snapshot.commit, "downloaded": 0}));
        }
        let files = select::select(&snapshot, self.args.file.as_deref(), |file| hub.small_file(&snapshot, file))?;
        if let Some(config) = files.iter().find(|f| f.name == select::CONFIG_FILE && f.size <= select::SMALL) {
            // A model that martlet does not run is told before its weights are fetched.
            let config = serde_json::from_slice(&hub.small_file(&snapshot, config)?).context("config.json")?;
            martlet_model::read_config(&config).with_context(|| format!("{repository} can not be used"))?;
        }
        self.pin(&snapshot, revision)?;
        self.app.terminal.note(&format!(
            "{repository} at {}: {} files, {}",
            &snapshot.commit[..12],
            files.len(),
            size::bytes(files.iter().map(|f| f.size).sum())
        ));
        let downloaded = match arriving::can_arrive(&files) {
            true => self.pack_as_it_arrives(&hub, &snapshot, &files)?,
            false => self.pack_when_it_is_there(&hub, &snapshot, &files)?,
        };
        if !self.args.keep_source {
            std::fs::remove_dir_all(&self.source)
                .with_context(|| format!("{} can not be deleted", self.source.display()))?;
        }
        let source = self.args.keep_source.then(|| self.source.display().to_string());
        self.say(json!({
            "repository": repository,
            "revision": snapshot.commit,
            "downloaded": downloaded,
            "source": source,
        }))
    }

    /// Bytes that were fetched.
    fn pack_as_it_arrives(&self, hub: &Hub, snapshot: &Snapshot, files: &[RemoteFile]) -> anyhow::Result<u64> {
        let done = arriving::Arriving { pull: self, hub, snapshot, files }.run()?;
        pack::say(&done.summary, &self.path, self.started, self.app);
        Ok(done.downloaded)
    }

    /// The same for a GGUF file, which says what it holds only after a long table of tokens.
    fn pack_when_it_is_there(&self, hub: &Hub, snapshot: &Snapshot, files: &[RemoteFile]) -> anyhow::Result<u64> {
        let mut shown = Shown::new(self.app);
        let weights = select::weight_bytes(files);
        let fetched = hub.fetch(snapshot, files, &self.source, weights, &mut |now| shown.set(&now))?;
        drop(shown);
        let whence = Repository { name: &snapshot.repository, revision: &snapshot.commit };
        // A GGUF file is opened by its name, a checkpoint by its folder.
        let from = match &self.args.file {
            Some(file) => self.source.join(file),
            None => self.source.clone(),
        };
        pack::write(&ModelSource::Path(from), &self.path, Some(&whence), self.app)?;
        Ok(fetched.done - fetched.found)
    }

    /// The commit that an earlier run has begun to fetch.
    fn pinned(&self, repository: &str, revision: &str) -> Option<String> {
        let text = std::fs::read(self.source.join(PINNED)).ok()?;
        let pinned: Pinned = serde_json::from_slice(&text).ok()?;
        (pinned.repository == repository && pinned.revision == revision).then_some(pinned.commit)
    }

    fn pin(&self, snapshot: &Snapshot, revision: &str) -> anyhow::Result<()> {
        let (repository, commit) = (snapshot.repository.clone(), snapshot.commit.clone());
        let text = serde_json::to_vec(&Pinned { repository, revision: revision.to_string(), commit })?;
        let path = self.source.join(PINNED);
        std::fs::create_dir_all(&self.source)
            .and_then(|()| std::fs::write(&path, text))
            .with_context(|| path.display().to_string())
    }

    /// Whether this very commit is installed; another one is not replaced unasked.
    fn is_there(&self, snapshot: &Snapshot) -> anyhow::Result<bool> {
        let Ok(installed) = self.app.store()?.installed(&self.name) else { return Ok(false) };
        let Ok(manifest) = installed.manifest else { return Ok(false) };
        let (name, found) = (&self.name, &manifest.source);
        if found.repository.as_deref() == Some(&snapshot.repository)
            && found.revision.as_deref() == Some(&snapshot.commit)
        {
            return Ok(true);
        }
        let from = found.repository.as_deref().unwrap_or(&found.path);
        let revision = found.revision.as_deref().unwrap_or("an unknown revision");
        Err(Usage(format!(
            "\"{name}\" is installed from {from} at {revision}; the hub has {} at {}. `martlet rm {name}` makes room, --name gives the new one another name",
            snapshot.repository, snapshot.commit
        ))
        .into())
    }

    fn say(&self, mut result: serde_json::Value) -> anyhow::Result<()> {
        let installed = self.app.store()?.installed(&self.name)?;
        let path = installed.path.display().to_string();
        if self.args.json {
            result["name"] = json!(self.name);
            result["path"] = json!(path);
            result["bytes"] = json!(installed.bytes);
            result["seconds"] = json!(self.started.elapsed().as_secs_f64());
            return Ok(self.app.terminal.result(&(serde_json::to_string_pretty(&result)? + "\n"))?);
        }
        let how = format!("`martlet chat -m {}`", self.name);
        self.app.terminal.note(&format!("{} is installed in {path}: {how}", self.name));
        Ok(())
    }
}

/// Progress: a bar on a terminal, else a line every few seconds.
struct Shown<'a> {
    app: &'a App,
    bar: crate::terminal::Progress,
    started: Instant,
    said: Instant,
}

const EVERY: Duration = Duration::from_secs(5);

impl Shown<'_> {
    fn new(app: &App) -> Shown<'_> {
        let now = Instant::now();
        Shown { app, bar: app.terminal.progress_of_bytes("fetching", 1), started: now, said: now }
    }

    fn set(&mut self, now: &martlet_hub::FetchProgress) {
        self.bar.set(now.done, now.total);
        if self.app.terminal.is_live() || self.said.elapsed() < EVERY {
            return;
        }
        self.said = Instant::now();
        let rate = now.done.saturating_sub(now.found) as f64 / self.started.elapsed().as_secs_f64();
        let left = match rate > 0.0 {
            true => format!("{:.0} s left", (now.total - now.done.min(now.total)) as f64 / rate),
            false => "nothing has come yet".to_string(),
        };
        let (done, total) = (size::bytes(now.done), size::bytes(now.total));
        self.app.terminal.note(&format!("fetching: {done} of {total}, {}/s, {left}", size::bytes(rate as u64)));
    }
}

/// Puts `model = "NAME"` into the configuration file; all else in it stays as it is.
fn write_setting(name: &str, app: &App) -> anyhow::Result<()> {
    let Some((path, _)) = paths::config_file(&crate::environment) else { return Ok(()) };
    let old = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(e) => return Err(e).with_context(|| path.display().to_string()),
    };
    let new = settings::with_model(&old, name)
        .with_context(|| format!("{}: model = \"{name}\" can not be put in", path.display()))?;
    let begun = path.with_added_extension("new");
    let write = || {
        std::fs::create_dir_all(path.parent().unwrap_or(Path::new(".")))?;
        std::fs::write(&begun, new)?;
        std::fs::rename(&begun, &path)
    };
    write().with_context(|| path.display().to_string())?;
    app.terminal.note(&format!("{}: model = \"{name}\"", path.display()));
    Ok(())
}
