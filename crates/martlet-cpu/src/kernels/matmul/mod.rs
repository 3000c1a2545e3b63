//! y[n] = sum over k of w[n, k] * x[k], for 16 outputs n at a time and any rows x.
//!
//! bytes: the weights once per block of rows, from memory once per call; activations from L1 or L2.
//! layout: `tiles.rs`. A lane is an output, so no float is ever added across lanes.
//! order: slices of 256 absolute K, from zero each, added to y in index order. Inside a slice:
//!   integer codes   for each exact group G in order (the part of K that shares a scale of the weights and one of the
//!                   activations: 64, or 32 in schemes with groups of 32, or 16 in nvfp4 and affine groups of 16):
//!                   I = sum of code * x code, exact; t = f32(I) * d; a = fma(s, t, a); affine also a = fma(b, ds, a). Affine groups of 128 are
//!                   two groups of 64 with one scale; mxfp4 and nvfp4 count codes double and halve s. E4M3 scales of
//!                   nvfp4 are multiplied by their f32 factor first, rounded once.
//!   plain floats    a = fma(w, x, a) for k in order.
//!   E4M3            for each scale group (32, or 128 of block-scaled fp8) in order: g = fma(w, x, g) for k in order,
//!                   from zero; then a = fma(s, g, a).
//! tails: K is filled up with zeros whose scales are zero. Nothing here depends on the number of rows or on threads.

#[cfg(target_arch = "x86_64")]
pub mod amx;
#[cfg(target_arch = "x86_64")]
pub mod avx2;
pub mod codes;
#[cfg(target_arch = "aarch64")]
pub mod dotprod;
mod floats;
#[cfg(target_arch = "aarch64")]
pub mod i8mm;
#[cfg(target_arch = "aarch64")]
pub mod neon;
#[cfg(test)]
mod scalar;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
pub mod vnni;

use crate::acts::Tile;
use crate::lanes::Lanes;
use crate::tiles::{Codes, Kind, Scales, Weights};
use martlet_tensor::Float;

/// Inputs of one slice of the sum.
pub const SLICE: usize = 256;

/// 16 outputs of some rows.
#[derive(Clone, Copy)]
pub struct Product<'a> {
    pub w: &'a Weights,
    /// Which 16 outputs.
    pub strip: usize,
    pub x: Input<'a>,
    /// The rows of x to multiply.
    pub rows: &'a [u32],
}

/// Activations of many rows, as the scheme of the weights wants them.
#[derive(Clone, Copy)]
// Blocks of rows are AMX's.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
pub enum Input<'a> {
    /// Row r is `codes[r * tiles..]`, with `groups` scales from `r * groups` on; see `acts.rs`.
    Codes { codes: &'a [Tile], blocks: &'a [Tile], d: &'a [f32], ds: &'a [f32], tiles: usize, groups: usize },
    /// Row r is `x[r * stride..]`.
    Floats { x: &'a [f32], stride: usize },
}

/// How an instruction set multiplies integer codes. All ways give the same bits: the sums inside a group are exact.
pub trait CodeProducts {
    /// out[i] = the 16 outputs of row `rows[i]`.
    fn rows(p: &Product<'_>, codes: Codes, scales: Scales, out: &mut [Lanes]);
}

/// Kinds of codes and scales as constants that a function can be compiled for.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod kinds {
    pub const U4: u8 = 0;
    pub const U8: u8 = 1;
    pub const BF16: u8 = 0;
    pub const F16: u8 = 1;
    pub const F32: u8 = 2;
}

/// The function `$rows::<codes, scales, lines of a group>` for a scheme with biases, none for another.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
macro_rules! for_scheme {
    ($rows:ident, $codes:expr, $group:expr, $scales:expr) => {
        match ($codes, $group, $scales) {
            (Codes::U4, 64, Scales::Bf16Pair) => Some($rows::<U4, BF16, 8> as unsafe fn(&Product<'_>, &mut [Lanes])),
            (Codes::U4, 64, Scales::F16Pair) => Some($rows::<U4, F16, 8> as _),
            (Codes::U4, 64, Scales::F32Pair) => Some($rows::<U4, F32, 8> as _),
            (Codes::U4, 32, Scales::Bf16Pair) => Some($rows::<U4, BF16, 4> as _),
            (Codes::U4, 32, Scales::F16Pair) => Some($rows::<U4, F16, 4> as _),
            (Codes::U4, 32, Scales::F32Pair) => Some($rows::<U4, F32, 4> as _),
            (Codes::U8, 64, Scales::Bf16Pair) => Some($rows::<U8, BF16, 16> as _),
            (Codes::U8, 64, Scales::F16Pair) => Some($rows::<U8, F16, 16> as _),
            (Codes::U8, 64, Scales::F32Pair) => Some($rows::<U8, F32, 16> as _),
            (Codes::U8, 32, Scales::Bf16Pair) => Some($rows::<U8, BF16, 8> as _),
            (Codes::U8, 32, Scales::F16Pair) => Some($rows::<U8, F16, 8> as _),
            (Codes::U8, 32, Scales::F32Pair) => Some($rows::<U8, F32, 8> as _),
            (Codes::U8, 16, Scales::Bf16Pair) => Some($rows::<U8, BF16, 4> as _),
            (Codes::U8, 16, Scales::F16Pair) => Some($rows::<U8, F16, 4> as _),
            (Codes::U8, 16, Scales::F32Pair) => Some($rows::<U8, F32, 4> as _),
            _ => None,
        }
    };
}
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use for_scheme;

/// The code products of a set whose machines have `$features`: all rows, in blocks of so many, by the set's own `block`.
/// Other schemes go to plain Rust.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
macro_rules! code_products {
    ($set:ident, $features:literal, [$($rows:literal),*]) => {
        impl CodeProducts for $set {
            #[inline(always)]
            fn rows(p: &Product<'_>, codes: Codes, scales: Scales, out: &mut [Lanes]) {
                let Some(rows) = for_scheme!(rows, codes, p.w.group, scales) else {
                    return codes::Plain::<true>::rows(p, codes, scales, out);
                };
                // SAFETY: the set is reached only through a `KernelSet` of its own, which exists only where the
                // features do.
                unsafe { rows(p, out) }
            }
        }

        /// `L`: lines of one group.
        #[target_feature(enable = $features)]
        fn rows<const C: u8, const S: u8, const L: usize>(p: &Product<'_>, out: &mut [Lanes]) {
            let mut first = 0;
            $(while p.rows.len() - first >= $rows {
                block::<C, S, L, $rows>(p, first, out);
                first += $rows;
            })*
        }
    };
}
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use code_products;

/// out[i] = the 16 outputs of row `rows[i]`.
#[inline(always)]
pub fn matmul<C: CodeProducts>(p: &Product<'_>, out: &mut [Lanes]) {
    match p.w.kind {
        Kind::Codes(codes, scales) => C::rows(p, codes, scales, out),
        Kind::Floats(Float::F32) => floats::rows::<floats::F32>(p, out),
        Kind::Floats(Float::F16) => floats::rows::<floats::F16>(p, out),
        Kind::Floats(Float::Bf16) => floats::rows::<floats::Bf16>(p, out),
        Kind::E4m3 { group } => floats::scaled_rows(p, group, out),
    }
}
