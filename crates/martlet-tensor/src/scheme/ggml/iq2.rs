//! Codes of three magnitudes from a codebook, with signs: IQ2_XXS, IQ2_XS, IQ2_S. Scales are odd eighths of d.

use super::{Block, grids, half, signs_of};

/// Magnitudes of the levels. They are unevenly apart: the codes are whole numbers from -43 to 43.
const LEVELS: [u8; 3] = [8, 25, 43];
const ZERO: u8 = 43;

/// Eight codes of a point; bit i of `signs` says that code i is negative.
fn eight(point: u16, signs: u8, codes: &mut [u8]) {
    for (i, code) in codes.iter_mut().enumerate() {
        let level = LEVELS[(point >> (2 * i) & 3) as usize];
        *code = if signs >> i & 1 == 0 { ZERO + level } else { ZERO - level };
    }
}

fn scale(d: f32, bits: u8) -> f32 {
    d * (2 * bits + 1) as f32 * 0.125
}

/// d f16 | for each 32 weights four indices and a u32: four times seven bits of signs, four bits of scale.
pub fn xxs(bytes: &[u8], b: &mut Block) {
    let d = half(bytes, 0);
    b.zeros.fill(ZERO as f32);
    for (g, at) in bytes[2..].as_chunks::<8>().0.iter().enumerate() {
        let word = u32::from_le_bytes([at[4], at[5], at[6], at[7]]);
        b.scales[g] = scale(d, (word >> 28) as u8);
        for (i, codes) in b.codes[32 * g..32 * g + 32].as_chunks_mut::<8>().0.iter_mut().enumerate() {
            eight(grids::IQ2_XXS[at[i] as usize], signs_of(word >> (7 * i)), codes);
        }
    }
}

/// d f16 | 32 u16: nine bits of index, seven of signs | 16 scales, nibbles.
pub fn xs(bytes: &[u8], b: &mut Block) {
    let indices = bytes[2..66].as_chunks::<2>().0.iter().map(|at| u16::from_le_bytes(*at));
    for (codes, both) in b.codes.as_chunks_mut::<8>().0.iter_mut().zip(indices) {
        eight(grids::IQ2_XS[(both & 511) as usize], signs_of((both >> 9) as u32), codes);
    }
    sixteen_scales(half(bytes, 0), &bytes[66..], b);
}

/// d f16 | lower eight bits of 32 indices | 32 bytes of signs | upper two bits of the indices | 16 scales, nibbles.
pub fn s(bytes: &[u8], b: &mut Block) {
    for (i, codes) in b.codes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let upper = (bytes[66 + i / 4] >> (i % 4 * 2) & 3) as usize;
        eight(grids::IQ2_S[bytes[2 + i] as usize | upper << 8], bytes[34 + i], codes);
    }
    sixteen_scales(half(bytes, 0), &bytes[74..], b);
}

fn sixteen_scales(d: f32, nibbles: &[u8], b: &mut Block) {
    b.zeros.fill(ZERO as f32);
    (0..16).for_each(|g| b.scales[g] = scale(d, nibbles[g / 2] >> (g % 2 * 4) & 15));
}
