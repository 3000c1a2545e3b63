//! `martlet service`: `martlet serve` in the background, by systemd's user manager or launchd.

mod job;
mod launchd;
mod systemd;

use crate::app::App;
use crate::commands::serve;
use crate::exit::{ServiceError, Usage};
use crate::paths;
use crate::terminal::Terminal;
use anyhow::Context;
use job::{Job, Surroundings};
use serde::Serialize;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    pub what: What,
}

#[derive(Debug, clap::Subcommand)]
pub enum What {
    /// Write the service, and start it; with the options of `martlet serve`
    #[command(after_help = INSTALL)]
    Install(Box<Install>),
    /// Tell whether it runs
    #[command(after_help = STATUS)]
    Status {
        /// Print a JSON object
        #[arg(long)]
        json: bool,
    },
    /// Print its log: the file of --log-file, or what the journal has
    #[command(after_help = LOGS)]
    Logs(Logs),
    /// End it, and delete its files
    Remove,
}

#[derive(Debug, clap::Args)]
pub struct Install {
    /// Print the service; write and start nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Write over a service of this name that somebody else wrote
    #[arg(long)]
    pub force: bool,
    #[command(flatten)]
    pub serve: serve::Args,
}

#[derive(Clone, Debug, clap::Args)]
pub struct Logs {
    /// Go on with what is written from now on
    #[arg(short, long)]
    pub follow: bool,
    /// The last lines, so many
    #[arg(short = 'n', long, value_name = "N", default_value_t = 100)]
    pub lines: u32,
}

const INSTALL: &str = "\
Examples:
  martlet service install -m ~/models/Qwen3.5-35B-A3B-4bit
  martlet service install -m MODEL --log-file ~/martlet.log --dry-run
  MARTLET_API_KEY=secret martlet service install --host 0.0.0.0

On Linux it is the unit martlet.service of systemd's user manager; on macOS, an
agent of launchd. Flags and MARTLET_* variables of now are written into it;
API keys go to a file that you alone can read, and stay out of the command.
The configuration file is read whenever the service starts. Another `install`
takes the place of the first.

The service begins when you log in, and ends when you log out. On Linux
`loginctl enable-linger` has it run from boot on.";

const STATUS: &str = "\
Exit codes:
  0  it runs
  5  it is installed and does not run
  6  it is not installed
  1  the system does not tell";

const LOGS: &str = "\
Examples:
  martlet service logs -f
  martlet service logs -n 20";

/// By which martlet knows its files again.
const MARK: &str = "Written by `martlet service install`, which writes over it.";

/// How a service is.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct State {
    running: bool,
    /// In the system's words.
    state: String,
    since: Option<String>,
    /// Whether it begins at login.
    enabled: Option<bool>,
    pid: Option<u32>,
    restarts: Option<u32>,
    /// How it last ended, unless that was well.
    failure: Option<String>,
}

/// What `status` prints.
#[derive(Debug, Serialize)]
struct Status {
    installed: bool,
    #[serde(flatten)]
    state: State,
    /// The service's own.
    file: String,
    log_file: Option<String>,
}

/// What runs services here.
#[derive(Clone, Debug)]
enum Manager {
    /// With the file that holds the keys.
    Systemd { keys: PathBuf },
    /// With the folder of logs.
    Launchd { logs: PathBuf },
}

/// The service's file, whether it is there or not.
#[derive(Clone, Debug)]
struct Place {
    unit: PathBuf,
    manager: Manager,
}

pub fn install(args: &Install, app: &App) -> anyhow::Result<()> {
    serve::check(&args.serve, app)?;
    let place = Place::here()?;
    let around = Surroundings {
        executable: std::env::current_exe().context("martlet does not find itself")?,
        folder: std::env::current_dir().context("there is no current folder")?,
        environment: &crate::environment,
    };
    let mut job = Job::new(&app.settings, args.serve.script.as_deref(), &around)?;
    if args.dry_run {
        job.keys = job.keys.map(|_| "(set)".to_string());
        let text = place.text(&mut job);
        app.terminal.note(&format!("{}:", place.unit.display()));
        return Ok(app.terminal.result(&text)?);
    }
    let text = place.text(&mut job);
    if let Some(path) = place.foreign()?.filter(|_| !args.force) {
        return Err(Usage(format!("{} is not by martlet: --force writes over it", path.display())).into());
    }
    let former = read(&place.unit)?;
    if let Manager::Systemd { keys: path } = &place.manager {
        match &job.keys {
            Some(keys) => write(path, &systemd::keys(keys))?,
            None => delete(path)?,
        }
    }
    write(&place.unit, &text)?;
    let what = if former.is_some() { "written over" } else { "written" };
    app.terminal.result(&format!("{}: {what}\n", place.unit.display()))?;
    carry_out(&place.start(former.is_some()), "the service is written, but was not started")?;
    app.terminal.result("started; `martlet service status` tells how it is\n")?;
    Ok(())
}

