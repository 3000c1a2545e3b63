//! Codes of three values in blocks of 256: TQ1_0, TQ2_0. Both halves of a block have the same scale.

use super::{Block, half};

/// 52 bytes of base-3 digits | d f16. A byte holds five digits (the last four bytes: four) as a fraction of 256; digit
/// i is the whole part of 3 times what i multiplications by 3 leave. Of 32, 16 and 4 bytes each, digit by digit.
pub fn tq1(bytes: &[u8], b: &mut Block) {
    b.scales[..2].fill(half(bytes, 52));
    b.zeros[..2].fill(1.0);
    let mut k = 0;
    for (range, digits) in [(0..32, 5), (32..48, 5), (48..52, 4)] {
        for digit in 0..digits {
            for &byte in &bytes[range.clone()] {
                let left = byte.wrapping_mul([1, 3, 9, 27, 81][digit]);
                b.codes[k] = ((left as u16 * 3) >> 8) as u8;
                k += 1;
            }
        }
    }
}

/// Codes as in Q2_K, 64 bytes | d f16.
pub fn tq2(bytes: &[u8], b: &mut Block) {
    b.scales[..2].fill(half(bytes, 64));
    b.zeros[..2].fill(1.0);
    for (k, code) in b.codes.iter_mut().enumerate() {
        *code = bytes[k / 128 * 32 + k % 32] >> (k / 32 % 4 * 2) & 3;
    }
}
