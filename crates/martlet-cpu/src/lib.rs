//! The CPU device: all threads of the machine, working directly on quantised weights.
//!
//! **The bits.** Plain Rust over virtual vectors of 16 f32 lanes defines every result (`lanes.rs`, `kernels/`); each
//! instruction set gives exactly these, and no result depends on rows, threads or company. `kernels/<op>.rs` says the
//! order of each operation's sums.
//!
//! `tiles.rs` is how weights lie in memory, `acts.rs` how activations are quantised, `pool.rs` the threads, `isa.rs`
//! and `kernel_set.rs` the choice of instruction set.

mod acts;
mod attend;
mod buffer;
mod delta;
mod device;
mod floats;
mod isa;
mod kernel_set;
mod kernels;
mod kv;
mod lanes;
mod pool;
mod products;
mod simd;
#[cfg(test)]
mod testing;
mod tiles;

pub use buffer::Buffer;
pub use delta::Delta;
pub use device::{Cpu, CpuOptions, Matrix, RouteTable, Vector};
pub use isa::{Isa, UnknownIsa};
pub use kv::Kv;
pub use products::Experts;

/// The device's name in messages.
const NAME: &str = "cpu";
