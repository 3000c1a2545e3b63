//! Products of integer codes with FEAT_I8MM: `usmmla` multiplies 2 outputs of 8 unsigned bytes by 2 rows of 8 signed ones
//! and adds the products to the 2 x 2 sums of 32 bits. One row alone goes by `usdot`, which multiplies 16 unsigned by 16
//! signed bytes and adds the products to 4 sums, four to each.
//!
//! bytes, layout: as in `neon.rs`, which has the skeleton: blocks of 1, 2 or 4 rows. The 4 outputs of a quarter become
//!   two operands of 2 outputs x 8 codes, by putting its operands for `usdot` together word by word.
//! instructions for a line of 4-bit codes: one row 22, R rows 20 + 4 R and their loads; for a group 8 more for each two
//!   rows, which put the sums of a row side by side.
//! order: `mod.rs`. The scalar twin is `scalar.rs`. Speed was not measured.
#![allow(unsafe_code)]

use super::kinds::*;
use super::neon::{GroupSums, QUARTERS, Sums, four, neon_products, operands};
use super::{CodeProducts, Product, code_products, codes, for_scheme, neon};
use crate::lanes::Lanes;
use crate::tiles::{Codes, Scales};
use std::arch::aarch64::*;
use std::arch::asm;

pub struct I8mm;

neon_products!(I8mm, "neon,dotprod,i8mm");

impl GroupSums for I8mm {
    #[inline(always)]
    unsafe fn sums<const C: u8, const L: usize, const R: usize>(
        tile: *const u8,
        g: usize,
        x: [*const i8; R],
    ) -> Sums<R> {
        let eights = if C == U8 { L / 2 } else { L };
        // SAFETY: as this function's caller promises; a block of more than one row is of 2 or 4.
        unsafe {
            let mut total = [[vdupq_n_s32(0); QUARTERS]; R];
            if R == 1 {
                for i in 0..eights {
                    let fours = [four(x[0], 2 * i), four(x[0], 2 * i + 1)];
                    for q in 0..QUARTERS {
                        for (w, x) in operands::<C, L>(tile, g, i, q).into_iter().zip(fours) {
                            total[0][q] = usdot(total[0][q], w, x);
                        }
                    }
                }
                return total;
            }
            // Of two rows (of which the first is 2 j) and a quarter: of its outputs 0 and 1, and of 2 and 3. The second
            // half of the outer array is not used.
            let mut sums = [[[vdupq_n_s32(0); 2]; QUARTERS]; R];
            for i in 0..eights {
                let eight = |r: usize| vld1_s8(x[r].add(8 * i));
                for q in 0..QUARTERS {
                    let [low, high] = operands::<C, L>(tile, g, i, q).map(|v| vreinterpretq_u32_u8(v));
                    let (first, second) = (vzip1q_u32(low, high), vzip2q_u32(low, high));
                    for j in 0..R / 2 {
                        let two = vcombine_s8(eight(2 * j), eight(2 * j + 1));
                        sums[j][q][0] = usmmla(sums[j][q][0], vreinterpretq_u8_u32(first), two);
                        sums[j][q][1] = usmmla(sums[j][q][1], vreinterpretq_u8_u32(second), two);
                    }
                }
            }
            for j in 0..R / 2 {
                for q in 0..QUARTERS {
                    let [first, second] = sums[j][q];
                    total[2 * j][q] = vuzp1q_s32(first, second);
                    total[2 * j + 1][q] = vuzp2q_s32(first, second);
                }
            }
            total
        }
    }
}

/// `sum` and, in each lane, the products of four bytes.
///
/// # Safety
/// The machine has FEAT_I8MM.
// The intrinsics are too new for the compilers that this is built with.
#[inline(always)]
unsafe fn usdot(mut sum: int32x4_t, w: uint8x16_t, x: int8x16_t) -> int32x4_t {
    // SAFETY: as this function's caller promises; only registers are touched.
    unsafe {
        asm!("usdot {0:v}.4s, {1:v}.16b, {2:v}.16b", inout(vreg) sum, in(vreg) w, in(vreg) x,
            options(pure, nomem, nostack, preserves_flags));
    }
    sum
}

/// `sum` and the products of the two halves of w with the two halves of x: lane 2 i + j of halves i and j.
///
/// # Safety
/// The machine has FEAT_I8MM.
#[inline(always)]
unsafe fn usmmla(mut sum: int32x4_t, w: uint8x16_t, x: int8x16_t) -> int32x4_t {
    // SAFETY: as this function's caller promises; only registers are touched.
    unsafe {
        asm!("usmmla {0:v}.4s, {1:v}.16b, {2:v}.16b", inout(vreg) sum, in(vreg) w, in(vreg) x,
            options(pure, nomem, nostack, preserves_flags));
    }
    sum
}
