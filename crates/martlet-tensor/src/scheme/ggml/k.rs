//! Blocks of 256 with scales of scales: Q2_K, Q3_K, Q4_K, Q5_K, Q6_K.

use super::{Block, half, kquant};

/// 16 bytes: scale (low nibble) and minimum (high) of each 16 | codes, 64 bytes | d f16 | dmin f16.
/// Byte 32 h + j of the codes holds those of 128 h + 32 i + j at bit 2 i.
pub fn q2(bytes: &[u8], b: &mut Block) {
    let (d, min) = (half(bytes, 80), half(bytes, 82));
    for g in 0..16 {
        b.scales[g] = d * (bytes[g] & 15) as f32;
        b.biases[g] = -(min * (bytes[g] >> 4) as f32);
    }
    for (k, code) in b.codes.iter_mut().enumerate() {
        *code = bytes[16 + k / 128 * 32 + k % 32] >> (k / 32 % 4 * 2) & 3;
    }
}

/// Third bits, 32 bytes | codes as in Q2_K, 64 bytes | scales, 6 bits each in 12 bytes | d f16.
/// Byte j of the third bits has that of 32 i + j at bit i. The scales' lower four bits are 16 nibbles (low ones
/// first), their upper two are in the last 4 bytes: byte j has those of 4 i + j at bit 2 i.
pub fn q3(bytes: &[u8], b: &mut Block) {
    let d = half(bytes, 108);
    let scales = &bytes[96..108];
    for g in 0..16 {
        let low = scales[g % 8] >> (g / 8 * 4) & 15;
        let high = scales[8 + g % 4] >> (g / 4 * 2) & 3;
        b.scales[g] = d * ((low | high << 4) as i32 - 32) as f32;
    }
    b.zeros.fill(4.0);
    for (k, code) in b.codes.iter_mut().enumerate() {
        let low = bytes[32 + k / 128 * 32 + k % 32] >> (k / 32 % 4 * 2) & 3;
        *code = low | (bytes[k % 32] >> (k / 32) & 1) << 2;
    }
}

/// d f16 | dmin f16 | scales and minima, 12 bytes | codes, 128 bytes.
/// Byte 32 h + j of the codes holds those of 64 h + j (low nibble) and 64 h + 32 + j.
pub fn q4(bytes: &[u8], b: &mut Block) {
    scales_and_minima(bytes, b);
    for (k, code) in b.codes.iter_mut().enumerate() {
        *code = bytes[16 + k / 64 * 32 + k % 32] >> (k / 32 % 2 * 4) & 15;
    }
}

/// As Q4_K, with fifth bits (32 bytes) before the codes: byte j has that of 32 i + j at bit i.
pub fn q5(bytes: &[u8], b: &mut Block) {
    scales_and_minima(bytes, b);
    for (k, code) in b.codes.iter_mut().enumerate() {
        let low = bytes[48 + k / 64 * 32 + k % 32] >> (k / 32 % 2 * 4) & 15;
        *code = low | (bytes[16 + k % 32] >> (k / 32) & 1) << 4;
    }
}

/// Scales of a block as whole numbers, and the factors d and dmin (none in Q6_K), as f16.
pub struct Whole {
    /// Q4_K and Q5_K: a scale and a minimum for each 32 weights. Q6_K: a signed scale for each 16.
    pub scales: [u8; 16],
    pub factors: [u8; 4],
}

/// Of Q4_K, Q5_K or Q6_K, by the bits of their codes.
pub fn whole(bytes: &[u8], bits: u8) -> Whole {
    let mut whole = Whole { scales: [0; 16], factors: [0; 4] };
    if bits == 6 {
        whole.scales.copy_from_slice(&bytes[192..208]);
        whole.factors[..2].copy_from_slice(&bytes[208..210]);
        return whole;
    }
    whole.factors.copy_from_slice(&bytes[..4]);
    // Eight scales and eight minima of 6 bits: bytes 0 to 3 and 4 to 7 hold the first four of each, and in their upper
    // two bits the upper two of the last four, whose lower four are the nibbles of bytes 8 to 11 (scales low).
    let packed = &bytes[4..16];
    for (g, two) in whole.scales.chunks_exact_mut(2).enumerate() {
        let (s, m) = match g {
            0..4 => (packed[g] & 63, packed[4 + g] & 63),
            _ => {
                let (low, s, m) = (packed[4 + g], packed[g - 4], packed[g]);
                (low & 15 | s >> 6 << 4, low >> 4 | m >> 6 << 4)
            }
        };
        two.copy_from_slice(&[s, m]);
    }
    whole
}

fn scales_and_minima(bytes: &[u8], b: &mut Block) {
    let Whole { scales, factors } = whole(bytes, 4);
    for (g, two) in scales.chunks_exact(2).enumerate() {
        (b.scales[g], b.biases[g]) = kquant::with_minimum(half(&factors, 0), half(&factors, 2), two);
    }
}

/// Lower four bits, 128 bytes | upper two, 64 bytes | 16 signed scales | d f16.
/// In each half of 128 codes: byte j of the lower bits has those of j and 64 + j, byte j of the upper ones those of
/// 32 i + j at bit 2 i.
pub fn q6(bytes: &[u8], b: &mut Block) {
    let Whole { scales, factors } = whole(bytes, 6);
    for (g, scale) in scales.into_iter().enumerate() {
        (b.scales[g], _) = kquant::signed(half(&factors, 0), scale);
    }
    b.zeros.fill(f32::from(kquant::MIDDLE));
    for (k, code) in b.codes.iter_mut().enumerate() {
        let (h, i) = (k / 128, k % 128);
        let low = bytes[64 * h + i % 64] >> (i / 64 * 4) & 15;
        *code = low | (bytes[128 + 32 * h + i % 32] >> (i / 32 * 2) & 3) << 4;
    }
}