pub fn remove(terminal: Terminal) -> anyhow::Result<()> {
    let place = Place::here()?;
    if let Some(path) = place.foreign()? {
        return Err(Usage(format!("{} is not by martlet: delete it by hand", path.display())).into());
    }
    if read(&place.unit)?.is_none() {
        return Err(ServiceError::NotInstalled.into());
    }
    let stopped = carry_out(&[place.stop()], "the service may still run");
    delete(&place.unit)?;
    if let Manager::Systemd { keys } = &place.manager {
        delete(keys)?;
    }
    terminal.result(&format!("{}: deleted\n", place.unit.display()))?;
    stopped?;
    match place.manager {
        Manager::Systemd { .. } => carry_out(&[systemd::forget()], "systemd still knows the service"),
        Manager::Launchd { .. } => Ok(()),
    }
}

pub fn status(json: bool, terminal: Terminal) -> anyhow::Result<()> {
    let place = Place::here()?;
    let Some(text) = read(&place.unit)? else {
        if json {
            terminal.result("{\"installed\": false}\n")?;
        }
        return Err(ServiceError::NotInstalled.into());
    };
    let state = place.state().context("the system does not tell whether the service runs")?;
    let (file, log_file) = (place.unit.display().to_string(), place.log_file(&text));
    let found = Status { installed: true, state, file, log_file };
    let text = if json { serde_json::to_string_pretty(&found)? + "\n" } else { found.table() };
    terminal.result(&text)?;
    if found.state.running { Ok(()) } else { Err(ServiceError::NotRunning.into()) }
}

pub fn logs(args: &Logs) -> anyhow::Result<()> {
    let place = Place::here()?;
    let Some(text) = read(&place.unit)? else { return Err(ServiceError::NotInstalled.into()) };
    let command = match (place.log_file(&text), &place.manager) {
        (Some(path), _) => {
            let lines = format!("-n{}", args.lines);
            // By its name: the file is put aside when it is full.
            ["tail", &lines]
                .into_iter()
                .chain(args.follow.then_some("-F"))
                .chain([path.as_str()])
                .map(String::from)
                .collect()
        }
        (None, Manager::Systemd { .. }) => systemd::journal(args.lines, args.follow),
        (None, Manager::Launchd { .. }) => return Err(Usage("the service has no log file".into()).into()),
    };
    let ended = program(&command).status().with_context(|| format!("{} can not be run", command[0]))?;
    anyhow::ensure!(ended.success(), "{} ended with {ended}", command[0]);
    Ok(())
}

impl Status {
    fn table(&self) -> String {
        let state = &self.state;
        let since = state.since.as_ref().map_or(String::new(), |since| format!(", since {since}"));
        let rows = [
            ("state", Some(format!("{}{since}", state.state))),
            ("failure", state.failure.clone()),
            ("process", state.pid.map(|pid| pid.to_string())),
            ("restarts", state.restarts.map(|n| n.to_string())),
            ("at login", state.enabled.map(|enabled| if enabled { "yes" } else { "no" }.to_string())),
            ("file", Some(self.file.clone())),
            ("log file", self.log_file.clone()),
        ];
        rows.iter().filter_map(|(name, value)| Some(format!("{name:8}  {}\n", value.as_ref()?))).collect()
    }
}

