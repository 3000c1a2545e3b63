//! Products of integer codes: one skeleton, and for each code its exact sums, for each kind of scale how it is read.

use super::{Input, Product, SLICE};
use crate::lanes::{LANES, Lanes, widen_bf16, widen_f16};
use crate::tiles::{LINE, Scales as ScaleKind, TILE_K};

const ZERO: Lanes = [0.0; LANES];

/// How codes lie in a tile, and their exact products.
pub trait Unpack {
    /// Bytes of 64 K.
    const BYTES: usize;

    /// For each row and output: sum over a group of code * x. `codes` are the group's lines, x its activations.
    fn sums<const R: usize>(codes: &[u8], x: [&[i16]; R]) -> [[i32; LANES]; R];
}

/// How the scales of 16 outputs lie in one group.
pub trait Scale {
    const KIND: ScaleKind;
    /// Whether there is a bias beside the scale.
    const BIAS: bool;

    /// Scales and biases; `factors` belong to the outputs.
    fn read(bytes: &[u8], factors: &Lanes) -> (Lanes, Lanes);
}

/// All rows of a product: blocks of 4 share the unpacking of the codes, the rest goes one by one.
#[inline(always)]
pub fn rows<C: Unpack, S: Scale>(p: &Product<'_>, out: &mut [Lanes]) {
    let (mut i, rows) = (0, p.rows);
    while i + 4 <= rows.len() {
        let y = block::<C, S, 4>(p, [rows[i], rows[i + 1], rows[i + 2], rows[i + 3]]);
        out[i..i + 4].copy_from_slice(&y);
        i += 4;
    }
    while i < rows.len() {
        [out[i]] = block::<C, S, 1>(p, [rows[i]]);
        i += 1;
    }
}

#[inline(always)]
fn block<C: Unpack, S: Scale, const R: usize>(p: &Product<'_>, rows: [u32; R]) -> [Lanes; R] {
    let Input::Codes { codes: x, d, ds, stride, groups } = p.x else { return [[f32::NAN; LANES]; R] };
    let mut row_x: [&[i16]; R] = [&[]; R];
    let (mut row_d, mut row_ds): ([&[f32]; R], [&[f32]; R]) = ([&[]; R], [&[]; R]);
    for r in 0..R {
        let row = rows[r] as usize;
        row_x[r] = &x[row * stride..(row + 1) * stride];
        row_d[r] = &d[row * groups..(row + 1) * groups];
        row_ds[r] = &ds[row * groups..(row + 1) * groups];
    }
    let (group, scale_bytes) = (p.w.group, S::KIND.bytes());
    let (code_bytes, per_tile) = (C::BYTES / (TILE_K / group), TILE_K / group);
    let factors = p.w.factors(p.strip);
    let (mut y, mut a) = ([ZERO; R], [ZERO; R]);
    for (t, tile) in p.w.strip(p.strip).chunks_exact(C::BYTES + per_tile * scale_bytes).enumerate() {
        let (codes, scales) = tile.split_at(C::BYTES);
        for g in 0..per_tile {
            let k = t * TILE_K + g * group;
            let mut part: [&[i16]; R] = [&[]; R];
            for r in 0..R {
                part[r] = &row_x[r][k..k + group];
            }
            let sums = C::sums::<R>(&codes[g * code_bytes..(g + 1) * code_bytes], part);
            let (s, b) = S::read(&scales[g * scale_bytes..(g + 1) * scale_bytes], &factors);
            let act = k / p.w.act_group;
            for r in 0..R {
                let (d, ds) = (row_d[r][act], row_ds[r][act]);
                for l in 0..LANES {
                    a[r][l] = s[l].mul_add(sums[r][l] as f32 * d, a[r][l]);
                }
                if S::BIAS {
                    for l in 0..LANES {
                        a[r][l] = b[l].mul_add(ds, a[r][l]);
                    }
                }
            }
        }
        if (t + 1) % (SLICE / TILE_K) == 0 {
            flush(&mut y, &mut a);
        }
    }
    if p.w.cols.div_ceil(TILE_K) % (SLICE / TILE_K) != 0 {
        flush(&mut y, &mut a);
    }
    y
}

