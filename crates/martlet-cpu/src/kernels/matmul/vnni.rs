//! Products of integer codes with AVX-512 VNNI: `vpdpbusd` multiplies 64 unsigned by 64 signed bytes and adds the
//! products to 16 sums, four to a lane.
//!
//! bytes: each line of a tile once per block of 1, 2, 4 or 8 rows; from memory once per call, asked for about [`AHEAD`]
//!   bytes before it is needed. One row's activations of a tile are 64 bytes. 1, 2, 4 and 8 rows read two strips at a
//!   time, a tile of each in turn: of 35 GB/s that a Xeon (Sapphire Rapids) reads, one row then gets 29 for 25.
//! layout: a line of 8-bit codes, or the low or high nibbles of a line of 4-bit codes, is one operand whose 32-bit lane
//!   is the output; the other is four codes of the row, the same for all lanes.
//! instructions for a line of 4-bit codes: one row 6 (load, prefetch, 2 masks, 2 products that read their broadcast
//!   operand from memory), R rows 5 + 2 R; for the 64 K of a group 6 more for each row (convert, times d, fma s, fma b,
//!   additions). 9 lines of one row: about 60.
//! order: `mod.rs`. A sum of 64 products stays below 2^21, so the integer and its f32 are exact. The scalar twin is
//!   `scalar.rs`.
#![allow(unsafe_code)]

use super::kinds::*;
use super::{CodeProducts, Input, Product, SLICE, TileOf, code_products, codes, for_scheme};
use crate::acts::{Starts, Tile};
use crate::lanes::Lanes;
use crate::tiles::{Codes, LINE, Scales, TILE_K};
use std::arch::x86_64::*;

/// Bytes from the tile in work to the one that is asked for, about. On a Zen 4 of 0 to 16 KiB all from 2 on were equal, and
/// best; on a Xeon 1 and 2 were.
pub const AHEAD: usize = 2048;

pub struct Vnni;

code_products!(Vnni, "avx512f,avx512bw,avx512vnni", [8, 4, 2, 1], two: [8, 4, 2, 1]);

// Never inlined, both: the registers of one block do not go round in two.
#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
fn block<const C: u8, const S: u8, const L: usize, const R: usize>(p: &Product<'_>, first: usize, out: &mut [Lanes]) {
    block_of::<C, S, L, R, 1>(p, first, out);
}

#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
fn block_of_two<const C: u8, const S: u8, const L: usize, const R: usize>(p: &Product<'_>, out: &mut [Lanes]) {
    block_of::<C, S, L, R, 2>(p, 0, out);
}

