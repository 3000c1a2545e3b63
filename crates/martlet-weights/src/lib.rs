//! Checkpoints in: safetensors files in the Hugging Face and MLX layouts, GGUF files and packs, under canonical names.
//!
//! ```no_run
//! use martlet_weights::Checkpoint;
//! let checkpoint = Checkpoint::open(std::path::Path::new("models/fledgling"))?;
//! let embeddings = checkpoint.matrix("embed_tokens.weight")?;
//! let norm = checkpoint.vector("norm.weight")?; // as multipliers, whatever the layout
//! # Ok::<(), martlet_weights::WeightsError>(())
//! ```

mod checkpoint;
mod entries;
mod error;
mod fingerprint;
mod folder;
pub mod gguf;
pub mod index;
mod limits;
mod mlx;
mod module;
#[cfg(test)]
mod mutate;
mod names;
pub mod pack;
pub mod quantise;
mod report;
mod rows;
pub mod safetensors;
mod source;
mod staging;
pub mod synthetic;
mod values;

pub use checkpoint::{Checkpoint, Layout, MatrixForm};
pub use error::{Problem, WeightsError};
pub use limits::{Limits, MAX_DIMENSIONS};
pub use report::{Expected, FileSummary, Ignored, Kind, Read, Report, SchemeSummary};
pub use rows::TensorRows;