impl Place {
    fn here() -> Result<Place, Usage> {
        let homeless = || Usage("there is no home folder for a service".into());
        match std::env::consts::OS {
            "linux" => {
                let config = paths::config_home().ok_or_else(homeless)?;
                let keys = config.join("martlet/service.env");
                Ok(Place { unit: config.join("systemd/user").join(systemd::UNIT), manager: Manager::Systemd { keys } })
            }
            "macos" => {
                let library = paths::home().ok_or_else(homeless)?.join("Library");
                let unit = library.join("LaunchAgents").join(format!("{}.plist", launchd::LABEL));
                Ok(Place { unit, manager: Manager::Launchd { logs: library.join("Logs") } })
            }
            other => Err(Usage(format!("services are for Linux with systemd and for macOS, and this is {other}"))),
        }
    }

    /// The service's text. Where there is no journal, the job gets a log file.
    fn text(&self, job: &mut Job) -> String {
        match &self.manager {
            Manager::Systemd { keys } => systemd::unit(job, job.keys.is_some().then_some(keys)),
            Manager::Launchd { logs } => {
                if job.log_file.is_none() {
                    job.log_to(logs.join("martlet.log").to_string_lossy().into_owned());
                }
                launchd::plist(job, &logs.join("martlet.errors.log"))
            }
        }
    }

    /// A file in the way that somebody else wrote.
    fn foreign(&self) -> anyhow::Result<Option<&Path>> {
        let keys = match &self.manager {
            Manager::Systemd { keys } => Some(keys),
            Manager::Launchd { .. } => None,
        };
        for path in [&self.unit].into_iter().chain(keys) {
            if read(path)?.is_some_and(|text| !text.contains(MARK)) {
                return Ok(Some(path));
            }
        }
        Ok(None)
    }

    fn log_file(&self, text: &str) -> Option<String> {
        match self.manager {
            Manager::Systemd { .. } => systemd::log_file(text),
            Manager::Launchd { .. } => launchd::log_file(text),
        }
    }

    fn start(&self, again: bool) -> Vec<Vec<String>> {
        match self.manager {
            Manager::Systemd { .. } => systemd::start(again),
            Manager::Launchd { .. } => launchd::start(&self.unit.to_string_lossy(), again),
        }
    }

    fn stop(&self) -> Vec<String> {
        match self.manager {
            Manager::Systemd { .. } => systemd::stop(),
            Manager::Launchd { .. } => launchd::stop(&self.unit.to_string_lossy()),
        }
    }

    fn state(&self) -> anyhow::Result<State> {
        match self.manager {
            Manager::Systemd { .. } => Ok(systemd::state(&output(&systemd::show())?)),
            Manager::Launchd { .. } => Ok(launchd::state(&output(&launchd::show())?)),
        }
    }
}

fn read(path: &Path) -> anyhow::Result<Option<String>> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e).with_context(|| format!("{} can not be read", path.display())),
    }
}

/// Whole or not at all, and for its owner's eyes.
fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    let write = || -> io::Result<()> {
        std::fs::create_dir_all(folder)?;
        let mut file = tempfile::NamedTempFile::new_in(folder)?;
        file.write_all(text.as_bytes())?;
        file.persist(path)?;
        Ok(())
    };
    write().with_context(|| format!("{} can not be written", path.display()))
}

fn delete(path: &Path) -> anyhow::Result<()> {
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => {
            Err(e).with_context(|| format!("{} can not be deleted", path.display()))
        }
        _ => Ok(()),
    }
}

/// One command after the other, until one fails: then `wrong`, why, and what is left to do.
fn carry_out(steps: &[Vec<String>], wrong: &str) -> anyhow::Result<()> {
    for (done, step) in steps.iter().enumerate() {
        output(step).map_err(|e| {
            let rest: Vec<String> = steps[done..].iter().map(|step| step.join(" ")).collect();
            anyhow::anyhow!("{wrong}: {e:#}\ndo      {}", rest.join(" && "))
        })?;
    }
    Ok(())
}

/// What a command prints. Its error says what it said.
fn output(command: &[String]) -> anyhow::Result<String> {
    let output = program(command).output().with_context(|| format!("{} can not be run", command[0]))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        anyhow::bail!("{} ended with {}: {}", command.join(" "), output.status, said.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn program(command: &[String]) -> Command {
    let mut program = Command::new(&command[0]);
    program.args(&command[1..]);
    program
}