/// The `R` rows from `first` on of `N` strips at once: a = fma(s, f32(I) * d, a) for each group, then a = fma(b, ds, a);
/// or for scales that are whole numbers without minima, the order of q6_k.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
fn block_of<const C: u8, const S: u8, const L: usize, const R: usize, const N: usize>(
    p: &Product<'_>,
    first: usize,
    out: &mut [Lanes],
) {
    let Input::Codes { codes, starts, d, ds, tiles, groups, .. } = p.x else { return };
    let mut x = [Row { codes: codes.as_ptr(), starts: starts.as_ptr(), d: d.as_ptr(), ds: ds.as_ptr() }; R];
    for (x, row) in x.iter_mut().zip(&p.rows[first..]) {
        let row = *row as usize;
        x.codes = codes[row * tiles..(row + 1) * tiles].as_ptr();
        if S == WHOLE {
            x.starts = starts[row * tiles..(row + 1) * tiles].as_ptr();
        }
        x.d = d[row * groups..(row + 1) * groups].as_ptr();
        x.ds = ds[row * groups..(row + 1) * groups].as_ptr();
    }
    let mut tile = [std::ptr::null(); N];
    for (n, tile) in tile.iter_mut().enumerate() {
        *tile = TileOf::<C, S, L>::strip(p, n, tiles, groups);
    }
    // Bytes from the end of these strips to where reading goes on.
    let jump = p.next.as_ptr().addr().wrapping_sub(tile[0].addr() + p.w.strip(p.strip).len());
    let mut y = [[_mm512_setzero_ps(); R]; N];
    let mut factors = [(_mm512_setzero_ps(), _mm512_setzero_ps()); N];
    for slice in (0..tiles).step_by(SLICE / TILE_K) {
        let mut a = [[_mm512_setzero_ps(); R]; N];
        for t in slice..tiles.min(slice + SLICE / TILE_K) {
            let ahead = TileOf::<C, S, L>::ahead(t, tiles, jump);
            for tile in tile {
                ask_for_tile::<C, S, L>(tile.wrapping_add(ahead));
            }
            // Written out for each strip, so that the two are interleaved: a loop over them read 7 % less.
            macro_rules! add_tile {
                ($n:literal) => {{
                    let n = $n;
                    // SAFETY: tile t of `tiles` in the strip, and of each row; group `act` of `groups`: the slices above
                    // hold them all. `tile` moves on by one tile for each t, and by one line of factors for every second.
                    unsafe {
                        if TileOf::<C, S, L>::WHOLE && t % 2 == 0 {
                            factors[n] = pairs::<F16>(line_at(tile[n]));
                            tile[n] = tile[n].add(LINE);
                        }
                        let mut total = [_mm512_setzero_ps(); R];
                        for g in 0..TileOf::<C, S, L>::GROUPS {
                            let of_group = g * TILE_K / 4 / TileOf::<C, S, L>::GROUPS;
                            let four = x.map(|x| x.codes.add(t).cast::<i32>().add(of_group));
                            let mut start = [_mm512_setzero_si512(); R];
                            if S == WHOLE {
                                start = x.map(|x| _mm512_set1_epi32((*x.starts.add(t))[g]));
                            }
                            let sums = sum_group::<C, L, R>(tile[n], g, four, start);
                            let act = t * TileOf::<C, S, L>::ACT_GROUPS + g;
                            let (s, b) = scales::<C, S, L>(tile[n], g, factors[n]);
                            for r in 0..R {
                                let sum = _mm512_cvtepi32_ps(sums[r]);
                                if S == WHOLE {
                                    total[r] = _mm512_fmadd_ps(s, sum, total[r]);
                                    continue;
                                }
                                let v = _mm512_mul_ps(sum, _mm512_set1_ps(*x[r].d.add(act)));
                                a[n][r] = _mm512_fmadd_ps(s, v, a[n][r]);
                                a[n][r] = _mm512_fmadd_ps(b, _mm512_set1_ps(*x[r].ds.add(act)), a[n][r]);
                            }
                        }
                        if S == WHOLE {
                            for r in 0..R {
                                let v = _mm512_mul_ps(total[r], _mm512_set1_ps(*x[r].d.add(t)));
                                a[n][r] = _mm512_fmadd_ps(factors[n].1, v, a[n][r]);
                            }
                        }
                        tile[n] = tile[n].add(TileOf::<C, S, L>::BYTES);
                    }
                }};
            }
            add_tile!(0);
            if N == 2 {
                add_tile!(1);
            }
        }
        for n in 0..N {
            for r in 0..R {
                y[n][r] = _mm512_add_ps(y[n][r], a[n][r]);
            }
        }
    }
    for n in 0..N {
        for (out, y) in out[n * p.rows.len() + first..][..R].iter_mut().zip(y[n]) {
            // SAFETY: 16 floats of an array of 16 floats.
            unsafe { _mm512_storeu_ps(out.as_mut_ptr(), y) };
        }
    }
}

/// Activations of a row.
#[derive(Clone, Copy)]
struct Row {
    codes: *const Tile,
    starts: *const Starts,
    d: *const f32,
    ds: *const f32,
}

impl<const C: u8, const S: u8, const L: usize> TileOf<C, S, L> {
    /// Bytes from tile `t` of `tiles` to the one to ask for: about [`AHEAD`], and `jump` more beyond the last.
    #[inline(always)]
    fn ahead(t: usize, tiles: usize, jump: usize) -> usize {
        let ahead = const { (AHEAD + Self::BYTES / 2) / Self::BYTES };
        let each = const { Self::BYTES + if Self::WHOLE { LINE / 2 } else { 0 } };
        (ahead * each).wrapping_add(if t + ahead < tiles { 0 } else { jump })
    }
}