/// The end of a slice: y += a, a = 0.
#[inline(always)]
fn flush<const R: usize>(y: &mut [Lanes; R], a: &mut [Lanes; R]) {
    for r in 0..R {
        for l in 0..LANES {
            y[r][l] += a[r][l];
        }
    }
    *a = [ZERO; R];
}

/// The 64 bytes of a line.
#[inline(always)]
fn line(codes: &[u8], p: usize) -> [u8; LINE] {
    let mut line = [0; LINE];
    line.copy_from_slice(&codes[p * LINE..(p + 1) * LINE]);
    line
}

/// Four activations, repeated for every output.
#[inline(always)]
fn repeat(x: &[i16]) -> [i16; LINE] {
    let mut wide = [0; LINE];
    for i in 0..LINE {
        wide[i] = x[i % 4];
    }
    wide
}

/// Adds the four products of each output.
#[inline(always)]
fn fold(acc: &[i16; LINE]) -> [i32; LANES] {
    let mut sums = [0; LANES];
    for l in 0..LANES {
        sums[l] = acc[4 * l] as i32 + acc[4 * l + 1] as i32 + (acc[4 * l + 2] as i32 + acc[4 * l + 3] as i32);
    }
    sums
}

/// Sums of nibbles that `decode` turns into at most 15 in magnitude: 16 products of at most 15 * 127 fit into i16.
#[inline(always)]
fn nibble_sums<const R: usize>(
    codes: &[u8],
    x: [&[i16]; R],
    decode: impl Fn(&[u8; LINE]) -> [i16; LINE],
) -> [[i32; LANES]; R] {
    let mut acc = [[0i16; LINE]; R];
    for p in 0..codes.len() / LINE {
        let bytes = line(codes, p);
        let (mut low, mut high) = ([0u8; LINE], [0u8; LINE]);
        for i in 0..LINE {
            low[i] = bytes[i] & 15;
            high[i] = bytes[i] >> 4;
        }
        let (low, high) = (decode(&low), decode(&high));
        for r in 0..R {
            let (xl, xh) = (repeat(&x[r][8 * p..8 * p + 4]), repeat(&x[r][8 * p + 4..8 * p + 8]));
            for i in 0..LINE {
                acc[r][i] += low[i] * xl[i] + high[i] * xh[i];
            }
        }
    }
    let mut sums = [[0; LANES]; R];
    for r in 0..R {
        sums[r] = fold(&acc[r]);
    }
    sums
}

pub struct U4;

impl Unpack for U4 {
    const BYTES: usize = 8 * LINE;

    #[inline(always)]
    fn sums<const R: usize>(codes: &[u8], x: [&[i16]; R]) -> [[i32; LANES]; R] {
        nibble_sums(codes, x, |nibbles| {
            let mut v = [0; LINE];
            for i in 0..LINE {
                v[i] = nibbles[i] as i16;
            }
            v
        })
    }
}

pub struct E2m1;

impl Unpack for E2m1 {
    const BYTES: usize = 8 * LINE;

    /// Twice the value: m = 0 1 2 3 4 5 6 7 stands for 0 1 2 3 4 6 8 12, that is m + (m - 4)+ + 2 (m - 6)+.
    #[inline(always)]
    fn sums<const R: usize>(codes: &[u8], x: [&[i16]; R]) -> [[i32; LANES]; R] {
        nibble_sums(codes, x, |nibbles| {
            let mut v = [0; LINE];
            for i in 0..LINE {
                let m = nibbles[i] & 7;
                let magnitude = (m + m.saturating_sub(4) + 2 * m.saturating_sub(6)) as i16;
                let sign = -((nibbles[i] >> 3) as i16);
                v[i] = (magnitude ^ sign) - sign;
            }
            v
        })
    }
}

pub struct U8;

