//! MLX affine: groups of 32, 64 or 128 codes of `bits` bits, value = scale * code + bias.
//!
//! The codes of a row are one little-endian bit stream: code i is bits [i * bits, (i + 1) * bits), so codes of 3, 5
//! and 6 bits cross byte and word borders.

use crate::{Float, Row};

/// Code `i` of a little-endian bit stream of `bits`-bit codes (1 to 8 bits).
#[inline]
pub fn code(stream: &[u8], bits: usize, i: usize) -> u8 {
    let (byte, shift) = (i * bits / 8, i * bits % 8);
    let low = stream[byte] as u16;
    let high = if shift + bits > 8 { stream[byte + 1] as u16 } else { 0 };
    ((low | high << 8) >> shift) as u8 & ((1u16 << bits) - 1) as u8
}

pub(super) fn dequantise(row: &Row<'_>, bits: u8, group: usize, scale: Float, out: &mut [f32]) {
    for (g, values) in out.chunks_mut(group).enumerate() {
        let (s, b) = (scale.get(row.scales, g), scale.get(row.biases, g));
        for (i, y) in values.iter_mut().enumerate() {
            *y = s.mul_add(code(row.codes, bits as usize, g * group + i) as f32, b);
        }
    }
}