/// Asks for the lines of a tile, in their order: for codes of 5 to 8 bits memory gave up to a fifth more than to requests
/// made with each line. An address without memory is no fault.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
pub fn ask_for_tile<const C: u8, const S: u8, const L: usize>(tile: *const u8) {
    let factors = if TileOf::<C, S, L>::WHOLE { LINE } else { 0 };
    for line in 0..(TileOf::<C, S, L>::BYTES + factors) / LINE {
        _mm_prefetch::<_MM_HINT_T0>(tile.wrapping_add(line * LINE).cast());
    }
}

/// The exact sums of group `g`, of `L` lines, added to `start`. Several chains hide the latency of the products.
///
/// # Safety
/// A tile at `tile`; the group's codes of each row at `x`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
unsafe fn sum_group<const C: u8, const L: usize, const R: usize>(
    tile: *const u8,
    g: usize,
    x: [*const i32; R],
    start: [__m512i; R],
) -> [__m512i; R] {
    let (mut even, mut odd) = (start, [_mm512_setzero_si512(); R]);
    let (mut even_2, mut odd_2) = (odd, odd);
    // One row: high nibbles stay where they are, and their sum is divided by 16 at the end. Several: shifted once.
    let shift_sums = C == U4 && R == 1;
    // A single row changes over between two pairs of chains, but for a group that is over too soon.
    let twofold = R == 1 && L > 2;
    let mut upper = _mm512_setzero_si512();
    for i in 0..if C == U8 { L / 2 } else { L } {
        // SAFETY: as this function's caller promises.
        let four = |r: usize, i: usize| unsafe { _mm512_set1_epi32(x[r].add(i).read_unaligned()) };
        // SAFETY: as above.
        let (low, high) = unsafe { operands::<C, L>(tile, g, i, &mut upper, shift_sums) };
        let (to_even, to_odd) = if twofold && i % 2 == 1 { (&mut even_2, &mut odd_2) } else { (&mut even, &mut odd) };
        for r in 0..R {
            to_even[r] = _mm512_dpbusd_epi32(to_even[r], low, four(r, 2 * i));
            to_odd[r] = _mm512_dpbusd_epi32(to_odd[r], high, four(r, 2 * i + 1));
        }
    }
    for r in 0..R {
        if twofold {
            (even[r], odd[r]) = (_mm512_add_epi32(even[r], even_2[r]), _mm512_add_epi32(odd[r], odd_2[r]));
        }
        if shift_sums {
            odd[r] = _mm512_srai_epi32::<4>(odd[r]);
        }
        even[r] = _mm512_add_epi32(even[r], odd[r]);
    }
    even
}

/// The codes of the inputs 8 i to 8 i + 3 and 8 i + 4 to 8 i + 7 of group `g`; with `times_16` the second times 16.
/// `upper` keeps the line of upper bits from call to call, `i` going up from 0.
///
/// # Safety
/// A tile at `tile`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
pub unsafe fn operands<const C: u8, const L: usize>(
    tile: *const u8,
    g: usize,
    i: usize,
    upper: &mut __m512i,
    times_16: bool,
) -> (__m512i, __m512i) {
    // SAFETY: as this function's caller promises.
    let line = |i: usize| unsafe { line_at(tile.add(i * LINE)) };
    if C == U8 {
        return (line(g * L + 2 * i), line(g * L + 2 * i + 1));
    }
    let v = line(g * L + i);
    let mask = _mm512_set1_epi8(15);
    let high = match times_16 {
        true => _mm512_andnot_si512(mask, v),
        false => _mm512_and_si512(_mm512_srli_epi16::<4>(v), mask),
    };
    let low = _mm512_and_si512(v, mask);
    if C == U4 {
        return (low, high);
    }
    let per = TileOf::<C, BF16, L>::PER_UPPER;
    if i.is_multiple_of(per) {
        *upper = line(TileOf::<C, BF16, L>::CODES + (g * L + i) / per);
    }
    let mask = _mm512_set1_epi8(if C == U5 { 0x10 } else { 0x30 });
    // a | b & c
    let join = |nibbles, four| _mm512_ternarylogic_epi32::<0xf8>(nibbles, upper_bits::<C>(*upper, four), mask);
    (join(low, 2 * (i % per)), join(high, 2 * (i % per) + 1))
}

