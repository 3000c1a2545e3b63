//! Activations of integer-code products, quantised per row and group.
//!
//! For each group of 16, 32 or 64 inputs: max = largest |x|, d = max / 127, code = x * (127 / max) rounded half to even
//! and held within +-127, ds = d * f32(sum of the codes), rounded once. A group of zeros has d = 0. A group that holds
//! NaN or an infinity has a d that is not finite, and so has every output that it meets.

use crate::lanes::LANES;
use crate::pool::Pool;
use crate::tiles::TILE_K;

/// Codes of the inputs that one tile of weights meets.
pub type Tile = [i8; TILE_K];

/// For each 16 codes of a tile: -32 times their sum, where the sum of products with codes less 32 begins.
pub type Starts = [i32; TILE_K / LANES];

/// Rows of a block.
pub const BLOCK: usize = 16;

/// Quantised rows; kept from call to call, so that a step allocates nothing once it has been as large before.
#[derive(Default)]
pub struct Acts {
    /// Whole numbers from -127 to 127, a tile of the weights at a time.
    pub codes: Vec<Tile>,
    /// The same of whole blocks of [`BLOCK`] rows: block, tile, row. Only where the kernels ask for it.
    pub blocks: Vec<Tile>,
    /// Of each tile of `codes`. Only where the weights want them.
    pub starts: Vec<Starts>,
    pub d: Vec<f32>,
    pub ds: Vec<f32>,
    /// Tiles of a row: K is filled up with zeros to whole ones.
    pub tiles: usize,
    /// Groups of a row, those of the filled-up part included.
    pub groups: usize,
}

impl Acts {
    /// Makes room for `rows` rows of `cols` activations in groups of `group`.
    pub fn shape(&mut self, rows: usize, cols: usize, group: usize) {
        self.tiles = cols.div_ceil(TILE_K);
        self.groups = self.tiles * TILE_K / group;
        self.codes.resize(rows * self.tiles, [0; TILE_K]);
        self.d.resize(rows * self.groups, 0.0);
        self.ds.resize(rows * self.groups, 0.0);
        self.blocks.clear();
        self.starts.clear();
    }

    /// Puts the tiles of each block of rows side by side.
    pub fn arrange(&mut self, pool: &Pool) {
        let (rows, tiles) = (self.codes.len() / self.tiles.max(1), self.tiles);
        self.blocks.resize(rows / BLOCK * BLOCK * tiles, [0; TILE_K]);
        let from = &self.codes;
        pool.chunks(&mut self.blocks, BLOCK * tiles, BLOCK * tiles, |block, to| {
            for (r, row) in from[block * BLOCK * tiles..].chunks_exact(tiles).take(BLOCK).enumerate() {
                row.iter().zip(to[r..].iter_mut().step_by(BLOCK)).for_each(|(from, to)| *to = *from);
            }
        });
    }
}

/// Quantises one row. `codes` may be longer than `x`: the rest becomes zeros.
#[inline(always)]
pub fn quantise(x: &[f32], group: usize, codes: &mut [Tile], d: &mut [f32], ds: &mut [f32]) {
    let codes = codes.as_flattened_mut();
    let mut padded = [0.0; TILE_K];
    for g in 0..d.len() {
        let from = (g * group).min(x.len());
        let part = &x[from..x.len().min(from + group)];
        let part = if part.len() == group {
            part
        } else {
            padded[..part.len()].copy_from_slice(part);
            padded[part.len()..].fill(0.0);
            &padded[..group]
        };
        (d[g], ds[g]) = quantise_group(part, &mut codes[g * group..(g + 1) * group]);
    }
}

/// The starts of one row.
#[inline(always)]
pub fn starts(codes: &[Tile], starts: &mut [Starts]) {
    for (codes, starts) in codes.iter().zip(starts) {
        for (codes, start) in codes.chunks_exact(LANES).zip(starts) {
            *start = -32 * codes.iter().map(|c| i32::from(*c)).sum::<i32>();
        }
    }
}

