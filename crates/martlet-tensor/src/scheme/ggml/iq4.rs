//! Codes of 4 bits that stand for 16 uneven levels: IQ4_NL, IQ4_XS.

use super::{Block, half, nibble};

/// What the codes stand for; counted from -128 they are codes of 8 bits.
const LEVELS: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];
const ZERO: u8 = 128;

fn level(code: u8) -> u8 {
    (LEVELS[code as usize] as i16 + ZERO as i16) as u8
}

/// d f16 | 16 bytes of nibbles; 32 weights.
pub fn nl(bytes: &[u8], b: &mut Block) {
    (b.scales[0], b.zeros[0]) = (half(bytes, 0), ZERO as f32);
    (0..32).for_each(|k| b.codes[k] = level(nibble(&bytes[2..], k)));
}

/// d f16 | upper two bits of eight scales, u16 | lower four, nibbles in 4 bytes | 8 times 16 bytes of nibbles.
pub fn xs(bytes: &[u8], b: &mut Block) {
    let (d, high) = (half(bytes, 0), u16::from_le_bytes([bytes[2], bytes[3]]));
    b.zeros.fill(ZERO as f32);
    for g in 0..8 {
        let low = bytes[4 + g / 2] >> (g % 2 * 4) & 15;
        let scale = low as i32 | ((high >> (2 * g) & 3) << 4) as i32;
        b.scales[g] = d * (scale - 32) as f32;
        (0..32).for_each(|k| b.codes[32 * g + k] = level(nibble(&bytes[8 + 16 * g..], k)));
    }
}
