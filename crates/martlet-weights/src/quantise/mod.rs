//! Quantises a checkpoint into the layout of MLX, which mlx-lm reads too.
//!
//! Matrices and expert stacks are packed, routers and shared-expert gates of MoE layers at 8 bits in groups of 64;
//! norms (as multipliers), convolutions, `A_log`, `dt_bias` and the vision tower stay plain. The draft head goes to
//! mtp.safetensors beside the shards, because mlx-lm reads model*.safetensors and knows no draft heads. Files beside
//! the weights are copied, config.json with the quantisation added. Memory holds one tensor at a time.

mod encode;
pub(crate) mod plan;
pub(crate) mod write;

use crate::checkpoint::Checkpoint;
use crate::error::WeightsError;
use crate::staging::Staging;
use martlet_tensor::{Float, Scheme};
use plan::Plan;
use std::path::Path;
use write::Output;

/// Largest shard, in bytes of tensors. A larger tensor has a shard of its own.
pub(crate) const SHARD_BYTES: u64 = 4 << 30;

/// The packed formats of MLX.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Mode {
    #[default]
    Affine,
    Mxfp4,
    Mxfp8,
    Nvfp4,
}

/// How the matrices are packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// 1, 2, 3, 4, 5, 6 or 8; what the mode has for those with a fixed width.
    pub bits: u8,
    /// 32, 64 or 128; what the mode has for those with a fixed group.
    pub group: u16,
    pub mode: Mode,
}

/// What was written.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct Summary {
    /// Weights that were packed, and that were left plain.
    pub packed_weights: u64,
    pub plain_weights: u64,
    /// Bytes of the weight files read and written.
    pub source_bytes: u64,
    pub bytes: u64,
    /// Matrices left plain because their width is no multiple of the group.
    pub unfit: Vec<String>,
    /// All files written, in order.
    pub files: Vec<String>,
}

/// Files as (name, bytes).
pub type Files = Vec<(String, Vec<u8>)>;

/// Progress in weights: (done, in all).
pub type Progress<'a> = &'a mut dyn FnMut(u64, u64);

impl Default for Options {
    fn default() -> Options {
        Options { bits: 4, group: 64, mode: Mode::Affine }
    }
}

impl Mode {
    fn name(self) -> &'static str {
        match self {
            Mode::Affine => "affine",
            Mode::Mxfp4 => "mxfp4",
            Mode::Mxfp8 => "mxfp8",
            Mode::Nvfp4 => "nvfp4",
        }
    }
}

impl Options {
    /// The options of a mode by MLX's name, with its own bits and group where none are given.
    pub fn new(mode: &str, bits: Option<u8>, group: Option<u16>) -> Result<Options, WeightsError> {
        let (mode, own) = match mode {
            "affine" => (Mode::Affine, (4, 64)),
            "mxfp4" => (Mode::Mxfp4, (4, 32)),
            "mxfp8" => (Mode::Mxfp8, (8, 32)),
            "nvfp4" => (Mode::Nvfp4, (4, 16)),
            _ => {
                let text = format!("mode {mode} is not known; known are affine, mxfp4, mxfp8, nvfp4");
                return Err(WeightsError::file("quantise", text));
            }
        };
        let options = Options { bits: bits.unwrap_or(own.0), group: group.unwrap_or(own.1), mode };
        options.scheme(Float::Bf16).map(|_| options)
    }

    /// The scheme, with scales of this type where they are floats.
    pub(crate) fn scheme(&self, scale: Float) -> Result<Scheme, WeightsError> {
        let Options { bits, group, .. } = *self;
        match (self.mode, bits, group) {
            (Mode::Affine, 1..=6 | 8, 32 | 64 | 128) => Ok(Scheme::Affine { bits, group, scale }),
            (Mode::Mxfp4, 4, 32) => Ok(Scheme::Mxfp4),
            (Mode::Mxfp8, 8, 32) => Ok(Scheme::Mxfp8),
            (Mode::Nvfp4, 4, 16) => Ok(Scheme::Nvfp4),
            _ => {
                let mode = self.mode.name();
                let text = format!(
                    "{mode} has no {bits} bits in groups of {group}; affine has 1 to 6 and 8 bits in groups of 32, \
                     64, 128, mxfp4 4 in 32, mxfp8 8 in 32, nvfp4 4 in 16"
                );
                Err(WeightsError::file("quantise", text))
            }
        }
    }
}

/// Writes `src` quantised to the new folder `dst`, which appears when it is complete. Refuses a `dst` that is there
/// and not empty, a source that is packed already, and values that are no finite numbers.
pub fn quantise(
    src: &Checkpoint,
    dst: &Path,
    options: Options,
    progress: Progress<'_>,
) -> Result<Summary, WeightsError> {
    let plan = Plan::new(src, options, SHARD_BYTES)?;
    let staging = Staging::new(dst)?;
    let mut output = Output::Folder(staging.path());
    let summary = write_plan(src, &plan, &mut output, progress)?;
    staging.finish()?;
    Ok(summary)
}

/// As [`quantise`], into memory. For small models that become part of a program.
pub fn quantise_in_memory(src: &Checkpoint, options: Options) -> Result<(Files, Summary), WeightsError> {
    let plan = Plan::new(src, options, SHARD_BYTES)?;
    let mut files = Vec::new();
    let summary = write_plan(src, &plan, &mut Output::Memory(&mut files), &mut |_, _| {})?;
    Ok((files, summary))
}

fn write_plan(
    src: &Checkpoint,
    plan: &Plan,
    output: &mut Output<'_>,
    progress: Progress<'_>,
) -> Result<Summary, WeightsError> {
    let mut encode =
        |item: &plan::Item, put: write::Put<'_>| encode::encode(src, item)?.iter().try_for_each(|bytes| put(bytes));
    let summary = write::write(plan, write::beside(src)?, output, &mut encode, progress)?;
    Ok(Summary { source_bytes: src.file_bytes(), ..summary })
}

#[cfg(test)]
mod tests;
