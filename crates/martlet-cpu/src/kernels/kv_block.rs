//! The keys, or the values, of one kv head in one page.
//! layout: keys [dim][token], so that a vector of scores has a key in each lane; values [token][dim]. Of f32
//! or f16, little-endian as every machine that this is built for; or i8 codes, and behind them the f32 scale of each token.
#![allow(unsafe_code)]

use crate::lanes::{finite, narrow_f16, widen_f16};
use crate::simd::Simd;
use martlet_device::{KvScheme, PAGE};

/// Keys or values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plane {
    Keys,
    Values,
}

impl Plane {
    /// Where the values of one token's head are: first, and step.
    fn places(self, token: usize, dim: usize) -> (usize, usize) {
        match self {
            Plane::Keys => (token, PAGE),
            Plane::Values => (token * dim, 1),
        }
    }
}

/// 1.5 * 2^23: added, it rounds to an integer, half to even, whose two's complement is the end of the sum's bits.
const ROUND: f32 = 12_582_912.0;

/// Stores one token's head, rounded.
pub fn store(scheme: KvScheme, plane: Plane, block: &mut [u8], token: usize, x: &[f32]) {
    let (dim, largest) = (x.len(), scheme.largest());
    let (first, step) = plane.places(token, dim);
    match scheme {
        KvScheme::F32 => {
            let places = block.as_chunks_mut().0[first..].iter_mut().step_by(step);
            places.zip(x).for_each(|(place, x)| *place = finite(*x, largest).to_le_bytes());
        }
        KvScheme::F16 => {
            let places = block.as_chunks_mut().0[first..].iter_mut().step_by(step);
            places.zip(x).for_each(|(place, x)| *place = narrow_f16(*x).to_le_bytes());
        }
        KvScheme::Q8 => {
            let (codes, scales) = block.split_at_mut(PAGE * dim);
            let max = x.iter().map(|x| finite(*x, largest).abs()).fold(0.0, |m: f32, a| if a > m { a } else { m });
            let scale = if max / 127.0 < f32::MIN_POSITIVE { 0.0 } else { max / 127.0 };
            scales.as_chunks_mut().0[token] = scale.to_le_bytes();
            let places = codes[first..].iter_mut().step_by(step);
            let code = |x: f32| (finite(x, largest) / scale + ROUND).to_bits() as u8;
            places.zip(x).for_each(|(place, x)| *place = if scale == 0.0 { 0 } else { code(*x) });
        }
    }
}

/// The stored values of one token's head.
pub fn load(scheme: KvScheme, plane: Plane, block: &[u8], token: usize, y: &mut [f32]) {
    let dim = y.len();
    let (first, step) = plane.places(token, dim);
    match scheme {
        KvScheme::F32 => {
            let places = block.as_chunks().0[first..].iter().step_by(step);
            y.iter_mut().zip(places).for_each(|(y, b)| *y = f32::from_le_bytes(*b));
        }
        KvScheme::F16 => {
            let places = block.as_chunks().0[first..].iter().step_by(step);
            y.iter_mut().zip(places).for_each(|(y, b)| *y = widen_f16(u16::from_le_bytes(*b)));
        }
        KvScheme::Q8 => {
            let (codes, scales) = block.split_at(PAGE * dim);
            let scale = f32::from_le_bytes(scales.as_chunks().0[token]);
            let places = codes[first..].iter().step_by(step);
            y.iter_mut().zip(places).for_each(|(y, code)| *y = f32::from(*code as i8) * scale);
        }
    }
}

