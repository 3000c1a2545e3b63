//! Codes of three levels from a codebook, all moved up or down by an eighth: IQ1_S, IQ1_M. A level less 1 is the value.

use super::{Block, grids, half};

/// d f16 | lower eight bits of 32 indices | for each 32 weights a u16: upper three bits of four indices, three bits of
/// scale at bit 12, at bit 15 whether the eighth is taken away.
pub fn s(bytes: &[u8], b: &mut Block) {
    let d = half(bytes, 0);
    for g in 0..8 {
        let upper = u16::from_le_bytes([bytes[34 + 2 * g], bytes[35 + 2 * g]]);
        b.scales[g] = d * (2 * (upper >> 12 & 7) + 1) as f32;
        b.zeros[g] = if upper >> 15 == 0 { 0.875 } else { 1.125 };
        for i in 0..4 {
            let index = bytes[2 + 4 * g + i] as usize | ((upper >> (3 * i) & 7) as usize) << 8;
            let point = grids::IQ1_S[index];
            (0..8).for_each(|k| b.codes[32 * g + 8 * i + k] = (point >> (2 * k) & 3) as u8);
        }
    }
}

/// Lower eight bits of 32 indices | a nibble for each 8 weights: upper three bits of the index, then whether the eighth
/// is taken away | four u16, each with four scales of three bits and, in its upper four bits, four bits of d (f16).
/// Counted in quarters of the scale, levels and eighths together are codes of 4 bits: 4 level + 1 (or less) - 4.5.
pub fn m(bytes: &[u8], b: &mut Block) {
    let scales: [u16; 4] = std::array::from_fn(|i| u16::from_le_bytes([bytes[48 + 2 * i], bytes[49 + 2 * i]]));
    let d = scales.iter().rev().fold(0u16, |d, s| d << 4 | s >> 12);
    let d = half::f16::from_bits(d).to_f32();
    b.zeros.fill(4.5);
    for g in 0..16 {
        b.scales[g] = d * (2 * (scales[g / 4] >> (3 * (g % 4)) & 7) + 1) as f32 * 0.25;
    }
    for i in 0..32 {
        let upper = bytes[32 + i / 2] >> (i % 2 * 4);
        let point = grids::IQ1_S[bytes[i] as usize | ((upper & 7) as usize) << 8];
        let up = u8::from(upper & 8 == 0);
        (0..8).for_each(|k| b.codes[8 * i + k] = 4 * (point >> (2 * k) & 3) as u8 + up);
    }
}
