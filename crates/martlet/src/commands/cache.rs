//! `martlet cache`: what the prefix cache keeps on disk.

use crate::app::App;
use crate::exit::Usage;
use crate::{paths, size};
use anyhow::Context;
use martlet_session::disk::{DiskCache, DiskOptions, Stats};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    pub what: What,
}

#[derive(Clone, Debug, clap::Subcommand)]
pub enum What {
    /// Print how much is stored, and how much was written today
    Stats(Place),
    /// Delete all that is stored, also by other versions of martlet
    Clear(Place),
    /// Read all that is stored, and delete what is damaged
    Verify(Place),
}

impl What {
    pub fn place(&self) -> &Place {
        match self {
            What::Stats(place) | What::Clear(place) | What::Verify(place) => place,
        }
    }
}

#[derive(Clone, Debug, clap::Args)]
pub struct Place {
    /// Print a JSON object
    #[arg(long)]
    pub json: bool,
    /// Folder of the cache [default: martlet/prefix in the platform's cache folder]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<String>,
}

const EXAMPLES: &str = "\
Examples:
  martlet cache stats
  martlet cache stats --json | jq .bytes
  martlet cache verify && echo intact
  martlet cache clear --dir /tmp/prefix

What is stored are parts of conversations as the model has read them, so that
they need not be computed again: whoever can read the folder can tell what was
said. All of this is safe while martlet runs. What is deleted is computed again
when it is needed; `verify` ends with exit code 1 if anything was damaged.";

pub fn run(args: &Args, app: &App) -> anyhow::Result<()> {
    let place = args.what.place();
    let Some(dir) = app.settings.cache_dir.clone().or_else(paths::cache_dir) else {
        return Err(Usage("there is no home folder: --dir can name the folder of the cache".into()).into());
    };
    let cache = open(&dir, app)?;
    let show = |json: Value, text: String| -> anyhow::Result<()> {
        let text = if place.json { serde_json::to_string_pretty(&json)? } else { text };
        Ok(app.terminal.result(&(text + "\n"))?)
    };
    let found = cache.as_ref().map(DiskCache::stats).unwrap_or_default();
    match args.what {
        What::Stats(_) => show(stats_json(&dir, &found), stats_text(&dir, &found)),
        What::Clear(_) => {
            let cleared = cache.as_ref().map_or(Ok((0, 0)), DiskCache::clear);
            let (files, bytes) = cleared.with_context(|| format!("{} can not be cleared", dir.display()))?;
            let text = format!("{}: {files} files deleted, {}", dir.display(), size::bytes(bytes));
            show(json!({"dir": dir.display().to_string(), "files": files, "bytes": bytes}), text)
        }
        What::Verify(_) => {
            let progress = app.terminal.progress("reading", 1);
            let read = cache.as_ref().map(|cache| cache.verify(&mut |done, total| progress.set(done, total)));
            drop(progress);
            let read = read.unwrap_or_default();
            // Damaged headers are found when the folder is opened.
            let (all, damaged) = (read.entries as u64 + found.damaged, read.damaged as u64 + found.damaged);
            let text =
                format!("{}: {all} segments read, {}, {damaged} damaged", dir.display(), size::bytes(read.bytes));
            let name = dir.display().to_string();
            show(json!({"dir": name, "entries": all, "bytes": read.bytes, "damaged": damaged}), text)?;
            match damaged {
                0 => Ok(()),
                _ => anyhow::bail!("{damaged} of {all} segments were damaged; they are not used, and computed again"),
            }
        }
    }
}

/// None where there is no such folder: nothing is stored then, and none is made.
fn open(dir: &Path, app: &App) -> anyhow::Result<Option<DiskCache>> {
    if !dir.try_exists().with_context(|| format!("{} can not be opened", dir.display()))? {
        return Ok(None);
    }
    let terminal = app.terminal;
    let options = DiskOptions::maintenance(PathBuf::from(dir), Arc::new(move |line| terminal.note(line)));
    Ok(Some(DiskCache::open(options, Arc::new(SystemTime::now))?))
}

fn stats_json(dir: &Path, stats: &Stats) -> Value {
    json!({
        "dir": dir.display().to_string(),
        "entries": stats.entries,
        "bytes": stats.bytes,
        "oldest_use": stats.oldest_use,
        "written_today": stats.written_today,
        "other_versions": stats.other_versions,
        "other_version_bytes": stats.other_version_bytes,
    })
}

fn stats_text(dir: &Path, stats: &Stats) -> String {
    let mut lines = vec![
        format!("folder         {}", dir.display()),
        format!("segments       {}", stats.entries),
        format!("size           {}", size::bytes(stats.bytes)),
        format!("written today  {}", size::bytes(stats.written_today)),
    ];
    let used = stats.oldest_use.map(|seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
    if let Some(unused) = used.and_then(|used| SystemTime::now().duration_since(used).ok()) {
        lines.push(format!("longest unused {:.1} days", unused.as_secs_f64() / 86_400.0));
    }
    if stats.other_versions > 0 {
        let size = size::bytes(stats.other_version_bytes);
        lines
            .push(format!("other versions {} files, {size}; `martlet cache clear` deletes them", stats.other_versions));
    }
    lines.join("\n")
}
