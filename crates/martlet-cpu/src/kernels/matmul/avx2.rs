//! Products of integer codes with AVX2: `vpmaddubsw` multiplies 32 unsigned by 32 signed bytes and adds the products to
//! 16 sums of 16 bits, two products to each.
//!
//! bytes: each line of a tile once per block of 1, 2 or 4 rows; from memory once per call, asked for [`AHEAD`] bytes
//!   before it is needed. One row's activations of a tile are 64 bytes.
//! layout: half a line (8 outputs) is an operand, of which a 32-bit lane is an output; the other is four codes of the
//!   row, the same for all lanes.
//! saturation: none. A factor is at most 15, so a pair is at most 2 * 15 * 127 = 3810, and 8 pairs, for 32 K, at most
//!   30480, which 16 bits hold; then `vpmaddwd` widens to 32. Codes of 5 and 6 bits, at most 63, fill 16 bits after 4
//!   pairs and 2. Codes of 8 bits are taken as two nibbles whose sums are put together in the end.
//! instructions for a line of 4-bit codes: one row 21, R rows 9 + 12 R less the loads that are part of others.
//! order: `mod.rs`. The scalar twin is `scalar.rs`.
#![allow(unsafe_code)]

use super::kinds::*;
use super::{CodeProducts, Input, Product, SLICE, TileOf, code_products, codes, for_scheme};
use crate::lanes::{LANES, Lanes};
use crate::tiles::{Codes, LINE, Scales, TILE_K};
use std::arch::x86_64::*;

/// Bytes from the line in work to the line that is fetched.
const AHEAD: usize = 2048;

pub struct Avx2;

code_products!(Avx2, "avx2,fma,f16c", [4, 2, 1]);

