//! The command line of martlet.

mod answer;
mod app;
mod cli;
mod commands;
mod embedded;
mod exit;
mod http;
mod input;
mod interrupt;
mod news;
mod paths;
mod settings;
mod size;
mod terminal;

use app::App;
use clap::{CommandFactory, Parser};
use cli::{Cli, Command};
use commands::config::What;
use commands::service;
use interrupt::Interrupt;
use news::News;
use settings::{ConfigFile, Layers, Settings};
use std::path::Path;
use std::process::ExitCode;
use terminal::{ColorChoice, Terminal};

fn main() -> ExitCode {
    martlet_session::return_freed_blocks();
    let cli = Cli::parse();
    match run(&cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let code = exit::code(&error);
            if code != 0 && code != exit::INTERRUPTED && !error.is::<exit::Ended>() {
                // Settings may be what is wrong: the error is shown with what needs none.
                let color = cli.global.color.as_deref().and_then(|c| c.parse().ok()).unwrap_or(ColorChoice::Auto);
                Terminal::new(color, false, &environment).error(&exit::lines(&error));
            }
            ExitCode::from(code)
        }
    }
}

/// A variable that is not UTF-8 still says something: it becomes a value that is refused by name, rather than nothing.
fn environment(name: &str) -> Option<String> {
    std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
}

fn run(cli: &Cli) -> anyhow::Result<()> {
    match &cli.command {
        Command::Chat(args) => commands::chat::run(args, &app(cli)?),
        Command::Serve(args) => commands::serve::run(args, &app(cli)?),
        Command::Stats(args) => commands::stats::run(args, &app(cli)?),
        Command::Generate(args) => commands::generate::run(args, &app(cli)?),
        Command::Tokenize(args) => commands::tokenize::run(args, &app(cli)?),
        Command::Template(args) => commands::template::run(args, &app(cli)?),
        Command::Replay(args) => commands::replay::run(args, &app(cli)?),
        Command::Inspect(args) => commands::inspect::run(args, &app(cli)?),
        Command::Plan(args) => commands::plan::run(args, &app(cli)?),
        Command::Quantize(args) => commands::quantize::run(args, &app(cli)?),
        Command::Pull(args) => commands::pull::run(args, &app(cli)?),
        Command::List(args) => commands::models::list(args, &app(cli)?),
        Command::Rm(args) => commands::models::rm(args, &app(cli)?),
        Command::Verify(args) => commands::models::verify(args, &app(cli)?),
        Command::Path(args) => commands::models::path(args, &app(cli)?),
        Command::Pack(args) => commands::pack::run(args, &app(cli)?),
        Command::Bench(args) => commands::bench::run(args, &app(cli)?),
        Command::Benchtest(args) => commands::benchtest::run(args, &app(cli)?),
        Command::Synthetic(args) => commands::synthetic::run(args, &app(cli)?),
        Command::TraceExperts(args) => commands::trace_experts::run(args, &app(cli)?),
        Command::Simulate(args) => {
            let (settings, terminal) = settled(cli)?;
            commands::simulate::run(args, &settings, terminal)
        }
        Command::Cache(args) => commands::cache::run(args, &app(cli)?),
        // The rest works where the settings are wrong.
        Command::Service(args) => match &args.what {
            service::What::Install(args) => service::install(args, &app(cli)?),
            service::What::Status { json } => service::status(*json, plain()),
            service::What::Logs(args) => service::logs(args),
            service::What::Remove => service::remove(plain()),
        },
        Command::Config(args) => match args.what {
            What::Path => config_path(),
            What::Show { json } => commands::config::show(json, &app(cli)?),
        },
        Command::Completions { shell } => completions(*shell),
        Command::Man { dir } => man(dir),
    }
}

/// Settings resolved.
fn settled(cli: &Cli) -> anyhow::Result<(Settings, Terminal)> {
    let file = match paths::config_file(&environment) {
        Some((path, named)) => ConfigFile::read(&path, named)?,
        None => None,
    };
    let settings = Settings::resolve(&Layers { flags: cli.flags(), environment: &environment, file })?;
    let terminal = Terminal::new(settings.color, settings.quiet, &environment);
    Ok((settings, terminal))
}

/// The same, and Ctrl-C taken over.
fn app(cli: &Cli) -> anyhow::Result<App> {
    let (settings, terminal) = settled(cli)?;
    let news = News::new(&settings, terminal);
    Ok(App { settings, terminal, interrupt: Interrupt::install()?, news })
}

fn plain() -> Terminal {
    Terminal::new(ColorChoice::Never, false, &environment)
}

fn config_path() -> anyhow::Result<()> {
    match paths::config_file(&environment) {
        Some((path, _)) => Ok(plain().result(&format!("{}\n", path.display()))?),
        None => Err(exit::Usage("there is no home folder: MARTLET_CONFIG can name a configuration file".into()).into()),
    }
}

fn completions(shell: clap_complete::Shell) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "martlet", &mut script);
    Ok(plain().result(&String::from_utf8(script)?)?)
}

fn man(dir: &Path) -> anyhow::Result<()> {
    use anyhow::Context;
    std::fs::create_dir_all(dir).with_context(|| format!("{} can not be made", dir.display()))?;
    clap_mangen::generate_to(Cli::command(), dir).with_context(|| format!("{} can not be written", dir.display()))?;
    Ok(())
}
