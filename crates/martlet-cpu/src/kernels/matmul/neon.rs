//! Products of integer codes with NEON: the skeleton of all sets for AArch64, and how the plain one makes the exact sums,
//! by `smlal`, which multiplies 8 bytes by 8 and adds the products to 8 sums of 16 bits.
//!
//! bytes: each line of a tile once per block of 1, 2 or 4 rows; from memory once per call, asked for [`AHEAD`] bytes
//!   before it is needed. One row's activations of a tile are 64 bytes.
//! layout: a quarter of a line (4 outputs) is an operand: four codes of each output. The other is four codes of the row,
//!   the same for all outputs.
//! saturation: none. Codes are taken as nibbles, of at most 15, so that a product is at most 15 * 127 = 1905; a sum of
//!   16 bits takes a quarter of a group, 16 of them, and so at most 30480. Codes of 8 bits are two nibbles whose sums are
//!   put together in the end.
//! instructions for a line of 4-bit codes: 12 to read and unpack it, and 24 for each row (8 of them loads).
//! order: `mod.rs`. The scalar twin is `scalar.rs`. Speed was not measured.
#![allow(unsafe_code)]

use super::kinds::{BF16, F16, F32, U4, U8};
use super::{CodeProducts, Input, Product, SLICE, code_products, codes, for_scheme, neon};
use crate::lanes::{LANES, Lanes};
use crate::simd::prefetch_line;
use crate::tiles::{Codes, LINE, Scales, TILE_K};
use std::arch::aarch64::*;

/// Bytes from the line in work to the line that is fetched: what x86 likes, for want of a measurement.
const AHEAD: usize = 2048;
/// Registers of 16 outputs.
pub const QUARTERS: usize = 4;

/// Exact sums: of 16 outputs, and of each row.
pub type Sums<const R: usize> = [[int32x4_t; QUARTERS]; R];

/// How an instruction set makes the exact sums of a group.
pub trait GroupSums {
    /// The sums of a group of `L` lines.
    ///
    /// # Safety
    /// The machine has the instruction set; `L` lines at `line`, as many codes of each row at `x`.
    unsafe fn sums<const C: u8, const L: usize, const R: usize>(line: *const u8, x: [*const i8; R]) -> Sums<R>;
}

/// The code products of a set whose machines have `$features`, in blocks of the skeleton below.
macro_rules! neon_products {
    ($set:ident, $features:literal) => {
        code_products!($set, $features, [4, 2, 1]);

        // Never inlined: the registers of one block do not go round in two.
        #[inline(never)]
        #[target_feature(enable = $features)]
        fn block<const C: u8, const S: u8, const L: usize, const R: usize>(
            p: &Product<'_>,
            first: usize,
            out: &mut [Lanes],
        ) {
            // SAFETY: this function has the features.
            unsafe { neon::block_by::<$set, C, S, L, R>(p, first, out) }
        }
    };
}
pub(super) use neon_products;

pub struct Neon;

neon_products!(Neon, "neon");

/// The `R` rows from `first` on at once: a = fma(s, f32(I) * d, a) for each group, then a = fma(b, ds, a). `L`: lines of
/// one group.
///
/// # Safety
/// The machine has the instruction set.
#[inline(always)]
pub unsafe fn block_by<G: GroupSums, const C: u8, const S: u8, const L: usize, const R: usize>(
    p: &Product<'_>,
    first: usize,
    out: &mut [Lanes],
) {
    let Input::Codes { codes, d, ds, tiles, groups, .. } = p.x else { return };
    let code_lines = if C == U8 { 16 } else { 8 };
    let (per_tile, scale_lines) = (code_lines / L, if S == F32 { 2 } else { 1 });
    let tile_lines = code_lines + per_tile * scale_lines;
    let words = p.w.words(p.strip);
    assert!(words.len() == tiles * tile_lines && groups == tiles * per_tile, "activations of another shape");
    let (mut x, mut d_at, mut ds_at) = ([codes.as_ptr(); R], [d.as_ptr(); R], [ds.as_ptr(); R]);
    for r in 0..R {
        let row = p.rows[first + r] as usize;
        x[r] = codes[row * tiles..(row + 1) * tiles].as_ptr();
        d_at[r] = d[row * groups..(row + 1) * groups].as_ptr();
        ds_at[r] = ds[row * groups..(row + 1) * groups].as_ptr();
    }
    let out = &mut out[first..first + R];
    out.fill([0.0; LANES]);
    let mut tile: *const u8 = words.as_ptr().cast();
    for slice in (0..tiles).step_by(SLICE / TILE_K) {
        // SAFETY: tile t of `tiles` in the strip, and of each row; group `act` of `groups`: the slices above hold them
        // all. `tile` moves on by one tile for each t. The machine has the instruction set, as the caller promises.
        unsafe {
            let mut a = [[vdupq_n_f32(0.0); QUARTERS]; R];
            for t in slice..tiles.min(slice + SLICE / TILE_K) {
                for g in 0..per_tile {
                    let x = x.map(|x| x.add(t).cast::<i8>().add(TILE_K / per_tile * g));
                    let sums = G::sums::<C, L, R>(tile.add(g * L * LINE), x);
                    let act = t * per_tile + g;
                    for q in 0..QUARTERS {
                        let (s, b) = scales::<S>(tile.add((code_lines + g * scale_lines) * LINE), q);
                        for r in 0..R {
                            let v = vmulq_n_f32(vcvtq_f32_s32(sums[r][q]), *d_at[r].add(act));
                            a[r][q] = vfmaq_f32(a[r][q], s, v);
                            a[r][q] = vfmaq_n_f32(a[r][q], b, *ds_at[r].add(act));
                        }
                    }
                }
                tile = tile.add(tile_lines * LINE);
            }
            for r in 0..R {
                for (q, y) in out[r].as_chunks_mut::<4>().0.iter_mut().enumerate() {
                    vst1q_f32(y.as_mut_ptr(), vaddq_f32(vld1q_f32(y.as_ptr()), a[r][q]));
                }
            }
        }
    }
}

