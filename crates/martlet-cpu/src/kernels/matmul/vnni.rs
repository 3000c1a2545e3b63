//! Products of integer codes with AVX-512 VNNI: `vpdpbusd` multiplies 64 unsigned by 64 signed bytes and adds the
//! products to 16 sums, four to a lane.
//!
//! bytes: each line of a tile once per block of 1, 2, 4 or 8 rows; from memory once per call, asked for [`AHEAD`] bytes
//!   before it is needed. One row's activations of a tile are 64 bytes.
//! layout: a line of 8-bit codes, or the low or high nibbles of a line of 4-bit codes, is one operand whose 32-bit lane
//!   is the output; the other is four codes of the row, the same for all lanes.
//! instructions for a line of 4-bit codes: one row 6 (load, prefetch, 2 masks, 2 products that read their broadcast
//!   operand from memory), R rows 5 + 2 R; for the 64 K of a group 6 more for each row (convert, times d, fma s, fma b,
//!   additions). 9 lines of one row: about 60.
//! order: `mod.rs`. A sum of 64 products stays below 2^21, so the integer and its f32 are exact. The scalar twin is
//!   `scalar.rs`.
#![allow(unsafe_code)]

use super::kinds::{BF16, F16, F32, U4, U8};
use super::{CodeProducts, Input, Product, SLICE, code_products, codes, for_scheme};
use crate::lanes::{LANES, Lanes};
use crate::tiles::{Codes, LINE, Scales, TILE_K};
use std::arch::x86_64::*;

/// Bytes from the line in work to the line that is fetched: of 0 to 16 KiB all from 2 on were equal, and best. Strips
/// follow each other in memory, so the end of one asks for the next.
const AHEAD: usize = 4096;

pub struct Vnni;

code_products!(Vnni, "avx512f,avx512bw,avx512vnni", [8, 4, 2, 1]);

/// The `R` rows from `first` on at once: a = fma(s, f32(I) * d, a) for each group, then a = fma(b, ds, a).
// Never inlined: the registers of one block do not go round in two.
#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
fn block<const C: u8, const S: u8, const L: usize, const R: usize>(p: &Product<'_>, first: usize, out: &mut [Lanes]) {
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
        let mut a = [_mm512_setzero_ps(); R];
        for t in slice..tiles.min(slice + SLICE / TILE_K) {
            // SAFETY: tile t of `tiles` in the strip, and of each row; group `act` of `groups`: the slices above hold
            // them all. `tile` moves on by one tile for each t.
            unsafe {
                for g in 0..per_tile {
                    let mut four = x.map(|x| x.add(t).cast::<i32>());
                    four.iter_mut().for_each(|x| *x = x.add(TILE_K / 4 / per_tile * g));
                    let sums = sum_group::<C, L, R>(tile.add(g * L * LINE), four);
                    let (s, b) = scales::<S>(tile.add((code_lines + g * scale_lines) * LINE));
                    let act = t * per_tile + g;
                    for r in 0..R {
                        let v = _mm512_mul_ps(_mm512_cvtepi32_ps(sums[r]), _mm512_set1_ps(*d_at[r].add(act)));
                        a[r] = _mm512_fmadd_ps(s, v, a[r]);
                        a[r] = _mm512_fmadd_ps(b, _mm512_set1_ps(*ds_at[r].add(act)), a[r]);
                    }
                }
                tile = tile.add(tile_lines * LINE);
            }
        }
        for r in 0..R {
            let y = out[r].as_mut_ptr();
            // SAFETY: 16 floats of an array of 16 floats.
            unsafe { _mm512_storeu_ps(y, _mm512_add_ps(_mm512_loadu_ps(y), a[r])) };
        }
    }
}

