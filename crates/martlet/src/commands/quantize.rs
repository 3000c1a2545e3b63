//! `martlet quantize`: a checkpoint with packed weights.

use crate::app::App;
use crate::size;
use martlet_session::SessionError;
use martlet_weights::quantise::{Options, quantise};
use martlet_weights::{Checkpoint, WeightsError};
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Checkpoint folder with plain weights
    pub src: PathBuf,
    /// New folder; it appears when it is complete
    pub dst: PathBuf,
    /// Bits of a weight: 1 to 6, or 8 [default: 4, or what the mode has]
    #[arg(long, value_name = "N")]
    pub bits: Option<u8>,
    /// Weights that share a scale: 32, 64 or 128 [default: 64, or what the mode has]
    #[arg(long, value_name = "N")]
    pub group: Option<u16>,
    /// Format of the packed weights
    #[arg(long, default_value = "affine", value_parser = ["affine", "mxfp4", "mxfp8", "nvfp4"])]
    pub mode: String,
}

const EXAMPLES: &str = "\
Examples:
  martlet quantize Qwen3.5-9B Qwen3.5-9B-4bit
  martlet quantize Qwen3.5-9B Qwen3.5-9B-8bit --bits 8 --group 32

The layout is that of MLX, which mlx-lm reads too. Routers keep 8 bits; norms
and other small tensors stay as they are.";

pub fn run(args: &Args, app: &App) -> anyhow::Result<()> {
    let options = Options::new(&args.mode, args.bits, args.group).map_err(|e| crate::exit::Usage(e.to_string()))?;
    let unopened = |e: WeightsError| {
        let model = args.src.display().to_string();
        SessionError::Open { model, source: Box::new(e.into()) }
    };
    let checkpoint = Checkpoint::open(&args.src).map_err(unopened)?;
    let progress = app.terminal.progress("quantising", 1);
    let summary = quantise(&checkpoint, &args.dst, options, &mut |done, total| progress.set(done, total))?;
    drop(progress);
    if !summary.unfit.is_empty() {
        app.terminal.note(&format!("left plain, since no group fits their width: {}", summary.unfit.join(", ")));
    }
    app.terminal.note(&format!(
        "{}: {} weights packed, {} left plain; {} -> {}",
        args.dst.display(),
        size::count(summary.packed_weights),
        size::count(summary.plain_weights),
        size::bytes(summary.source_bytes),
        size::bytes(summary.bytes),
    ));
    Ok(())
}
