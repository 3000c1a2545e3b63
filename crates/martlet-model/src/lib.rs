//! The forward pass of the Qwen3-Next / 3.5 / 3.6 / 3.8 family, written once over [`martlet_device::Device`].
//!
//! [`read_config`] makes a [`ModelSpec`] of a config.json, [`Model::load`] takes the weights of a checkpoint to a
//! device, and [`Model::layers`] runs any range of layers over one [`martlet_device::Batch`] of rows of any sequences:
//! prefill in chunks and decode are the same code.

mod arch;
mod cache;
mod error;
mod experts;
mod fields;
mod forward;
mod layers;
mod load;
mod mtp;
mod names;
mod rope;
mod scratch;
mod shapes;
mod spec;

pub use arch::{ARCHITECTURES, read_config};
pub use cache::{Cache, LayerCache};
pub use error::ModelError;
pub use experts::{AHEAD_ROWS, ExpertProvider, Resident, Run};
pub use forward::Model;
pub use load::weight_bytes;
pub use martlet_device::KvScheme;
pub use mtp::{Mtp, MtpConvention};
pub use names::{expected_tensors, ignored_tensors};
pub use rope::RopeSpec;
pub use scratch::{Scratch, scratch_bytes};
pub use shapes::{shape_config, shape_names, synthetic};
pub use spec::{LayerSpec, MAX_DRAFTS, MixerSpec, MlpSpec, ModelSpec, SamplingDefaults};