/// The exact sums of a group of `L` lines. Several chains hide the latency of the products.
///
/// # Safety
/// `L` lines at `line`; as many codes of each row at `x`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
unsafe fn sum_group<const C: u8, const L: usize, const R: usize>(line: *const u8, x: [*const i32; R]) -> [__m512i; R] {
    let mut even = [_mm512_setzero_si512(); R];
    let mut odd = even;
    let (mut even_2, mut odd_2) = (even, even);
    // One row: high nibbles stay where they are, and their sum is divided by 16 at the end. Several: shifted once.
    let shift_sums = C == U4 && R == 1;
    for i in 0..if C == U8 { L / 2 } else { L } {
        // SAFETY: as this function's caller promises.
        let four = |r: usize, i: usize| unsafe { _mm512_set1_epi32(x[r].add(i).read_unaligned()) };
        // SAFETY: as above.
        let (low, high) = unsafe { operands::<C>(line, i, shift_sums) };
        // A single row changes over between two pairs of chains.
        let second = R == 1 && i % 2 == 1;
        let (to_even, to_odd) = if second { (&mut even_2, &mut odd_2) } else { (&mut even, &mut odd) };
        for r in 0..R {
            to_even[r] = _mm512_dpbusd_epi32(to_even[r], low, four(r, 2 * i));
            to_odd[r] = _mm512_dpbusd_epi32(to_odd[r], high, four(r, 2 * i + 1));
        }
    }
    for r in 0..R {
        if R == 1 {
            (even[r], odd[r]) = (_mm512_add_epi32(even[r], even_2[r]), _mm512_add_epi32(odd[r], odd_2[r]));
        }
        if shift_sums {
            odd[r] = _mm512_srai_epi32::<4>(odd[r]);
        }
        even[r] = _mm512_add_epi32(even[r], odd[r]);
    }
    even
}

/// The codes of the inputs 8 i to 8 i + 3 and 8 i + 4 to 8 i + 7 of a group; with `times_16` the second times 16.
///
/// # Safety
/// As for `sum_group`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
pub unsafe fn operands<const C: u8>(line: *const u8, i: usize, times_16: bool) -> (__m512i, __m512i) {
    if C == U8 {
        // SAFETY: as this function's caller promises.
        return unsafe { (line_at(line.add(2 * i * LINE)), line_at(line.add((2 * i + 1) * LINE))) };
    }
    // SAFETY: as this function's caller promises.
    let v = unsafe { line_at(line.add(i * LINE)) };
    let mask = _mm512_set1_epi8(15);
    let high = match times_16 {
        true => _mm512_andnot_si512(mask, v),
        false => _mm512_and_si512(_mm512_srli_epi16::<4>(v), mask),
    };
    (_mm512_and_si512(v, mask), high)
}

/// Scales and biases of a group.
///
/// # Safety
/// Its lines of scales at `line`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
pub unsafe fn scales<const S: u8>(line: *const u8) -> (__m512, __m512) {
    // SAFETY: as this function's caller promises.
    let v = unsafe { line_at(line) };
    match S {
        BF16 => {
            let s = _mm512_and_si512(v, _mm512_set1_epi32(-65536));
            (_mm512_castsi512_ps(s), _mm512_castsi512_ps(_mm512_slli_epi32::<16>(v)))
        }
        F16 => {
            let s = _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(v));
            (_mm512_cvtph_ps(s), _mm512_cvtph_ps(_mm512_cvtepi32_epi16(v)))
        }
        // SAFETY: two lines, as this function's caller promises.
        _ => (_mm512_castsi512_ps(v), _mm512_castsi512_ps(unsafe { line_at(line.add(LINE)) })),
    }
}

/// Reads a line, and asks for the one [`AHEAD`] of it: an address without memory is no fault.
///
/// # Safety
/// 64 bytes at `line`, which is a multiple of 64.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
unsafe fn line_at(line: *const u8) -> __m512i {
    // SAFETY: as the caller promises; a prefetch reads nothing that the program could see.
    unsafe {
        _mm_prefetch::<_MM_HINT_T0>(line.wrapping_add(AHEAD).cast());
        _mm512_load_si512(line.cast())
    }
}
