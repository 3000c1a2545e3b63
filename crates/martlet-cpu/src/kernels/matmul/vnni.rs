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

use super::codes::read_scales;
use super::{CodeProducts, Input, Product, SLICE, codes};
use crate::acts::Tile;
use crate::lanes::{LANES, Lanes};
use crate::tiles::{Codes, LINE, Scales, TILE_K};
use std::arch::x86_64::*;

/// Bytes from the line in work to the line that is fetched: the best of 1 to 32 KiB where that was measured. Strips
/// follow each other in memory, so the end of one asks for the next.
const AHEAD: usize = 8192;

const U4: u8 = 0;
const U8: u8 = 1;

type Line = [u32; LANES];

pub struct Vnni;

impl CodeProducts for Vnni {
    #[inline(always)]
    fn rows(p: &Product<'_>, codes: Codes, scales: Scales, out: &mut [Lanes]) {
        // SAFETY: `Vnni` is reached only through a `KernelSet` for AVX-512, which exists only where the features do.
        unsafe {
            match (codes, p.w.group) {
                (Codes::U4, 32) => rows::<U4, 4>(p, scales, out),
                (Codes::U4, _) => rows::<U4, 8>(p, scales, out),
                (Codes::U8, 32) => rows::<U8, 8>(p, scales, out),
                (Codes::U8, _) => rows::<U8, 16>(p, scales, out),
                (Codes::E2m1, _) => codes::Plain::<true>::rows(p, codes, scales, out),
            }
        }
    }
}

/// All rows, in blocks of 8, 4, 2 and 1. `LINES`: lines of one group.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn rows<const C: u8, const LINES: usize>(p: &Product<'_>, scales: Scales, out: &mut [Lanes]) {
    let mut first = 0;
    while first + 8 <= p.rows.len() {
        block::<C, LINES, 8>(p, scales, first, out);
        first += 8;
    }
    if first + 4 <= p.rows.len() {
        block::<C, LINES, 4>(p, scales, first, out);
        first += 4;
    }
    if first + 2 <= p.rows.len() {
        block::<C, LINES, 2>(p, scales, first, out);
        first += 2;
    }
    if first < p.rows.len() {
        block::<C, LINES, 1>(p, scales, first, out);
    }
}

/// The `R` rows from `first` on at once: a = fma(s, f32(I) * d, a) for each group, then a = fma(b, ds, a).
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn block<const C: u8, const LINES: usize, const R: usize>(
    p: &Product<'_>,
    kind: Scales,
    first: usize,
    out: &mut [Lanes],
) {
    let Input::Codes { codes: x, d, ds, tiles, groups } = p.x else { return };
    let mut row_x: [&[Tile]; R] = [&[]; R];
    let (mut row_d, mut row_ds): ([&[f32]; R], [&[f32]; R]) = ([&[]; R], [&[]; R]);
    for r in 0..R {
        let row = p.rows[first + r] as usize;
        row_x[r] = &x[row * tiles..(row + 1) * tiles];
        row_d[r] = &d[row * groups..(row + 1) * groups];
        row_ds[r] = &ds[row * groups..(row + 1) * groups];
    }
    let code_lines = if C == U8 { 16 } else { 8 };
    let per_tile = code_lines / LINES;
    let tile_lines = code_lines + per_tile * kind.bytes() / LINE;
    let zero = _mm512_setzero_ps();
    let (mut y, mut a) = ([zero; R], [zero; R]);
    for (t, tile) in p.w.words(p.strip).chunks_exact(tile_lines).enumerate() {
        let (codes, scales) = tile.split_at(code_lines);
        let mut x: [&Tile; R] = [&[0; TILE_K]; R];
        for r in 0..R {
            x[r] = &row_x[r][t];
        }
        scales.iter().for_each(prefetch);
        for g in 0..per_tile {
            let Some(lines) = codes[g * LINES..].first_chunk::<LINES>() else { continue };
            let sums = sum_group::<C, LINES, R>(lines, x, g);
            let (s, b) = scale_vectors(kind, scales, g);
            let act = t * per_tile + g;
            for r in 0..R {
                let v = _mm512_mul_ps(_mm512_cvtepi32_ps(sums[r]), _mm512_set1_ps(row_d[r][act]));
                a[r] = _mm512_fmadd_ps(s, v, a[r]);
                a[r] = _mm512_fmadd_ps(b, _mm512_set1_ps(row_ds[r][act]), a[r]);
            }
        }
        if (t + 1) % (SLICE / TILE_K) == 0 {
            for r in 0..R {
                (y[r], a[r]) = (_mm512_add_ps(y[r], a[r]), zero);
            }
        }
    }
    let whole = p.w.cols.div_ceil(TILE_K).is_multiple_of(SLICE / TILE_K);
    for r in 0..R {
        let last = if whole { y[r] } else { _mm512_add_ps(y[r], a[r]) };
        // SAFETY: 16 floats are written to an array of 16 floats.
        unsafe { _mm512_storeu_ps(out[first + r].as_mut_ptr(), last) };
    }
}

