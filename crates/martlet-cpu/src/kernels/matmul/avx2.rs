//! Products of integer codes with AVX2: `vpmaddubsw` multiplies 32 unsigned by 32 signed bytes and adds the products to
//! 16 sums of 16 bits, two products to each.
//!
//! bytes: each line of a tile once per block of 1, 2 or 4 rows; from memory once per call, asked for [`AHEAD`] bytes
//!   before it is needed. One row's activations of a tile are 64 bytes.
//! layout: half a line (8 outputs) is an operand, of which a 32-bit lane is an output; the other is four codes of the
//!   row, the same for all lanes.
//! saturation: none. A factor is at most 15, so a pair is at most 2 * 15 * 127 = 3810, and 8 pairs, for 32 K, at most
//!   30480, which 16 bits hold; then `vpmaddwd` widens to 32. Codes of 8 bits are taken as two nibbles whose sums are
//!   put together in the end.
//! instructions for a line of 4-bit codes: one row 21, R rows 9 + 12 R less the loads that are part of others.
//! order: `mod.rs`. The scalar twin is `scalar.rs`.
#![allow(unsafe_code)]

use super::kinds::{BF16, F16, F32, U4, U8};
use super::{CodeProducts, Input, Product, SLICE, code_products, codes, for_scheme};
use crate::lanes::{LANES, Lanes};
use crate::tiles::{Codes, LINE, Scales, TILE_K};
use std::arch::x86_64::*;

/// Bytes from the line in work to the line that is fetched.
const AHEAD: usize = 2048;

pub struct Avx2;

code_products!(Avx2, "avx2,fma,f16c", [4, 2, 1]);

/// The `R` rows from `first` on at once: a = fma(s, f32(I) * d, a) for each group, then a = fma(b, ds, a).
// Never inlined: the registers of one block do not go round in two.
#[inline(never)]
#[target_feature(enable = "avx2,fma,f16c")]
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
        let mut a = [[_mm256_setzero_ps(); 2]; R];
        for t in slice..tiles.min(slice + SLICE / TILE_K) {
            // SAFETY: tile t of `tiles` in the strip, and of each row; group `act` of `groups`: the slices above hold
            // them all. `tile` moves on by one tile for each t.
            unsafe {
                for g in 0..per_tile {
                    let mut four = x.map(|x| x.add(t).cast::<i32>());
                    four.iter_mut().for_each(|x| *x = x.add(TILE_K / 4 / per_tile * g));
                    let sums = sum_group::<C, L, R>(tile.add(g * L * LINE), four);
                    let act = t * per_tile + g;
                    for h in 0..2 {
                        let (s, b) = scales::<S>(tile.add((code_lines + g * scale_lines) * LINE), h);
                        for r in 0..R {
                            let v = _mm256_mul_ps(_mm256_cvtepi32_ps(sums[r][h]), _mm256_set1_ps(*d_at[r].add(act)));
                            a[r][h] = _mm256_fmadd_ps(s, v, a[r][h]);
                            a[r][h] = _mm256_fmadd_ps(b, _mm256_set1_ps(*ds_at[r].add(act)), a[r][h]);
                        }
                    }
                }
                tile = tile.add(tile_lines * LINE);
            }
        }
        for r in 0..R {
            for h in 0..2 {
                let y = out[r][8 * h..8 * h + 8].as_mut_ptr();
                // SAFETY: 8 floats of a slice of 8 floats.
                unsafe { _mm256_storeu_ps(y, _mm256_add_ps(_mm256_loadu_ps(y), a[r][h])) };
            }
        }
    }
}

/// The exact sums of a group of `L` lines: [row][half].
///
/// # Safety
/// `L` lines at `line`; as many codes of each row at `x`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn sum_group<const C: u8, const L: usize, const R: usize>(
    line: *const u8,
    x: [*const i32; R],
) -> [[__m256i; 2]; R] {
    let mut total = [[_mm256_setzero_si256(); 2]; R];
    let (ones, part) = (_mm256_set1_epi16(1), if C == U8 { 8.min(L) } else { 4 });
    // 32 K at a time, or the 16 of a smaller group.
    for from in (0..L).step_by(part) {
        let mut low = [[_mm256_setzero_si256(); 2]; R];
        let mut high = low;
        for p in from..from + part {
            for h in 0..2 {
                // SAFETY: as this function's caller promises.
                let v = unsafe { half_line(line.add(p * LINE), h) };
                let mask = _mm256_set1_epi8(15);
                let (l, u) = (_mm256_and_si256(v, mask), _mm256_and_si256(_mm256_srli_epi16::<4>(v), mask));
                for r in 0..R {
                    // SAFETY: as above.
                    let four = |i: usize| unsafe { _mm256_set1_epi32(x[r].add(i).read_unaligned()) };
                    if C == U8 {
                        low[r][h] = _mm256_add_epi16(low[r][h], _mm256_maddubs_epi16(l, four(p)));
                        high[r][h] = _mm256_add_epi16(high[r][h], _mm256_maddubs_epi16(u, four(p)));
                    } else {
                        let l = _mm256_maddubs_epi16(l, four(2 * p));
                        let both = _mm256_add_epi16(l, _mm256_maddubs_epi16(u, four(2 * p + 1)));
                        low[r][h] = _mm256_add_epi16(low[r][h], both);
                    }
                }
            }
        }
        for r in 0..R {
            for h in 0..2 {
                let mut sum = _mm256_madd_epi16(low[r][h], ones);
                if C == U8 {
                    sum = _mm256_add_epi32(sum, _mm256_slli_epi32::<4>(_mm256_madd_epi16(high[r][h], ones)));
                }
                total[r][h] = _mm256_add_epi32(total[r][h], sum);
            }
        }
    }
    total
}

/// Scales and biases of half a group.
///
/// # Safety
/// Its lines of scales at `line`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn scales<const S: u8>(line: *const u8, h: usize) -> (__m256, __m256) {
    // SAFETY: as this function's caller promises.
    let v = unsafe { half_line(line, h) };
    match S {
        BF16 => {
            let s = _mm256_and_si256(v, _mm256_set1_epi32(-65536));
            (_mm256_castsi256_ps(s), _mm256_castsi256_ps(_mm256_slli_epi32::<16>(v)))
        }
        F16 => {
            // The low halves of the words, and the high ones, side by side.
            let packed = |v: __m256i| {
                let v = _mm256_packus_epi32(v, v);
                _mm256_castsi256_si128(_mm256_permute4x64_epi64::<0b1000>(v))
            };
            let low = _mm256_and_si256(v, _mm256_set1_epi32(0xffff));
            (_mm256_cvtph_ps(packed(_mm256_srli_epi32::<16>(v))), _mm256_cvtph_ps(packed(low)))
        }
        // SAFETY: two lines, as this function's caller promises.
        _ => (_mm256_castsi256_ps(v), _mm256_castsi256_ps(unsafe { half_line(line.add(LINE), h) })),
    }
}

/// Reads half a line, and with the first half asks for the line [`AHEAD`] of it: an address without memory is no fault.
///
/// # Safety
/// 64 bytes at `line`, which is a multiple of 64.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn half_line(line: *const u8, h: usize) -> __m256i {
    // SAFETY: as the caller promises; a prefetch reads nothing that the program could see.
    unsafe {
        if h == 0 {
            _mm_prefetch::<_MM_HINT_T0>(line.wrapping_add(AHEAD).cast());
        }
        _mm256_load_si256(line.add(32 * h).cast())
    }
}
