//! Products of integer codes with NEON: the skeleton of all sets for AArch64, and how the plain one makes the exact sums,
//! by `smlal`, which multiplies 8 bytes by 8 and adds the products to 8 sums of 16 bits.
//!
//! bytes: each line of a tile once per block of 1, 2 or 4 rows; from memory once per call, asked for [`AHEAD`] bytes
//!   before it is needed. One row's activations of a tile are 64 bytes.
//! layout: a quarter of a line (4 outputs) is an operand: four codes of each output. The other is four codes of the row,
//!   the same for all outputs.
//! saturation: none. Codes are taken as nibbles, of at most 15, so that a product is at most 15 * 127 = 1905; a sum of
//!   16 bits takes a quarter of a group, 16 of them, and so at most 30480. Codes of 5 and 6 bits, at most 63, fill 16 bits
//!   after 8 of them and 4. Codes of 8 bits are two nibbles whose sums are put together in the end.
//! instructions for a line of 4-bit codes: 12 to read and unpack it, and 24 for each row (8 of them loads).
//! order: `mod.rs`. The scalar twin is `scalar.rs`. Speed was not measured.
#![allow(unsafe_code)]

use super::kinds::*;
use super::{CodeProducts, Input, Product, SLICE, TileOf, code_products, codes, for_scheme, neon};
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
    /// The sums of group `g`, of `L` lines.
    ///
    /// # Safety
    /// The machine has the instruction set; a tile at `tile`, the group's codes of each row at `x`.
    unsafe fn sums<const C: u8, const L: usize, const R: usize>(
        tile: *const u8,
        g: usize,
        x: [*const i8; R],
    ) -> Sums<R>;
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

/// The `R` rows from `first` on at once: a = fma(s, f32(I) * d, a) for each group, then a = fma(b, ds, a); or for scales
/// that are whole numbers without minima, the order of q6_k. `L`: lines of one group.
///
/// # Safety
/// The machine has the instruction set.
#[inline(always)]
pub unsafe fn block_by<G: GroupSums, const C: u8, const S: u8, const L: usize, const R: usize>(
    p: &Product<'_>,
    first: usize,
    out: &mut [Lanes],
) {
    let Input::Codes { codes, starts, d, ds, tiles, groups, .. } = p.x else { return };
    let mut tile = TileOf::<C, S, L>::strip(p, 0, tiles, groups);
    let (mut x, mut starts_at) = ([codes.as_ptr(); R], [starts.as_ptr(); R]);
    let (mut d_at, mut ds_at) = ([d.as_ptr(); R], [ds.as_ptr(); R]);
    for r in 0..R {
        let row = p.rows[first + r] as usize;
        x[r] = codes[row * tiles..(row + 1) * tiles].as_ptr();
        if S == WHOLE {
            starts_at[r] = starts[row * tiles..(row + 1) * tiles].as_ptr();
        }
        d_at[r] = d[row * groups..(row + 1) * groups].as_ptr();
        ds_at[r] = ds[row * groups..(row + 1) * groups].as_ptr();
    }
    let out = &mut out[first..first + R];
    out.fill([0.0; LANES]);
    for slice in (0..tiles).step_by(SLICE / TILE_K) {
        // SAFETY: tile t of `tiles` in the strip, and of each row; group `act` of `groups`: the slices above hold them
        // all. `tile` moves on by one tile for each t, and by one line of factors for every second. The machine has the
        // instruction set, as the caller promises.
        unsafe {
            let none = vdupq_n_f32(0.0);
            let mut factors = [(none, none); QUARTERS];
            let mut a = [[none; QUARTERS]; R];
            for t in slice..tiles.min(slice + SLICE / TILE_K) {
                if TileOf::<C, S, L>::WHOLE && t % 2 == 0 {
                    factors = [0, 1, 2, 3].map(|q| pairs::<F16>(vreinterpretq_u32_u8(quarter(tile, q))));
                    tile = tile.add(LINE);
                }
                let mut total = [[none; QUARTERS]; R];
                for g in 0..TileOf::<C, S, L>::GROUPS {
                    let x = x.map(|x| x.add(t).cast::<i8>().add(g * TILE_K / TileOf::<C, S, L>::GROUPS));
                    let sums = G::sums::<C, L, R>(tile, g, x);
                    let act = t * TileOf::<C, S, L>::ACT_GROUPS + g;
                    for q in 0..QUARTERS {
                        let (s, b) = scales::<C, S, L>(tile, g, q, factors[q]);
                        for r in 0..R {
                            if S == WHOLE {
                                let start = vdupq_n_s32((*starts_at[r].add(t))[g]);
                                total[r][q] = vfmaq_f32(total[r][q], s, vcvtq_f32_s32(vaddq_s32(sums[r][q], start)));
                                continue;
                            }
                            let v = vmulq_n_f32(vcvtq_f32_s32(sums[r][q]), *d_at[r].add(act));
                            a[r][q] = vfmaq_f32(a[r][q], s, v);
                            a[r][q] = vfmaq_n_f32(a[r][q], b, *ds_at[r].add(act));
                        }
                    }
                }
                if S == WHOLE {
                    for r in 0..R {
                        for q in 0..QUARTERS {
                            let v = vmulq_n_f32(total[r][q], *d_at[r].add(t));
                            a[r][q] = vfmaq_f32(a[r][q], factors[q].1, v);
                        }
                    }
                }
                tile = tile.add(TileOf::<C, S, L>::BYTES);
            }
            for r in 0..R {
                for (q, y) in out[r].as_chunks_mut::<4>().0.iter_mut().enumerate() {
                    vst1q_f32(y.as_mut_ptr(), vaddq_f32(vld1q_f32(y.as_ptr()), a[r][q]));
                }
            }
        }
    }
}