impl GroupSums for Neon {
    #[inline(always)]
    unsafe fn sums<const C: u8, const L: usize, const R: usize>(line: *const u8, x: [*const i8; R]) -> Sums<R> {
        // SAFETY: as this function's caller promises.
        unsafe {
            let mut total = [[vdupq_n_s32(0); QUARTERS]; R];
            for q in 0..QUARTERS {
                // Sums of low and of high nibbles (of both, where a nibble is a code): of two outputs in each register.
                let mut sums = [[[vdupq_n_s16(0); 2]; 2]; R];
                for p in 0..L {
                    let [low, high] = nibbles(quarter(line.add(p * LINE), q)).map(|v| vreinterpretq_s8_u8(v));
                    for r in 0..R {
                        if C == U8 {
                            let four = four(x[r], p);
                            sums[r][0] = add_products(sums[r][0], low, four);
                            sums[r][1] = add_products(sums[r][1], high, four);
                        } else {
                            sums[r][0] = add_products(sums[r][0], low, four(x[r], 2 * p));
                            sums[r][0] = add_products(sums[r][0], high, four(x[r], 2 * p + 1));
                        }
                    }
                }
                for r in 0..R {
                    let [low, high] = sums[r].map(|[a, b]| vpaddq_s32(vpaddlq_s16(a), vpaddlq_s16(b)));
                    total[r][q] = if C == U8 { vaddq_s32(low, vshlq_n_s32::<4>(high)) } else { low };
                }
            }
            total
        }
    }
}

/// Adds the products of 16 bytes to 16 sums.
#[inline(always)]
unsafe fn add_products(sums: [int16x8_t; 2], w: int8x16_t, x: int8x16_t) -> [int16x8_t; 2] {
    // SAFETY: every AArch64 has NEON.
    unsafe { [vmlal_s8(sums[0], vget_low_s8(w), vget_low_s8(x)), vmlal_high_s8(sums[1], w, x)] }
}

/// The codes k = 4 i to 4 i + 3 of a row, the same for four outputs.
///
/// # Safety
/// As many codes at `x`.
#[inline(always)]
pub unsafe fn four(x: *const i8, i: usize) -> int8x16_t {
    // SAFETY: as this function's caller promises.
    unsafe { vreinterpretq_s8_s32(vdupq_n_s32(x.cast::<i32>().add(i).read_unaligned())) }
}

/// The codes k = 8 i to 8 i + 3, and the four after them, of the 4 outputs of a quarter.
///
/// # Safety
/// As many lines at `line`.
#[inline(always)]
pub unsafe fn operands<const C: u8>(line: *const u8, i: usize, q: usize) -> [uint8x16_t; 2] {
    // SAFETY: as this function's caller promises.
    unsafe {
        match C {
            U8 => [quarter(line.add(2 * i * LINE), q), quarter(line.add((2 * i + 1) * LINE), q)],
            _ => nibbles(quarter(line.add(i * LINE), q)),
        }
    }
}

#[inline(always)]
unsafe fn nibbles(v: uint8x16_t) -> [uint8x16_t; 2] {
    // SAFETY: every AArch64 has NEON.
    unsafe { [vandq_u8(v, vdupq_n_u8(15)), vshrq_n_u8::<4>(v)] }
}

/// Scales and biases of a quarter of a group.
///
/// # Safety
/// Its lines of scales at `line`.
#[inline(always)]
unsafe fn scales<const S: u8>(line: *const u8, q: usize) -> (float32x4_t, float32x4_t) {
    // SAFETY: as this function's caller promises; of F32 there are two lines.
    unsafe {
        let v = vreinterpretq_u32_u8(quarter(line, q));
        match S {
            BF16 => {
                let s = vandq_u32(v, vdupq_n_u32(0xffff_0000));
                (vreinterpretq_f32_u32(s), vreinterpretq_f32_u32(vshlq_n_u32::<16>(v)))
            }
            F16 => {
                let widen = |h| vcvt_f32_f16(vreinterpret_f16_u16(h));
                (widen(vshrn_n_u32::<16>(v)), widen(vmovn_u32(v)))
            }
            _ => (vreinterpretq_f32_u32(v), vreinterpretq_f32_u8(quarter(line.add(LINE), q))),
        }
    }
}

/// Reads a quarter of a line, and with the first asks for the line [`AHEAD`] of it: an address without memory is no
/// fault.
///
/// # Safety
/// 64 bytes at `line`.
#[inline(always)]
unsafe fn quarter(line: *const u8, q: usize) -> uint8x16_t {
    if q == 0 {
        prefetch_line(line.wrapping_add(AHEAD));
    }
    // SAFETY: as the caller promises.
    unsafe { vld1q_u8(line.add(16 * q)) }
}