/// The `R` rows from `first` on at once: a = fma(s, f32(I) * d, a) for each group, then a = fma(b, ds, a); or for scales
/// that are whole numbers without minima, the order of q6_k.
// Never inlined: the registers of one block do not go round in two.
#[inline(never)]
#[target_feature(enable = "avx2,fma,f16c")]
fn block<const C: u8, const S: u8, const L: usize, const R: usize>(p: &Product<'_>, first: usize, out: &mut [Lanes]) {
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
    let mut factors = [(_mm256_setzero_ps(), _mm256_setzero_ps()); 2];
    for slice in (0..tiles).step_by(SLICE / TILE_K) {
        let mut a = [[_mm256_setzero_ps(); 2]; R];
        for t in slice..tiles.min(slice + SLICE / TILE_K) {
            // SAFETY: tile t of `tiles` in the strip, and of each row; group `act` of `groups`: the slices above hold
            // them all. `tile` moves on by one tile for each t, and by one line of factors for every second.
            unsafe {
                if TileOf::<C, S, L>::WHOLE && t % 2 == 0 {
                    factors = [0, 1].map(|h| pairs::<F16>(half_line(tile, h)));
                    tile = tile.add(LINE);
                }
                let mut total = [[_mm256_setzero_ps(); 2]; R];
                for g in 0..TileOf::<C, S, L>::GROUPS {
                    let four = x.map(|x| x.add(t).cast::<i32>().add(g * TILE_K / 4 / TileOf::<C, S, L>::GROUPS));
                    let sums = sum_group::<C, L, R>(tile, g, four);
                    let act = t * TileOf::<C, S, L>::ACT_GROUPS + g;
                    for h in 0..2 {
                        let (s, b) = scales::<C, S, L>(tile, g, h, factors[h]);
                        for r in 0..R {
                            if S == WHOLE {
                                let start = _mm256_set1_epi32((*starts_at[r].add(t))[g]);
                                let sum = _mm256_cvtepi32_ps(_mm256_add_epi32(sums[r][h], start));
                                total[r][h] = _mm256_fmadd_ps(s, sum, total[r][h]);
                                continue;
                            }
                            let v = _mm256_mul_ps(_mm256_cvtepi32_ps(sums[r][h]), _mm256_set1_ps(*d_at[r].add(act)));
                            a[r][h] = _mm256_fmadd_ps(s, v, a[r][h]);
                            a[r][h] = _mm256_fmadd_ps(b, _mm256_set1_ps(*ds_at[r].add(act)), a[r][h]);
                        }
                    }
                }
                if S == WHOLE {
                    for r in 0..R {
                        for h in 0..2 {
                            let v = _mm256_mul_ps(total[r][h], _mm256_set1_ps(*d_at[r].add(t)));
                            a[r][h] = _mm256_fmadd_ps(factors[h].1, v, a[r][h]);
                        }
                    }
                }
                tile = tile.add(TileOf::<C, S, L>::BYTES);
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

/// Lines of a group of `L` whose products 16 bits hold.
const fn part<const C: u8, const L: usize>() -> usize {
    let most = match C {
        U4 => 4,
        U5 => 2,
        U6 => 1,
        _ => 8,
    };
    if L < most { L } else { most }
}

/// The exact sums of group `g`, of `L` lines: [row][half].
///
/// # Safety
/// A tile at `tile`; the group's codes of each row at `x`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn sum_group<const C: u8, const L: usize, const R: usize>(
    tile: *const u8,
    g: usize,
    x: [*const i32; R],
) -> [[__m256i; 2]; R] {
    let mut total = [[_mm256_setzero_si256(); 2]; R];
    let ones = _mm256_set1_epi16(1);
    for from in (0..L).step_by(part::<C, L>()) {
        let mut low = [[_mm256_setzero_si256(); 2]; R];
        let mut high = low;
        for p in from..from + part::<C, L>() {
            for h in 0..2 {
                // SAFETY: as this function's caller promises.
                let (l, u) = unsafe { operands::<C, L>(tile, g, p, h) };
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

/// The nibbles of half of line `i` of group `g`, low ones and high ones, with their upper bits where they have such.
///
/// # Safety
/// A tile at `tile`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn operands<const C: u8, const L: usize>(tile: *const u8, g: usize, i: usize, h: usize) -> (__m256i, __m256i) {
    // SAFETY: as this function's caller promises.
    let line = |i: usize| unsafe { half_line(tile.add(i * LINE), h) };
    let (v, mask) = (line(g * L + i), _mm256_set1_epi8(15));
    let (low, high) = (_mm256_and_si256(v, mask), _mm256_and_si256(_mm256_srli_epi16::<4>(v), mask));
    if C == U4 || C == U8 {
        return (low, high);
    }
    let per = TileOf::<C, BF16, L>::PER_UPPER;
    let upper = line(TileOf::<C, BF16, L>::CODES + (g * L + i) / per);
    let mask = _mm256_set1_epi8(if C == U5 { 0x10 } else { 0x30 });
    let join = |nibbles, four| _mm256_or_si256(nibbles, _mm256_and_si256(upper_bits::<C>(upper, four), mask));
    (join(low, 2 * (i % per)), join(high, 2 * (i % per) + 1))
}

/// The upper bits of four `four` of a line of them, from bit 4 of each byte on; the other bits are of no account.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn upper_bits<const C: u8>(upper: __m256i, four: usize) -> __m256i {
    match if C == U5 { four } else { 2 * four } {
        0 => _mm256_slli_epi16::<4>(upper),
        1 => _mm256_slli_epi16::<3>(upper),
        2 => _mm256_slli_epi16::<2>(upper),
        3 => _mm256_slli_epi16::<1>(upper),
        4 => upper,
        5 => _mm256_srli_epi16::<1>(upper),
        6 => _mm256_srli_epi16::<2>(upper),
        _ => _mm256_srli_epi16::<3>(upper),
    }
}

/// Scales and biases of half of group `g`; of [`WHOLE`] scales the whole numbers alone. `factors` are those of whole
/// numbers: dmin, d.
///
/// # Safety
/// A tile at `tile`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn scales<const C: u8, const S: u8, const L: usize>(
    tile: *const u8,
    g: usize,
    h: usize,
    factors: (__m256, __m256),
) -> (__m256, __m256) {
    let all = tile.wrapping_add(TileOf::<C, S, L>::SCALES_AT);
    let at = all.wrapping_add(g * TileOf::<C, S, L>::SCALES);
    // SAFETY: as this function's caller promises; a group has the lines that are read here.
    unsafe {
        match S {
            F32 => (_mm256_castsi256_ps(half_line(at, h)), _mm256_castsi256_ps(half_line(at.add(LINE), h))),
            MIDDLE => {
                if h == 0 {
                    _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(AHEAD).cast());
                }
                let s = _mm256_cvtph_ps(_mm_load_si128(at.add(16 * h).cast()));
                (s, _mm256_mul_ps(s, _mm256_set1_ps(-TileOf::<C, S, L>::MIDDLE as f32)))
            }
            WHOLE_PAIR => {
                let words = half_line(all, h);
                let whole = |at: usize| {
                    let shifted = _mm256_srlv_epi32(words, _mm256_set1_epi32(8 * at as i32));
                    _mm256_cvtepi32_ps(_mm256_and_si256(shifted, _mm256_set1_epi32(255)))
                };
                let min = _mm256_mul_ps(factors.0, whole(2 * g + 1));
                (_mm256_mul_ps(factors.1, whole(2 * g)), _mm256_mul_ps(min, _mm256_set1_ps(-1.0)))
            }
            WHOLE => {
                let up = _mm256_sllv_epi32(half_line(all, h), _mm256_set1_epi32(24 - 8 * g as i32));
                (_mm256_cvtepi32_ps(_mm256_srai_epi32::<24>(up)), _mm256_setzero_ps())
            }
            _ => pairs::<S>(half_line(at, h)),
        }
    }
}

/// The two floats of each word: high half, low half.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn pairs<const S: u8>(v: __m256i) -> (__m256, __m256) {
    if S == BF16 {
        let s = _mm256_and_si256(v, _mm256_set1_epi32(-65536));
        return (_mm256_castsi256_ps(s), _mm256_castsi256_ps(_mm256_slli_epi32::<16>(v)));
    }
    // The low halves of the words, and the high ones, side by side.
    let packed = |v: __m256i| {
        let v = _mm256_packus_epi32(v, v);
        _mm256_castsi256_si128(_mm256_permute4x64_epi64::<0b1000>(v))
    };
    let low = _mm256_and_si256(v, _mm256_set1_epi32(0xffff));
    (_mm256_cvtph_ps(packed(_mm256_srli_epi32::<16>(v))), _mm256_cvtph_ps(packed(low)))
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