/// Lines of a group of `L` whose products 16 bits hold.
const fn part<const C: u8, const L: usize>() -> usize {
    let most = match C {
        U5 => 4,
        U6 => 2,
        _ => L,
    };
    if L < most { L } else { most }
}

impl GroupSums for Neon {
    #[inline(always)]
    unsafe fn sums<const C: u8, const L: usize, const R: usize>(
        tile: *const u8,
        g: usize,
        x: [*const i8; R],
    ) -> Sums<R> {
        // SAFETY: as this function's caller promises.
        unsafe {
            let mut total = [[vdupq_n_s32(0); QUARTERS]; R];
            for (from, q) in (0..L).step_by(part::<C, L>()).flat_map(|from| (0..QUARTERS).map(move |q| (from, q))) {
                // Sums of low and of high nibbles (of both, where a nibble is a code): of two outputs in each register.
                let mut sums = [[[vdupq_n_s16(0); 2]; 2]; R];
                for p in from..from + part::<C, L>() {
                    let [low, high] = if C == U8 {
                        nibbles(quarter(tile.add((g * L + p) * LINE), q))
                    } else {
                        operands::<C, L>(tile, g, p, q)
                    };
                    let [low, high] = [low, high].map(|v| vreinterpretq_s8_u8(v));
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
                    let sum = if C == U8 { vaddq_s32(low, vshlq_n_s32::<4>(high)) } else { low };
                    total[r][q] = vaddq_s32(total[r][q], sum);
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

/// The codes k = 8 i to 8 i + 3 of group `g`, and the four after them, of the 4 outputs of a quarter.
///
/// # Safety
/// A tile at `tile`.
#[inline(always)]
pub unsafe fn operands<const C: u8, const L: usize>(tile: *const u8, g: usize, i: usize, q: usize) -> [uint8x16_t; 2] {
    // SAFETY: as this function's caller promises.
    unsafe {
        let line = |i: usize| quarter(tile.add(i * LINE), q);
        if C == U8 {
            return [line(g * L + 2 * i), line(g * L + 2 * i + 1)];
        }
        let [low, high] = nibbles(line(g * L + i));
        if C == U4 {
            return [low, high];
        }
        let per = TileOf::<C, BF16, L>::PER_UPPER;
        let upper = line(TileOf::<C, BF16, L>::CODES + (g * L + i) / per);
        let mask = vdupq_n_u8(if C == U5 { 0x10 } else { 0x30 });
        let join = |nibbles, four| vorrq_u8(nibbles, vandq_u8(upper_bits::<C>(upper, four), mask));
        [join(low, 2 * (i % per)), join(high, 2 * (i % per) + 1)]
    }
}

/// The upper bits of four `four` of a line of them, from bit 4 of each byte on; the other bits are of no account.
#[inline(always)]
unsafe fn upper_bits<const C: u8>(upper: uint8x16_t, four: usize) -> uint8x16_t {
    let left = 4 - (if C == U5 { four } else { 2 * four }) as i8;
    // SAFETY: every AArch64 has NEON. A negative number shifts to the right.
    unsafe { vshlq_u8(upper, vdupq_n_s8(left)) }
}

#[inline(always)]
unsafe fn nibbles(v: uint8x16_t) -> [uint8x16_t; 2] {
    // SAFETY: every AArch64 has NEON.
    unsafe { [vandq_u8(v, vdupq_n_u8(15)), vshrq_n_u8::<4>(v)] }
}

/// Scales and biases of a quarter of group `g`; of [`WHOLE`] scales the whole numbers alone. `factors` are those of whole
/// numbers: dmin, d.
///
/// # Safety
/// A tile at `tile`.
#[inline(always)]
unsafe fn scales<const C: u8, const S: u8, const L: usize>(
    tile: *const u8,
    g: usize,
    q: usize,
    factors: (float32x4_t, float32x4_t),
) -> (float32x4_t, float32x4_t) {
    let all = tile.wrapping_add(TileOf::<C, S, L>::SCALES_AT);
    let at = all.wrapping_add(g * TileOf::<C, S, L>::SCALES);
    // SAFETY: as this function's caller promises; a group has the lines that are read here.
    unsafe {
        match S {
            F32 => (vreinterpretq_f32_u8(quarter(at, q)), vreinterpretq_f32_u8(quarter(at.add(LINE), q))),
            MIDDLE => {
                if q == 0 {
                    prefetch_line(at.wrapping_add(AHEAD));
                }
                let s = vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(at.add(8 * q))));
                (s, vmulq_n_f32(s, -TileOf::<C, S, L>::MIDDLE as f32))
            }
            WHOLE_PAIR => {
                let words = vreinterpretq_u32_u8(quarter(all, q));
                let whole = |at: usize| {
                    let shifted = vshlq_u32(words, vdupq_n_s32(-8 * at as i32));
                    vcvtq_f32_u32(vandq_u32(shifted, vdupq_n_u32(255)))
                };
                let min = vnegq_f32(vmulq_f32(factors.0, whole(2 * g + 1)));
                (vmulq_f32(factors.1, whole(2 * g)), min)
            }
            WHOLE => {
                let words = vreinterpretq_s32_u8(quarter(all, q));
                let up = vshlq_s32(words, vdupq_n_s32(24 - 8 * g as i32));
                (vcvtq_f32_s32(vshrq_n_s32::<24>(up)), vdupq_n_f32(0.0))
            }
            _ => pairs::<S>(vreinterpretq_u32_u8(quarter(at, q))),
        }
    }
}

/// The two floats of each word: high half, low half.
#[inline(always)]
unsafe fn pairs<const S: u8>(v: uint32x4_t) -> (float32x4_t, float32x4_t) {
    // SAFETY: every AArch64 has NEON.
    unsafe {
        if S == BF16 {
            let s = vandq_u32(v, vdupq_n_u32(0xffff_0000));
            return (vreinterpretq_f32_u32(s), vreinterpretq_f32_u32(vshlq_n_u32::<16>(v)));
        }
        let widen = |h| vcvt_f32_f16(vreinterpret_f16_u16(h));
        (widen(vshrn_n_u32::<16>(v)), widen(vmovn_u32(v)))
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
