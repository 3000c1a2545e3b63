//! Element types, quantisation schemes with their scalar codecs, borrowed views of stored matrices, and elementary
//! functions whose bits are the same on every machine.
//!
//! No I/O and no device: [`Scheme`] says how the bytes of one matrix row become numbers, [`Matrix`] says where those
//! bytes lie. A checkpoint reader makes `Matrix` views over its mapped files; a device reads them once and keeps
//! them in a layout of its own, or works on the files where they hold its layout already ([`tiles`]).

mod dtype;
pub mod math;
mod matrix;
pub mod scheme;
mod shared;
pub mod tiles;

pub use dtype::{Dtype, Float, read_floats};
pub use matrix::{Matrix, Part, Row, ShapeError};
pub use scheme::Scheme;
pub use shared::Shared;
