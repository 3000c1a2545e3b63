//! Products of weights that are floats: f32, f16, bf16, and E4M3 with a scale for each group of inputs.

use super::{Input, Product, SLICE};
use crate::lanes::{LANES, Lanes, widen_bf16, widen_e4m3, widen_f16};

const ZERO: Lanes = [0.0; LANES];

/// How 16 weights of one input are stored.
pub trait Widen {
    const BYTES: usize;

    fn widen(bytes: &[u8]) -> Lanes;
}

/// out[i] = plain products of row `rows[i]`: 4 rows share the reading of the weights.
#[inline(always)]
pub fn rows<W: Widen>(p: &Product<'_>, out: &mut [Lanes]) {
    by_blocks(p, SLICE, None, out, W::BYTES, W::widen);
}

/// The same for E4M3 weights with a scale for each `group` inputs.
#[inline(always)]
pub fn scaled_rows(p: &Product<'_>, group: usize, out: &mut [Lanes]) {
    let scales = &p.w.strip(p.strip)[p.w.cols * LANES..];
    by_blocks(p, group, Some(scales), out, LANES, widen_codes);
}

#[inline(always)]
fn by_blocks(
    p: &Product<'_>,
    group: usize,
    scales: Option<&[u8]>,
    out: &mut [Lanes],
    bytes: usize,
    widen: impl Fn(&[u8]) -> Lanes + Copy,
) {
    let (mut i, rows) = (0, p.rows);
    while i + 4 <= rows.len() {
        let y = block(p, [rows[i], rows[i + 1], rows[i + 2], rows[i + 3]], group, scales, bytes, widen);
        out[i..i + 4].copy_from_slice(&y);
        i += 4;
    }
    while i < rows.len() {
        [out[i]] = block(p, [rows[i]], group, scales, bytes, widen);
        i += 1;
    }
}

/// `group` divides a slice; without `scales` it is a slice, whose sum is taken as it is.
#[inline(always)]
fn block<const R: usize>(
    p: &Product<'_>,
    rows: [u32; R],
    group: usize,
    scales: Option<&[u8]>,
    bytes: usize,
    widen: impl Fn(&[u8]) -> Lanes,
) -> [Lanes; R] {
    let Input::Floats { x, stride } = p.x else { return [[f32::NAN; LANES]; R] };
    let cols = p.w.cols;
    let mut row_x: [&[f32]; R] = [&[]; R];
    for r in 0..R {
        row_x[r] = &x[rows[r] as usize * stride..][..cols];
    }
    let strip = &p.w.strip(p.strip)[..cols * bytes];
    let (mut y, mut a) = ([ZERO; R], [ZERO; R]);
    let mut k0 = 0;
    while k0 < cols {
        let end = cols.min(k0 + group);
        let mut g = [ZERO; R];
        for k in k0..end {
            let w = widen(&strip[k * bytes..(k + 1) * bytes]);
            for r in 0..R {
                let x = row_x[r][k];
                for l in 0..LANES {
                    g[r][l] = w[l].mul_add(x, g[r][l]);
                }
            }
        }
        if let Some(scales) = scales {
            let s = F32::widen(&scales[k0 / group * 64..][..64]);
            for r in 0..R {
                for l in 0..LANES {
                    a[r][l] = s[l].mul_add(g[r][l], a[r][l]);
                }
            }
        } else {
            a = g;
        }
        k0 = end;
        if k0 % SLICE == 0 || k0 == cols {
            for r in 0..R {
                for l in 0..LANES {
                    y[r][l] += a[r][l];
                }
            }
            a = [ZERO; R];
        }
    }
    y
}

pub struct F32;

impl Widen for F32 {
    const BYTES: usize = 64;

    #[inline(always)]
    fn widen(bytes: &[u8]) -> Lanes {
        let (bytes, mut w) = (&bytes[..64], ZERO);
        for l in 0..LANES {
            w[l] = f32::from_le_bytes([bytes[4 * l], bytes[4 * l + 1], bytes[4 * l + 2], bytes[4 * l + 3]]);
        }
        w
    }
}

pub struct F16;

impl Widen for F16 {
    const BYTES: usize = 32;

    #[inline(always)]
    fn widen(bytes: &[u8]) -> Lanes {
        let (bytes, mut w) = (&bytes[..32], ZERO);
        for l in 0..LANES {
            w[l] = widen_f16(u16::from_le_bytes([bytes[2 * l], bytes[2 * l + 1]]));
        }
        w
    }
}

pub struct Bf16;

impl Widen for Bf16 {
    const BYTES: usize = 32;

    #[inline(always)]
    fn widen(bytes: &[u8]) -> Lanes {
        let (bytes, mut w) = (&bytes[..32], ZERO);
        for l in 0..LANES {
            w[l] = widen_bf16(u16::from_le_bytes([bytes[2 * l], bytes[2 * l + 1]]));
        }
        w
    }
}

#[inline(always)]
fn widen_codes(bytes: &[u8]) -> Lanes {
    let (bytes, mut w) = (&bytes[..LANES], ZERO);
    for l in 0..LANES {
        w[l] = widen_e4m3(bytes[l]);
    }
    w
}