/// One group of a multiple of 16 values: (d, ds).
#[inline(always)]
fn quantise_group(x: &[f32], codes: &mut [i8]) -> (f32, f32) {
    // 1.5 * 2^23: added, it rounds to an integer, half to even, whose two's complement is the end of the sum's bits.
    const ROUND: f32 = 12_582_912.0;
    let mut most = [0.0f32; LANES];
    let mut odd = [0u32; LANES];
    for part in x.chunks_exact(LANES) {
        for i in 0..LANES {
            let a = part[i].abs();
            most[i] = if a > most[i] { a } else { most[i] };
            odd[i] |= (a.to_bits() > 0x7f80_0000) as u32;
        }
    }
    let (mut max, mut nan) = (0.0, 0);
    for i in 0..LANES {
        max = if most[i] > max { most[i] } else { max };
        nan |= odd[i];
    }
    let (d, inverse) = if max == 0.0 { (0.0, 0.0) } else { (max / 127.0, 127.0 / max) };
    let mut sums = [0.0f32; LANES];
    for (part, codes) in x.chunks_exact(LANES).zip(codes.chunks_exact_mut(LANES)) {
        for i in 0..LANES {
            let v = part[i] * inverse;
            let v = if v > 127.0 { 127.0 } else { v };
            let v = if v < -127.0 { -127.0 } else { v };
            let v = if v.is_nan() { 0.0 } else { v };
            let rounded = v + ROUND;
            sums[i] += rounded - ROUND;
            codes[i] = rounded.to_bits() as i8;
        }
    }
    let d = if nan == 0 { d } else { f32::NAN };
    // Whole numbers: the order of this sum has no part in it.
    (d, d * sums.iter().sum::<f32>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Random;

    fn check(x: &[f32], group: usize) {
        let mut a = Acts::default();
        a.shape(1, x.len(), group);
        quantise(x, group, &mut a.codes, &mut a.d, &mut a.ds);
        for (g, part) in x.chunks(group).enumerate() {
            let max = part.iter().fold(0.0f32, |m, v| m.max(v.abs()));
            let mut sum = 0;
            for (i, v) in part.iter().enumerate() {
                let code = if max == 0.0 { 0 } else { (v * (127.0 / max)).round_ties_even() as i32 };
                assert_eq!(i32::from(a.codes.as_flattened()[g * group + i]), code.clamp(-127, 127));
                sum += code;
            }
            assert_eq!((a.d[g], a.ds[g]), (max / 127.0, max / 127.0 * sum as f32));
        }
        assert!(a.codes.as_flattened()[x.len()..].iter().all(|&c| c == 0));
    }

    #[test]
    fn codes_round_half_to_even() {
        let mut r = Random::new(3);
        for (len, group) in [(64, 64), (80, 64), (320, 64), (32, 32), (96, 32), (16, 64), (80, 16)] {
            check(&r.vec(len), group);
            check(&vec![0.0; len], group);
            let halves: Vec<f32> = (0..len).map(|i| if i == 0 { 127.0 } else { i as f32 - 9.5 }).collect();
            check(&halves, group);
        }
    }

    #[test]
    fn numbers_that_are_not_finite_stay_visible() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x = vec![1.0; 128];
            x[70] = bad;
            let mut a = Acts::default();
            a.shape(1, 128, 64);
            quantise(&x, 64, &mut a.codes, &mut a.d, &mut a.ds);
            assert!(a.d[0].is_finite() && !a.d[1].is_finite(), "{bad}");
        }
        let tiny = [f32::from_bits(1); 64];
        let mut a = Acts::default();
        a.shape(1, 64, 64);
        quantise(&tiny, 64, &mut a.codes, &mut a.d, &mut a.ds);
        assert!(a.d[0].is_finite());
    }
}
