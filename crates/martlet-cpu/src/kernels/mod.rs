//! One file for each operation: its formula, what it moves, and the order of its sums. Every body is `inline(always)`
//! plain Rust; `kernel_set.rs` compiles it for each instruction set.

pub mod attention;
pub mod conv_silu;
pub mod elementwise;
pub mod embed;
pub mod gdn;
pub mod kv_block;
pub mod matmul;
pub mod norm;
pub mod rope;
pub mod route;
