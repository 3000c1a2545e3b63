//! Packs: a model's weights in the tiles that kernels read, in a folder of its own that is mapped and used as it is.
//!
//! `docs/pack.md` has the format. [`pack`] writes one, tensor by tensor; [`Checkpoint::open`] opens it like any other
//! checkpoint; [`verify`] compares all of it with its digests.

mod manifest;
mod open;
mod piecewise;
mod verify;
mod write;

pub use manifest::{Digest, Form, Manifest, ManifestError, Matrix, Origin, Stack, Sum, Tensor, Text, Weights, read};
pub use piecewise::Piecewise;
pub use verify::verify;

pub(crate) use open::{Opened, Pack, is_pack, open};

use crate::checkpoint::Checkpoint;
use crate::error::WeightsError;
use crate::report::Expected;
use crate::staging::Staging;
use std::path::Path;

/// Written last: a folder without it is no pack.
pub const MANIFEST_FILE: &str = "manifest.json";
/// Everything but experts.
pub const WEIGHTS_FILE: &str = "weights.bin";
/// All experts; only where the model has some.
pub const EXPERTS_FILE: &str = "experts.bin";

/// The blobs of a layer's experts are so many bytes apart, times a whole number: direct reads and the pages of every
/// system divide it.
pub const BLOB_ALIGN: u64 = 16 << 10;
/// [`WEIGHTS_FILE`] has one digest for so many bytes.
pub const CHUNK: u64 = 16 << 20;
/// Matrices in [`WEIGHTS_FILE`] begin at multiples of this.
const PAGE: u64 = 4096;

/// The three matrices of an expert, in their order.
const PARTS: [&str; 3] = ["gate_proj", "up_proj", "down_proj"];

/// Progress in bytes: (done, in all).
pub type Progress<'a> = &'a mut dyn FnMut(u64, u64);

/// The repository of the hub that a source was fetched from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repository<'a> {
    /// "OWNER/NAME".
    pub name: &'a str,
    /// The commit.
    pub revision: &'a str,
}

/// What was written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Of the weight files read and written.
    pub source_bytes: u64,
    pub bytes: u64,
    /// Tensors of the source that a model of its config does not use, and that are not in the pack.
    pub left_out: Vec<String>,
}

/// Writes `src` to the new folder `dst`, which appears when it is complete: the tensors that its model uses
/// (`expected`), those of a vision tower, and the text files. `src` holds exactly what is expected
/// ([`Checkpoint::check`]). Memory holds some 16 MiB of tiles at a time, and the rows that they are made of.
/// Refuses a `dst` that is there and not empty, a disk with too little room, and a source that is a pack. What killed
/// writers left for the same `dst` is deleted first. `repository`, where there is one, is put down as the source's.
pub fn pack(
    src: &Checkpoint,
    expected: &[Expected],
    dst: &Path,
    repository: Option<&Repository<'_>>,
    progress: Progress<'_>,
) -> Result<Summary, WeightsError> {
    let plan = write::Plan::new(src, expected, repository)?;
    let staging = Staging::new(dst)?;
    staging.has_room(plan.bytes())?;
    let summary = write::write(src, plan, staging.path(), progress)?;
    staging.finish()?;
    Ok(summary)
}

#[cfg(test)]
mod tests;
