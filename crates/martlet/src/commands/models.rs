//! `martlet list`, `rm`, `verify` and `path`: the installed models.

use crate::app::App;
use crate::commands::pack;
use crate::size;
use martlet_hub::{Installed, catalogue};
use serde_json::{Value, json};
use std::fmt::Write as _;

#[derive(Debug, clap::Args)]
pub struct ListArgs {
    /// Show the models that can be pulled by a short name, too
    #[arg(long)]
    pub all: bool,
    /// Print a JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, clap::Args)]
pub struct RmArgs {
    /// Installed models; what has arrived of one that is not whole goes, too
    #[arg(required = true, value_name = "NAME")]
    pub names: Vec<String>,
    /// Print a JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, clap::Args)]
pub struct OneArgs {
    /// An installed model
    pub name: String,
    /// Print a JSON object
    #[arg(long)]
    pub json: bool,
}

pub fn list(args: &ListArgs, app: &App) -> anyhow::Result<()> {
    let store = app.store()?;
    let (installed, sources) = (store.list()?, store.sources());
    if args.json {
        let mut all = json!({
            "dir": store.dir().display().to_string(),
            "installed": installed.iter().map(described).collect::<Vec<_>>(),
            "sources": sources,
        });
        if args.all {
            all["known"] = catalogue::MODELS.iter().map(known).collect();
        }
        return Ok(app.terminal.result(&(serde_json::to_string_pretty(&all)? + "\n"))?);
    }
    let mut text = String::new();
    for model in &installed {
        let from = match &model.manifest {
            Ok(manifest) => {
                let source = &manifest.source;
                let revision = source.revision.as_ref().map_or_else(String::new, |r| format!(" at {:.12}", r));
                format!("{}{revision}", source.repository.as_ref().unwrap_or(&source.path))
            }
            Err(what) => format!("can not be used: its manifest {what}"),
        };
        // Writing to a String does not fail.
        let _ = writeln!(text, "{:20} {:>10}  {from}", model.name, size::bytes(model.bytes));
    }
    for name in &sources {
        let _ = writeln!(text, "{name:20} {:>10}  source; `martlet pull` goes on, `martlet rm {name}` deletes it", "");
    }
    if args.all {
        let _ = writeln!(text, "\nto pull         download   memory  streamed  licence     repository (~ estimated)");
        for m in &catalogue::MODELS {
            let gb = |bytes: u64| format!("{:.1} GB", bytes as f64 / 1e9);
            let tilde = if m.download.is_estimate() { "~" } else { "" };
            let streamed = m.streaming.map_or_else(|| "-".to_string(), |s| format!("~{}", gb(s)));
            let (download, resident) = (format!("{tilde}{}", gb(m.download.bytes())), format!("~{}", gb(m.resident)));
            let licence = m.licence.unwrap_or("see page");
            let _ = writeln!(
                text,
                "{:20} {download:>9} {resident:>9} {streamed:>9}  {licence:11} {}",
                m.name, m.repository
            );
        }
    }
    if text.is_empty() {
        app.terminal
            .note("no model is installed; `martlet pull` fetches one, `martlet list --all` shows which there are");
    }
    Ok(app.terminal.result(&text)?)
}

fn described(model: &Installed) -> Value {
    let (source, error) = match &model.manifest {
        Ok(manifest) => (Some(&manifest.source), None),
        Err(what) => (None, Some(what)),
    };
    json!({
        "name": model.name,
        "path": model.path.display().to_string(),
        "bytes": model.bytes,
        "repository": source.and_then(|s| s.repository.as_ref()),
        "revision": source.and_then(|s| s.revision.as_ref()),
        "error": error,
    })
}

fn known(m: &catalogue::Model) -> Value {
    json!({
        "name": m.name,
        "repository": m.repository,
        "download": m.download.bytes(),
        "download_is_estimate": m.download.is_estimate(),
        "resident_estimate": m.resident,
        "streaming_estimate": m.streaming,
        "licence": m.licence,
    })
}

pub fn rm(args: &RmArgs, app: &App) -> anyhow::Result<()> {
    let store = app.store()?;
    let (mut freed, mut missing) = (0, None);
    for name in &args.names {
        match store.remove(name)? {
            Some(bytes) => {
                freed += bytes;
                app.terminal.note(&format!("{name}: {} freed", size::bytes(bytes)));
            }
            None => missing = store.installed(name).err().or(missing),
        }
    }
    if args.json {
        app.terminal.result(&format!("{}\n", json!({"freed": freed})))?;
    }
    missing.map_or(Ok(()), |e| Err(e.into()))
}

pub fn verify(args: &OneArgs, app: &App) -> anyhow::Result<()> {
    let installed = app.store()?.installed(&args.name)?;
    pack::check(&installed.path, app)?;
    if args.json {
        let text = json!({"name": args.name, "bytes": installed.bytes, "whole": true});
        app.terminal.result(&format!("{text}\n"))?;
    }
    Ok(())
}

pub fn path(args: &OneArgs, app: &App) -> anyhow::Result<()> {
    let path = app.store()?.installed(&args.name)?.path.display().to_string();
    let text = if args.json { json!({"name": args.name, "path": path}).to_string() } else { path };
    Ok(app.terminal.result(&(text + "\n"))?)
}
