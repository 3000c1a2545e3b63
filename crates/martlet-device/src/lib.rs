//! What a device must be able to do, exactly: the [`Device`] trait, the [`reference`] device that defines it, the
//! sampler that all devices share, and the conformance suite that every device must pass.

mod batch;
#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
mod device;
mod fused;
pub mod reference;
pub mod sampling;
mod spec;
pub mod timed;

pub use batch::{Batch, BatchError, Rope, SeqRows};
pub use device::{Device, DeviceError, Rows};
pub use spec::{
    AttentionSpec, DeltaSpec, ExpertShape, Heads, KvScheme, KvSpec, MatrixSpec, NO_SLOT, PAGE, ROW_STEP, RouteSpec,
    Routes,
};
