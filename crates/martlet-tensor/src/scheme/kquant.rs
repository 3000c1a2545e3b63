//! Q4_K, Q5_K and Q6_K, taken apart into rows of codes, whole-number scales and their float factors.
//!
//! ```text
//!          scales (bytes of a row)                     factors (the row's "biases")      value
//! 4, 5     for each 32: scale u8, minimum u8           for each 128: f16 d, f16 dmin     (d * scale) * code - dmin * minimum
//! 6        for each 16: scale i8                       for each 128: f16 d               (d * scale) * (code - 32)
//! ```
//!
//! A block of ggml has 256 weights, so its factors are stored twice: heads of 128 columns can then be moved. Products of
//! d and a scale are exact in f32 (11 bits times 8), and so is 32 times them.

use crate::{Float, Row};

/// Weights that share their factors.
pub const BLOCK: usize = 128;

/// Where codes of Q6_K mean zero.
pub const MIDDLE: u8 = 32;

/// Weights that share a scale.
pub fn group(bits: u8) -> usize {
    if bits == 6 { 16 } else { 32 }
}

/// Bytes of the factors of [`BLOCK`] weights.
pub fn factor_bytes(bits: u8) -> usize {
    if bits == 6 { 2 } else { 4 }
}

/// Scale and bias of column `k`: value = scale * code + bias.
pub fn scale(row: &Row<'_>, bits: u8, k: usize) -> (f32, f32) {
    let factors = &row.biases[k / BLOCK * factor_bytes(bits)..][..factor_bytes(bits)];
    let d = Float::F16.get(factors, 0);
    match bits {
        6 => signed(d, row.scales[k / 16]),
        _ => with_minimum(d, Float::F16.get(factors, 1), &row.scales[k / 32 * 2..]),
    }
}

/// Of a group of Q6_K.
pub(crate) fn signed(d: f32, scale: u8) -> (f32, f32) {
    let s = d * f32::from(scale.cast_signed());
    (s, -f32::from(MIDDLE) * s)
}

/// Of a group of Q4_K or Q5_K, whose scale and minimum are the first two of `whole`.
pub(crate) fn with_minimum(d: f32, min: f32, whole: &[u8]) -> (f32, f32) {
    (d * f32::from(whole[0]), -(min * f32::from(whole[1])))
}
