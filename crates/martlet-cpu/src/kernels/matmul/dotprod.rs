//! Products of integer codes with FEAT_DotProd: `sdot` multiplies 16 signed by 16 signed bytes and adds the products to 4
//! sums of 32 bits, four to each.
//!
//! bytes, layout: as in `neon.rs`, which has the skeleton: blocks of 1, 2 or 4 rows.
//! signs: codes of 8 bits are unsigned and go in less 128; 128 times the sum of the row's codes is where their sums begin.
//! instructions for a line of 4-bit codes: 12 to read and unpack it, and 10 for each row (2 of them loads).
//! order: `mod.rs`. The scalar twin is `scalar.rs`. Speed was not measured.
#![allow(unsafe_code)]

use super::kinds::*;
use super::neon::{GroupSums, QUARTERS, Sums, four, neon_products, operands};
use super::{CodeProducts, Product, code_products, codes, for_scheme, neon};
use crate::lanes::Lanes;
use crate::tiles::{Codes, Scales};
use std::arch::aarch64::*;
use std::arch::asm;

pub struct Dotprod;

neon_products!(Dotprod, "neon,dotprod");

impl GroupSums for Dotprod {
    #[inline(always)]
    unsafe fn sums<const C: u8, const L: usize, const R: usize>(
        tile: *const u8,
        g: usize,
        x: [*const i8; R],
    ) -> Sums<R> {
        // SAFETY: as this function's caller promises.
        unsafe {
            let eights = if C == U8 { L / 2 } else { L };
            let mut sums = x.map(|x| [vdupq_n_s32(if C == U8 { 128 * total(x, 8 * eights) } else { 0 }); QUARTERS]);
            for i in 0..eights {
                let fours = x.map(|x| [four(x, 2 * i), four(x, 2 * i + 1)]);
                for q in 0..QUARTERS {
                    for (n, v) in operands::<C, L>(tile, g, i, q).into_iter().enumerate() {
                        let w = if C == U8 { veorq_u8(v, vdupq_n_u8(128)) } else { v };
                        for r in 0..R {
                            sums[r][q] = sdot(sums[r][q], vreinterpretq_s8_u8(w), fours[r][n]);
                        }
                    }
                }
            }
            sums
        }
    }
}

/// The sum of `len` codes, a multiple of 16.
///
/// # Safety
/// As many codes at `x`.
#[inline(always)]
unsafe fn total(x: *const i8, len: usize) -> i32 {
    // SAFETY: as this function's caller promises.
    (0..len / 16).map(|i| i32::from(unsafe { vaddlvq_s8(vld1q_s8(x.add(16 * i))) })).sum()
}

/// `sum` and, in each lane, the products of four bytes.
///
/// # Safety
/// The machine has FEAT_DotProd.
// The intrinsic is too new for the compilers that this is built with.
#[inline(always)]
unsafe fn sdot(mut sum: int32x4_t, w: int8x16_t, x: int8x16_t) -> int32x4_t {
    // SAFETY: as this function's caller promises; only registers are touched.
    unsafe {
        asm!("sdot {0:v}.4s, {1:v}.16b, {2:v}.16b", inout(vreg) sum, in(vreg) w, in(vreg) x,
            options(pure, nomem, nostack, preserves_flags));
    }
    sum
}