impl Unpack for U8 {
    const BYTES: usize = 16 * LINE;

    /// One product of at most 255 * 127 fits into i16; sums do not.
    #[inline(always)]
    fn sums<const R: usize>(codes: &[u8], x: [&[i16]; R]) -> [[i32; LANES]; R] {
        let mut acc = [[0i32; LINE]; R];
        for p in 0..codes.len() / LINE {
            let bytes = line(codes, p);
            for r in 0..R {
                let x = repeat(&x[r][4 * p..4 * p + 4]);
                for i in 0..LINE {
                    acc[r][i] += (bytes[i] as i16).wrapping_mul(x[i]) as i32;
                }
            }
        }
        let mut sums = [[0; LANES]; R];
        for r in 0..R {
            for l in 0..LANES {
                sums[r][l] = acc[r][4 * l] + acc[r][4 * l + 1] + (acc[r][4 * l + 2] + acc[r][4 * l + 3]);
            }
        }
        sums
    }
}

/// Element `i` of 32-bit or 16-bit little-endian words.
#[inline(always)]
fn word(bytes: &[u8], i: usize) -> u32 {
    u32::from_le_bytes([bytes[4 * i], bytes[4 * i + 1], bytes[4 * i + 2], bytes[4 * i + 3]])
}

#[inline(always)]
fn half(bytes: &[u8], i: usize) -> u16 {
    u16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]])
}

pub struct Bf16Pair;

impl Scale for Bf16Pair {
    const KIND: ScaleKind = ScaleKind::Bf16Pair;
    const BIAS: bool = true;

    #[inline(always)]
    fn read(bytes: &[u8], _: &Lanes) -> (Lanes, Lanes) {
        let (mut s, mut b) = (ZERO, ZERO);
        for l in 0..LANES {
            let w = word(&bytes[..64], l);
            s[l] = f32::from_bits(w & 0xffff_0000);
            b[l] = f32::from_bits(w << 16);
        }
        (s, b)
    }
}

pub struct F16Pair;

impl Scale for F16Pair {
    const KIND: ScaleKind = ScaleKind::F16Pair;
    const BIAS: bool = true;

    #[inline(always)]
    fn read(bytes: &[u8], _: &Lanes) -> (Lanes, Lanes) {
        let (mut s, mut b) = (ZERO, ZERO);
        for l in 0..LANES {
            let w = word(&bytes[..64], l);
            s[l] = widen_f16((w >> 16) as u16);
            b[l] = widen_f16(w as u16);
        }
        (s, b)
    }
}

pub struct F32Pair;

impl Scale for F32Pair {
    const KIND: ScaleKind = ScaleKind::F32Pair;
    const BIAS: bool = true;

    #[inline(always)]
    fn read(bytes: &[u8], _: &Lanes) -> (Lanes, Lanes) {
        let (mut s, mut b) = (ZERO, ZERO);
        for l in 0..LANES {
            s[l] = f32::from_bits(word(&bytes[..64], l));
            b[l] = f32::from_bits(word(&bytes[64..128], l));
        }
        (s, b)
    }
}

pub struct Bf16;

impl Scale for Bf16 {
    const KIND: ScaleKind = ScaleKind::Bf16;
    const BIAS: bool = false;

    #[inline(always)]
    fn read(bytes: &[u8], _: &Lanes) -> (Lanes, Lanes) {
        let mut s = ZERO;
        for l in 0..LANES {
            s[l] = widen_bf16(half(&bytes[..32], l));
        }
        (s, ZERO)
    }
}

pub struct F16Factor;

impl Scale for F16Factor {
    const KIND: ScaleKind = ScaleKind::F16Factor;
    const BIAS: bool = false;

    #[inline(always)]
    fn read(bytes: &[u8], factors: &Lanes) -> (Lanes, Lanes) {
        let mut s = ZERO;
        for l in 0..LANES {
            s[l] = widen_f16(half(&bytes[..32], l)) * factors[l];
        }
        (s, ZERO)
    }
}
