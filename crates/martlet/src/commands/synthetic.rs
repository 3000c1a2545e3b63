//! `martlet synthetic`: a checkpoint of random weights.

use crate::app::App;
use crate::exit::Usage;
use crate::size;
use martlet_model::{shape_names, synthetic};
use martlet_session::{ModelSource, SyntheticModel};
use martlet_weights::synthetic::{MODES, Options, Routing};
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Shape of a released model
    #[arg(ignore_case = true, value_parser = shapes())]
    pub shape: String,
    /// New folder; it appears when it is complete
    pub dst: PathBuf,
    /// Write a pack (see `martlet pack`) instead of a checkpoint, without the room for both
    #[arg(long)]
    pub pack: bool,
    #[command(flatten)]
    pub weights: WeightArgs,
}

/// How random weights are stored.
#[derive(Clone, Debug, clap::Args)]
pub struct WeightArgs {
    /// Format of the random weights
    #[arg(long, default_value = "affine", value_parser = MODES)]
    pub mode: String,
    /// Bits of a random weight: 1 to 6, or 8 [default: 4, or what the mode has]
    #[arg(long, value_name = "N")]
    pub bits: Option<u8>,
    /// Random weights that share a scale: 32, 64 or 128 [default: 64, or what the mode has]
    #[arg(long, value_name = "N")]
    pub group: Option<u16>,
    /// Random routers choose some experts more often, as those of trained models do
    #[arg(long)]
    pub skewed: bool,
    /// What random weights are drawn from
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub weight_seed: u64,
}

/// Accepts the names of shapes in any case.
pub fn shapes() -> impl clap::builder::TypedValueParser<Value = String> {
    use clap::builder::TypedValueParser;
    clap::builder::PossibleValuesParser::new(shape_names()).map(|name| name.to_ascii_lowercase())
}

impl WeightArgs {
    /// Whether none of them was given, or only what they are anyway.
    pub fn is_default(&self) -> bool {
        let WeightArgs { mode, bits, group, skewed, weight_seed } = self;
        (mode.as_str(), bits, group, skewed, weight_seed) == ("affine", &None, &None, &false, &1)
    }

    pub fn options(&self) -> Result<Options, Usage> {
        let options = Options::new(&self.mode, self.bits, self.group, self.weight_seed);
        let options = options.map_err(|e| Usage(e.to_string()))?;
        Ok(Options { routing: if self.skewed { Routing::Skewed } else { Routing::Even }, ..options })
    }

    pub fn model(&self, shape: &str) -> Result<SyntheticModel, Usage> {
        Ok(SyntheticModel { shape: shape.to_string(), options: self.options()? })
    }
}

const EXAMPLES: &str = "\
Examples:
  martlet synthetic 4b qwen-4b-random
  martlet synthetic 35b-a3b qwen-35b-random --mode mxfp4
  martlet bench -m qwen-4b-random
  martlet synthetic 35b-a3b qwen-35b-random.martlet --pack

The values are noise: such a checkpoint is for measuring speed and memory, which
do not depend on them. The layout is that of MLX. It is written a piece at a
time and takes no memory to speak of. `martlet bench --synthetic SHAPE` measures
the same weights without a file.";

pub fn run(args: &Args, app: &App) -> anyhow::Result<()> {
    if args.pack {
        let source = ModelSource::Synthetic(args.weights.model(&args.shape)?);
        return super::pack::write(&source, &args.dst, None, app);
    }
    let made = synthetic(&args.shape, args.weights.options()?)?;
    let progress = app.terminal.progress("writing", 1);
    let bytes = made.write(&args.dst, &mut |done, total| progress.set(done, total))?;
    drop(progress);
    app.terminal.note(&format!("{}: {} of random weights", args.dst.display(), size::bytes(bytes)));
    Ok(())
}