/// Whether a block holds only what [`store`] can write: finite values.
pub fn valid(scheme: KvScheme, block: &[u8], dim: usize) -> bool {
    match scheme {
        KvScheme::F32 => block.as_chunks().0.iter().all(|b| f32::from_le_bytes(*b).is_finite()),
        KvScheme::F16 => block.as_chunks().0.iter().all(|b| u16::from_le_bytes(*b) & 0x7c00 != 0x7c00),
        KvScheme::Q8 => {
            let (codes, scales) = block.split_at(PAGE * dim);
            let normal = f32::MIN_POSITIVE..=scheme.largest() / 127.0;
            let good = |s: f32| s.to_bits() == 0 || normal.contains(&s);
            scales.as_chunks().0.iter().all(|b| good(f32::from_le_bytes(*b))) && !codes.contains(&(i8::MIN as u8))
        }
    }
}

/// All keys of a block as f32, [dim, token].
#[inline(always)]
pub fn widen_keys<S: Simd>(scheme: KvScheme, block: &[u8], dim: usize, tile: &mut [f32]) {
    assert!(block.len() == PAGE * scheme.head_bytes(dim) && tile.len() >= PAGE * dim, "keys of {dim}");
    for row in 0..dim {
        for at in (0..PAGE).step_by(S::WIDTH) {
            // SAFETY: the kernel runs where the instruction set is; the block holds `dim` rows of 64 values, and in Q8
            // behind them 64 scales, the tile as many (checked above). A register's width divides 64.
            unsafe {
                let v = widen::<S>(scheme, block.as_ptr(), row * PAGE + at);
                let v = match scheme {
                    KvScheme::Q8 => S::mul(v, S::load(block.as_ptr().add(PAGE * dim).cast::<f32>().add(at))),
                    _ => v,
                };
                S::store(tile.as_mut_ptr().add(row * PAGE + at), v);
            }
        }
    }
}

/// The values of the first tokens of a block as f32, [column / 64, token, 64]. What lies behind `dim` columns is of no
/// meaning.
#[inline(always)]
pub fn widen_values<S: Simd>(scheme: KvScheme, block: &[u8], dim: usize, tokens: usize, tile: &mut [f32]) {
    let width = dim.next_multiple_of(PAGE);
    assert!(block.len() == PAGE * scheme.head_bytes(dim) && tile.len() >= PAGE * width, "values of {dim}");
    assert!(tokens <= PAGE, "{tokens} tokens");
    let whole = dim / S::WIDTH * S::WIDTH;
    for token in 0..tokens {
        let place = |column: usize| (column / PAGE * PAGE + token) * PAGE + column % PAGE;
        // SAFETY: the kernel runs where the instruction set is; the block holds 64 rows of `dim` values, and in Q8 behind
        // them 64 scales, the tile 64 of `width` (checked above). A register's width divides 64.
        unsafe {
            let scale = match scheme {
                KvScheme::Q8 => S::splat(block.as_ptr().add(PAGE * dim).cast::<f32>().add(token).read_unaligned()),
                _ => S::splat(0.0),
            };
            for column in (0..whole).step_by(S::WIDTH) {
                let v = widen::<S>(scheme, block.as_ptr(), token * dim + column);
                let v = if scheme == KvScheme::Q8 { S::mul(v, scale) } else { v };
                S::store(tile.as_mut_ptr().add(place(column)), v);
            }
        }
        if whole < dim {
            let mut row = [0.0; crate::kernels::attention::MAX_DIM];
            load(scheme, Plane::Values, block, token, &mut row[..dim]);
            (whole..dim).for_each(|column| tile[place(column)] = row[column]);
        }
    }
}

/// A register of stored values, those of Q8 without their scale.
///
/// # Safety
/// The machine has the instruction set, and the block that many values from `at` on.
#[inline(always)]
unsafe fn widen<S: Simd>(scheme: KvScheme, block: *const u8, at: usize) -> S::V {
    // SAFETY: as the caller promises.
    unsafe {
        match scheme {
            KvScheme::F32 => S::load(block.cast::<f32>().add(at)),
            KvScheme::F16 => S::halves(block.cast::<u16>().add(at)),
            KvScheme::Q8 => S::codes(block.cast::<i8>().add(at)),
        }
    }
}
