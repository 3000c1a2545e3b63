//! Blocks of 32 with one scale: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0. Low nibbles are the first 16 codes.

use super::{Block, half, nibble};

/// d f16 | 16 bytes of nibbles.
pub fn q4_0(bytes: &[u8], b: &mut Block) {
    (b.scales[0], b.zeros[0]) = (half(bytes, 0), 8.0);
    (0..32).for_each(|k| b.codes[k] = nibble(&bytes[2..], k));
}

/// d f16 | m f16 | 16 bytes of nibbles.
pub fn q4_1(bytes: &[u8], b: &mut Block) {
    (b.scales[0], b.biases[0]) = (half(bytes, 0), half(bytes, 2));
    (0..32).for_each(|k| b.codes[k] = nibble(&bytes[4..], k));
}

/// d f16 | fifth bits, 4 bytes | 16 bytes of nibbles.
pub fn q5_0(bytes: &[u8], b: &mut Block) {
    (b.scales[0], b.zeros[0]) = (half(bytes, 0), 16.0);
    five(&bytes[2..], b);
}

/// d f16 | m f16 | fifth bits, 4 bytes | 16 bytes of nibbles.
pub fn q5_1(bytes: &[u8], b: &mut Block) {
    (b.scales[0], b.biases[0]) = (half(bytes, 0), half(bytes, 2));
    five(&bytes[4..], b);
}

fn five(bytes: &[u8], b: &mut Block) {
    for k in 0..32 {
        b.codes[k] = nibble(&bytes[4..], k) | (bytes[k / 8] >> (k % 8) & 1) << 4;
    }
}

/// d f16 | 32 signed bytes.
pub fn q8_0(bytes: &[u8], b: &mut Block) {
    (b.scales[0], b.zeros[0]) = (half(bytes, 0), 128.0);
    (0..32).for_each(|k| b.codes[k] = bytes[2 + k] ^ 0x80);
}
