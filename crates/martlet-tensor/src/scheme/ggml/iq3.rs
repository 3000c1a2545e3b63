//! Codes of eight magnitudes from a codebook, with signs: IQ3_XXS, IQ3_S.

use super::{Block, grids, half, signs_of};

/// Half the magnitudes of IQ3_XXS. All but the last are evenly apart: the codes are whole numbers from -31 to 31.
const LEVELS: [u8; 8] = [2, 6, 10, 14, 18, 22, 26, 31];
const ZERO: u8 = 31;

/// d f16 | 64 indices, one for each 4 weights | for each 32 weights a u32: four times seven bits of signs, four bits of
/// scale, which is an odd quarter of d.
pub fn xxs(bytes: &[u8], b: &mut Block) {
    let d = half(bytes, 0);
    b.zeros.fill(ZERO as f32);
    for g in 0..8 {
        let at = &bytes[66 + 4 * g..];
        let word = u32::from_le_bytes([at[0], at[1], at[2], at[3]]);
        // The codes count halves: twice an odd quarter.
        b.scales[g] = d * (2 * (word >> 28) + 1) as f32 * 0.5;
        for k in 0..32 {
            let point = grids::IQ3_XXS[bytes[2 + 8 * g + k / 4] as usize];
            let level = LEVELS[(point >> (k % 4 * 4) & 7) as usize];
            let minus = signs_of(word >> (k / 8 * 7)) >> (k % 8) & 1 == 1;
            b.codes[32 * g + k] = if minus { ZERO - level } else { ZERO + level };
        }
    }
}

/// d f16 | lower eight bits of 64 indices | their ninth bits | 32 bytes of signs | eight scales, nibbles s: d * (2 s + 1).
/// Level l has magnitude 2 l + 1: with signs, sixteen numbers evenly apart.
pub fn s(bytes: &[u8], b: &mut Block) {
    let d = half(bytes, 0);
    b.zeros.fill(7.5);
    for g in 0..8 {
        let bits = bytes[106 + g / 2] >> (g % 2 * 4) & 15;
        b.scales[g] = d * (2 * (2 * bits + 1)) as f32;
    }
    for (k, code) in b.codes.iter_mut().enumerate() {
        let i = k / 4;
        let ninth = (bytes[66 + i / 8] >> (i % 8) & 1) as usize;
        let point = grids::IQ3_S[bytes[2 + i] as usize | ninth << 8];
        let level = (point >> (k % 4 * 4) & 7) as u8;
        let minus = bytes[74 + k / 8] >> (k % 8) & 1 == 1;
        *code = if minus { 7 - level } else { 8 + level };
    }
}