/// The upper bits of four `four` of a line of them, from bit 4 of each byte on; the other bits are of no account.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
fn upper_bits<const C: u8>(upper: __m512i, four: usize) -> __m512i {
    match if C == U5 { four } else { 2 * four } {
        0 => _mm512_slli_epi16::<4>(upper),
        1 => _mm512_slli_epi16::<3>(upper),
        2 => _mm512_slli_epi16::<2>(upper),
        3 => _mm512_slli_epi16::<1>(upper),
        4 => upper,
        5 => _mm512_srli_epi16::<1>(upper),
        6 => _mm512_srli_epi16::<2>(upper),
        _ => _mm512_srli_epi16::<3>(upper),
    }
}

/// Scales and biases of group `g` of a tile; of [`WHOLE`] scales the whole numbers alone. `factors` are those of
/// whole numbers: dmin, d.
///
/// # Safety
/// A tile at `tile`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
pub unsafe fn scales<const C: u8, const S: u8, const L: usize>(
    tile: *const u8,
    g: usize,
    factors: (__m512, __m512),
) -> (__m512, __m512) {
    let all = tile.wrapping_add(TileOf::<C, S, L>::SCALES_AT);
    let at = all.wrapping_add(g * TileOf::<C, S, L>::SCALES);
    // SAFETY: as this function's caller promises; a group has the lines that are read here.
    unsafe {
        match S {
            F32 => (_mm512_castsi512_ps(line_at(at)), _mm512_castsi512_ps(line_at(at.add(LINE)))),
            MIDDLE => {
                let s = _mm512_cvtph_ps(_mm256_load_si256(at.cast()));
                (s, _mm512_mul_ps(s, _mm512_set1_ps(-TileOf::<C, S, L>::MIDDLE as f32)))
            }
            WHOLE_PAIR => {
                let words = line_at(all);
                let whole = |at: usize| {
                    let shifted = _mm512_srlv_epi32(words, _mm512_set1_epi32(8 * at as i32));
                    _mm512_cvtepi32_ps(_mm512_and_si512(shifted, _mm512_set1_epi32(255)))
                };
                let min = _mm512_mul_ps(factors.0, whole(2 * g + 1));
                (_mm512_mul_ps(factors.1, whole(2 * g)), _mm512_mul_ps(min, _mm512_set1_ps(-1.0)))
            }
            WHOLE => {
                let up = _mm512_sllv_epi32(line_at(all), _mm512_set1_epi32(24 - 8 * g as i32));
                (_mm512_cvtepi32_ps(_mm512_srai_epi32::<24>(up)), _mm512_setzero_ps())
            }
            _ => pairs::<S>(line_at(at)),
        }
    }
}

/// The two floats of each word: high half, low half.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
fn pairs<const S: u8>(v: __m512i) -> (__m512, __m512) {
    if S == BF16 {
        let s = _mm512_and_si512(v, _mm512_set1_epi32(-65536));
        return (_mm512_castsi512_ps(s), _mm512_castsi512_ps(_mm512_slli_epi32::<16>(v)));
    }
    let s = _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(v));
    (_mm512_cvtph_ps(s), _mm512_cvtph_ps(_mm512_cvtepi32_epi16(v)))
}

/// # Safety
/// 64 bytes at `line`, which is a multiple of 64.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
unsafe fn line_at(line: *const u8) -> __m512i {
    // SAFETY: as the caller promises.
    unsafe { _mm512_load_si512(line.cast()) }
}