/// The exact sums of group `g` of a tile. Four chains for each row, or two for each of many, hide the latency.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn sum_group<const C: u8, const LINES: usize, const R: usize>(
    lines: &[Line; LINES],
    x: [&Tile; R],
    g: usize,
) -> [__m512i; R] {
    let mut sums = [[_mm512_setzero_si512(); 4]; R];
    // One row: high nibbles stay where they are, and their sum is divided by 16 at the end. Several: shifted once.
    let shift_sums = C == U4 && R == 1;
    for (p, line) in lines.iter().enumerate() {
        prefetch(line);
        let v = load(line);
        if C == U8 {
            for r in 0..R {
                let chain = &mut sums[r][p % if R == 1 { 4 } else { 2 }];
                *chain = _mm512_dpbusd_epi32(*chain, v, four(x[r], g * LINES + p));
            }
            continue;
        }
        let low = _mm512_and_si512(v, _mm512_set1_epi8(15));
        let high = match shift_sums {
            true => _mm512_and_si512(v, _mm512_set1_epi8(-16)),
            false => _mm512_and_si512(_mm512_srli_epi16::<4>(v), _mm512_set1_epi8(15)),
        };
        let at = 2 * (g * LINES + p);
        for r in 0..R {
            let chain = if R == 1 { 2 * (p % 2) } else { 0 };
            sums[r][chain] = _mm512_dpbusd_epi32(sums[r][chain], low, four(x[r], at));
            sums[r][chain + 1] = _mm512_dpbusd_epi32(sums[r][chain + 1], high, four(x[r], at + 1));
        }
    }
    let mut out = [_mm512_setzero_si512(); R];
    for r in 0..R {
        let [s0, s1, s2, s3] = sums[r];
        let (even, odd) = match R {
            1 => (_mm512_add_epi32(s0, s2), _mm512_add_epi32(s1, s3)),
            _ => (s0, s1),
        };
        out[r] = _mm512_add_epi32(even, if shift_sums { _mm512_srai_epi32::<4>(odd) } else { odd });
    }
    out
}

/// Scales and biases of group `g`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn scale_vectors(kind: Scales, lines: &[Line], g: usize) -> (__m512, __m512) {
    match kind {
        Scales::Bf16Pair => {
            let v = load(&lines[g]);
            let s = _mm512_and_si512(v, _mm512_set1_epi32(-65536));
            (_mm512_castsi512_ps(s), _mm512_castsi512_ps(_mm512_slli_epi32::<16>(v)))
        }
        Scales::F16Pair => {
            let v = load(&lines[g]);
            let s = _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(v));
            (_mm512_cvtph_ps(s), _mm512_cvtph_ps(_mm512_cvtepi32_epi16(v)))
        }
        _ => {
            let (s, b) = read_scales(kind, lines, g, &[1.0; LANES]);
            // SAFETY: 16 floats are read from arrays of 16 floats.
            unsafe { (_mm512_loadu_ps(s.as_ptr()), _mm512_loadu_ps(b.as_ptr())) }
        }
    }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn load(line: &Line) -> __m512i {
    // SAFETY: 64 bytes are read from an array of 64 bytes.
    unsafe { _mm512_loadu_si512(line.as_ptr().cast()) }
}

/// Asks for the line [`AHEAD`] of this one. An address without memory is no fault.
#[inline(always)]
fn prefetch(line: &Line) {
    // SAFETY: a prefetch reads nothing that the program could see, and never faults.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast::<i8>().wrapping_add(AHEAD)) }
}

/// Codes 4 i to 4 i + 3 of a row, in every lane.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn four(x: &Tile, i: usize) -> __m512i {
    let [a, b, c, d] = [x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]];
    _mm512_set1_epi32(i32::from_le_bytes([a as u8, b as u8, c as u8, d as u8]))
}
