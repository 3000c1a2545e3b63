//! `martlet pack`: a model in the form in which it is computed.

use crate::app::App;
use crate::size;
use martlet_model::expected_tensors;
use martlet_session::{ModelSource, SessionError};
use martlet_weights::WeightsError;
use martlet_weights::pack::{Repository, Summary, pack, verify};
use std::path::{Path, PathBuf};
use std::time::Instant;

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Checkpoint folder, .safetensors or .gguf file
    #[arg(required_unless_present = "verify")]
    pub src: Option<PathBuf>,
    /// New folder; it appears when it is complete
    #[arg(required_unless_present = "verify")]
    pub dst: Option<PathBuf>,
    /// Read a whole pack, and tell whether it is as it was written
    #[arg(long, value_name = "PACK", conflicts_with_all = ["src", "dst"])]
    pub verify: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  martlet pack Qwen3.5-4B-4bit Qwen3.5-4B.martlet
  martlet chat -m Qwen3.5-4B.martlet
  martlet pack --verify Qwen3.5-4B.martlet

A pack opens at once, since nothing has to be rewritten; its texts are those of
the checkpoint. It takes about as much room, and has all that it needs in it.";

pub fn run(args: &Args, app: &App) -> anyhow::Result<()> {
    match (&args.src, &args.dst, &args.verify) {
        (Some(src), Some(dst), _) => write(&ModelSource::Path(src.clone()), dst, None, app),
        (_, _, Some(dir)) => check(dir, app),
        _ => Err(crate::exit::Usage("martlet pack SOURCE NEW_FOLDER is expected".into()).into()),
    }
}

/// Reads a whole pack, and says whether it is as it was written.
pub fn check(dir: &Path, app: &App) -> anyhow::Result<()> {
    let progress = app.terminal.progress_of_bytes("verifying", 1);
    let checked = verify(dir, &mut |done, total| progress.set(done, total));
    drop(progress);
    checked.map_err(|e| of(dir.display().to_string(), e))?;
    app.terminal.note(&format!("{}: whole", dir.display()));
    Ok(())
}

/// Makes a pack; `repository` is where the source was fetched from.
pub fn write(src: &ModelSource, dst: &Path, repository: Option<&Repository<'_>>, app: &App) -> anyhow::Result<()> {
    let started = Instant::now();
    let name = match src {
        ModelSource::Path(path) => path.display().to_string(),
        made => made.name(),
    };
    let (spec, _, checkpoint) = src.check()?;
    let expected = expected_tensors(&spec, checkpoint.has("mtp.fc.weight"));
    let progress = app.terminal.progress_of_bytes("packing", 1);
    let summary = pack(&checkpoint, &expected, dst, repository, &mut |done, total| progress.set(done, total));
    drop(progress);
    say(&summary.map_err(|e| of(name, e))?, dst, started, app);
    Ok(())
}

/// Says what was packed, and in what time.
pub fn say(summary: &Summary, dst: &Path, started: Instant, app: &App) {
    if !summary.left_out.is_empty() {
        app.terminal.note(&format!("left out, since the model does not use them: {}", summary.left_out.join(", ")));
    }
    let seconds = started.elapsed().as_secs_f64();
    app.terminal.note(&format!(
        "{}: {} -> {} in {seconds:.1} s",
        dst.display(),
        size::bytes(summary.source_bytes),
        size::bytes(summary.bytes),
    ));
}

fn of(model: String, e: WeightsError) -> SessionError {
    SessionError::Open { model, source: Box::new(e.into()) }
}
