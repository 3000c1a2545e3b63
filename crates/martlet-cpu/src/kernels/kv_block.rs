//! The keys, or the values, of one kv head in one page.
//! layout: [token][dim], little-endian, of f32 or f16; or of i8 codes, and behind them the f32 scale of each token.

use crate::lanes::{finite, narrow_f16, widen_f16};
use martlet_device::{KvScheme, PAGE};

/// 1.5 * 2^23: added, it rounds to an integer, half to even, whose two's complement is the end of the sum's bits.
const ROUND: f32 = 12_582_912.0;

/// Stores one token's head, rounded.
pub fn store(scheme: KvScheme, block: &mut [u8], token: usize, x: &[f32]) {
    let (dim, largest) = (x.len(), scheme.largest());
    match scheme {
        KvScheme::F32 => {
            for (place, x) in block[4 * token * dim..].chunks_exact_mut(4).zip(x) {
                place.copy_from_slice(&finite(*x, largest).to_le_bytes());
            }
        }
        KvScheme::F16 => {
            for (place, x) in block[2 * token * dim..].chunks_exact_mut(2).zip(x) {
                place.copy_from_slice(&narrow_f16(*x).to_le_bytes());
            }
        }
        KvScheme::Q8 => {
            let (codes, scales) = block.split_at_mut(PAGE * dim);
            let max = x.iter().map(|x| finite(*x, largest).abs()).fold(0.0, |m: f32, a| if a > m { a } else { m });
            let scale = if max / 127.0 < f32::MIN_POSITIVE { 0.0 } else { max / 127.0 };
            scales[4 * token..4 * token + 4].copy_from_slice(&scale.to_le_bytes());
            let codes = &mut codes[token * dim..(token + 1) * dim];
            if scale == 0.0 {
                return codes.fill(0);
            }
            for (code, x) in codes.iter_mut().zip(x) {
                *code = (finite(*x, largest) / scale + ROUND).to_bits() as u8;
            }
        }
    }
}

/// The stored values of one token's head.
#[inline(always)]
pub fn load(scheme: KvScheme, block: &[u8], token: usize, y: &mut [f32]) {
    let dim = y.len();
    match scheme {
        KvScheme::F32 => {
            for (y, b) in y.iter_mut().zip(block[4 * token * dim..4 * (token + 1) * dim].chunks_exact(4)) {
                *y = f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
            }
        }
        KvScheme::F16 => {
            for (y, b) in y.iter_mut().zip(block[2 * token * dim..2 * (token + 1) * dim].chunks_exact(2)) {
                *y = widen_f16(u16::from_le_bytes([b[0], b[1]]));
            }
        }
        KvScheme::Q8 => {
            let (codes, scales) = block.split_at(PAGE * dim);
            let b = &scales[4 * token..4 * token + 4];
            let scale = f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
            for (y, code) in y.iter_mut().zip(&codes[token * dim..(token + 1) * dim]) {
                *y = f32::from(*code as i8) * scale;
            }
        }
    }
}

/// Whether a block holds only what [`store`] can write: finite values.
pub fn valid(scheme: KvScheme, block: &[u8], dim: usize) -> bool {
    match scheme {
        KvScheme::F32 => block.chunks_exact(4).all(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]).is_finite()),
        KvScheme::F16 => block.chunks_exact(2).all(|b| u16::from_le_bytes([b[0], b[1]]) & 0x7c00 != 0x7c00),
        KvScheme::Q8 => {
            let (codes, scales) = block.split_at(PAGE * dim);
            let normal = f32::MIN_POSITIVE..=scheme.largest() / 127.0;
            let scale = |b: &[u8]| f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
            scales.chunks_exact(4).map(scale).all(|s| s.to_bits() == 0 || normal.contains(&s))
                && !codes.contains(&(i8::MIN as u8))
        }
    }
}
