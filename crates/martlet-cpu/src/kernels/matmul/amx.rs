//! Products of integer codes with AMX int8: `tdpbsud` multiplies 16 rows of activations with 16 outputs over 64 K, a
//! whole group, at once. For blocks of 16 rows and groups of 64; everything else is VNNI's, with the same bits.
//!
//! bytes: the weights once per call, of at most 128 rows (`products.rs`); activations once per strip, from L2.
//! layout: A = 16 rows x 64 codes of activations (signed), side by side (`Acts::blocks`); B = a tile of weights
//!   (unsigned): its 16 rows of K / 4 are lines of 8-bit codes, or the nibbles of 4-bit ones, unpacked once per call and
//!   slice; C = 16 rows x 16 outputs (i32), stored and read again as vectors whose lanes are the outputs.
//! instructions for 16 x 16 results and a group: 1 tile product, 2 tile loads and 1 store, which take 13 to 20 ns
//!   together, and 4 for each row (convert, times d, fma s, fma b): 64 in 12 to 14 ns. They do not overlap: while tile
//!   instructions are under way, half of the 512-bit units are closed. So 32,768 operations take 35 ns at best, 0.93
//!   Top/s of a thread, a seventh of what the tile unit alone could do; this file reaches 0.5 to 0.6. Units of 2 blocks
//!   were faster than those of 1 and 4.
//! order: `mod.rs`. The scalar twin is `scalar.rs`.
#![allow(unsafe_code)]

use super::kinds::*;
use super::vnni::{self, AHEAD, ask_for_tile, operands, scales};
use super::{CodeProducts, Input, Product, SLICE, TileOf};
use crate::acts::{BLOCK, Tile};
use crate::lanes::{LANES, Lanes};
use crate::tiles::{Codes, LINE, Scales, TILE_K};
use std::arch::asm;
use std::arch::x86_64::*;
use std::mem::MaybeUninit;

/// Rows of a block. With blocks of 8, and a work space that was cleared for each strip, a step of 8 sequences took a fifth
/// longer than by VNNI.
const ROWS: usize = BLOCK;
/// Groups of a slice.
const GROUPS: usize = SLICE / TILE_K;

pub struct Amx;

impl CodeProducts for Amx {
    #[inline(always)]
    fn rows(p: &Product<'_>, codes: Codes, scales: Scales, out: &mut [Lanes]) {
        if p.rows.len() < ROWS || p.w.group != TILE_K {
            return vnni::Vnni::rows(p, codes, scales, out);
        }
        let rows = match (codes, scales) {
            (Codes::U4, Scales::Bf16Pair) => rows::<U4, BF16, 8> as unsafe fn(&Product<'_>, &mut [Lanes]),
            (Codes::U4, Scales::F16Pair) => rows::<U4, F16, 8> as _,
            (Codes::U5, Scales::Bf16Pair) => rows::<U5, BF16, 8> as _,
            (Codes::U5, Scales::F16Pair) => rows::<U5, F16, 8> as _,
            (Codes::U6, Scales::Bf16Pair) => rows::<U6, BF16, 8> as _,
            (Codes::U6, Scales::F16Pair) => rows::<U6, F16, 8> as _,
            (Codes::U8, Scales::Bf16Pair) => rows::<U8, BF16, 16> as _,
            (Codes::U8, Scales::F16Pair) => rows::<U8, F16, 16> as _,
            _ => return vnni::Vnni::rows(p, codes, scales, out),
        };
        let whole = p.rows.len() / ROWS * ROWS;
        let rest = Product { rows: &p.rows[whole..], ..*p };
        let (out, out_of_rest) = out.split_at_mut(whole);
        // SAFETY: `Amx` is reached only through a `KernelSet` for AMX, which exists only where the features do and the
        // system has let this process use the tiles.
        unsafe { rows(&Product { rows: &p.rows[..whole], ..*p }, out) };
        if !rest.rows.is_empty() {
            vnni::Vnni::rows(&rest, codes, scales, out_of_rest);
        }
    }

    #[inline(always)]
    fn strips(p: &Product<'_>, codes: Codes, scales: Scales, out: &mut [Lanes]) {
        match p.rows.len() < ROWS {
            true => vnni::Vnni::strips(p, codes, scales, out),
            false => Self::one_by_one(p, codes, scales, out),
        }
    }
}

/// Lets this process use the tiles, if machine and system allow it.
pub fn permitted() -> bool {
    // ARCH_REQ_XCOMP_PERM, XTILEDATA
    #[cfg(target_os = "linux")]
    // SAFETY: the call takes two numbers and touches no memory; a system that does not know it says so.
    return unsafe { libc::syscall(libc::SYS_arch_prctl, 0x1023, 18) } == 0;
    #[cfg(not(target_os = "linux"))]
    false
}

/// Blocks of a unit: the tile products of a unit come first, then its float part. While tile instructions are under way
/// the processor has one unit for 512-bit floats instead of two, so the two parts are kept apart.
const UNIT: usize = 2;

/// Unpacked codes of two slices, the results of a unit, and rows put side by side. Never cleared: what is read was written
/// before.
#[repr(C, align(64))]
struct Work {
    b: [Slice; 2],
    c: Results,
    a: [[[Tile; ROWS]; GROUPS]; UNIT],
}

/// The codes of a slice as bytes, and its scales and biases.
#[repr(C, align(64))]
struct Slice {
    codes: [[u8; 16 * LINE]; GROUPS],
    s: [__m512; GROUPS],
    b: [__m512; GROUPS],
}

/// The sums of a unit: group, row, output.
type Results = [[[i32; LANES]; UNIT * ROWS]; GROUPS];

/// Whole blocks of rows; `out` is as long as they are.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
fn rows<const C: u8, const S: u8, const L: usize>(p: &Product<'_>, out: &mut [Lanes]) {
    let Input::Codes { d, ds, tiles, groups, .. } = p.x else { return };
    let strip = TileOf::<C, S, L>::strip(p, 0, tiles, groups);
    // Where the slice begins, and how many tiles it has.
    let slice = |i: usize| {
        let first = (i * GROUPS).min(tiles);
        (strip.wrapping_add(first * TileOf::<C, S, L>::BYTES), tiles.min(first + GROUPS) - first)
    };
    out.fill([0.0; LANES]);
    let mut work = MaybeUninit::<Work>::uninit();
    let work = work.as_mut_ptr();
    let in_order = p.rows.windows(2).all(|rows| rows[1] == rows[0] + 1) && p.rows[0].is_multiple_of(ROWS as u32);
    // SAFETY: the tiles are this thread's; they are released below.
    unsafe { configure() };
    // SAFETY: the work is this function's; a slice lies in the strip.
    unsafe { unpack::<C, S, L>(slice(0), &raw mut (*work).b[0]) };
    let units = p.rows.len().div_ceil(UNIT * ROWS);
    for i in 0..tiles.div_ceil(GROUPS) {
        let (first, here) = (i * GROUPS, slice(i).1);
        let finish = match here {
            4 => finish::<4>,
            3 => finish::<3>,
            2 => finish::<2>,
            _ => finish::<1>,
        };
        for (unit, (rows, out)) in p.rows.chunks(UNIT * ROWS).zip(out.chunks_mut(UNIT * ROWS)).enumerate() {
            // SAFETY: the tiles are configured and the codes of the slice unpacked; the products fill all lines of these
            // rows and groups. The next slice is unpacked early: what was stored just now makes a tile wait.
            unsafe {
                let (a, stride) = activations(&p.x, (first, here), rows, in_order, &raw mut (*work).a);
                multiply(work, i % 2, (a, stride), here, rows.len() / ROWS);
                if unit + 1 == units {
                    unpack::<C, S, L>(slice(i + 1), &raw mut (*work).b[(i + 1) % 2]);
                }
                let floats =
                    Floats { slice: &raw const (*work).b[i % 2], d: &d[first..], ds: &ds[first..], stride: groups };
                finish(&raw const (*work).c, rows, &floats, out);
            }
        }
    }
    // SAFETY: no tile is in use any more.
    unsafe { asm!("tilerelease", options(nostack, nomem)) };
}

/// Unpacks the tiles of a slice.
///
/// # Safety
/// As many tiles, at most [`GROUPS`], at `tile`; `to` may be written.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
unsafe fn unpack<const C: u8, const S: u8, const L: usize>((tile, tiles): (*const u8, usize), to: *mut Slice) {
    let none = _mm512_setzero_ps();
    for g in 0..tiles {
        // SAFETY: a tile is a group; `codes[g]` is 16 lines.
        unsafe {
            let tile = tile.add(g * TileOf::<C, S, L>::BYTES);
            let codes = (&raw mut (*to).codes[g]).cast::<u8>();
            ask_for_tile::<C, S, L>(tile.wrapping_add(AHEAD));
            let mut upper = _mm512_setzero_si512();
            for i in 0..8 {
                let (low, high) = operands::<C, L>(tile, 0, i, &mut upper, false);
                _mm512_store_si512(codes.add(2 * i * LINE).cast(), low);
                _mm512_store_si512(codes.add((2 * i + 1) * LINE).cast(), high);
            }
            ((*to).s[g], (*to).b[g]) = scales::<C, S, L>(tile, 0, (none, none));
        }
    }
}

/// Where the activations of a unit lie, `here` tiles of each row from tile `first` on, and the tiles from block to block.
/// Blocks are used where they lie; rows that do not follow each other are put side by side in `to`.
///
/// # Safety
/// `to` may be written.
unsafe fn activations(
    x: &Input<'_>,
    (first, here): (usize, usize),
    rows: &[u32],
    in_order: bool,
    to: *mut [[[Tile; ROWS]; GROUPS]; UNIT],
) -> (*const Tile, usize) {
    let &Input::Codes { codes, blocks, tiles, .. } = x else { unreachable!("floats have no tiles") };
    let start = rows[0] as usize;
    if in_order && blocks.len() >= (start + rows.len()) * tiles {
        return (blocks[start * tiles + first * ROWS..].as_ptr(), tiles * ROWS);
    }
    for (r, &row) in rows.iter().enumerate().take(UNIT * ROWS) {
        let from = &codes[row as usize * tiles + first..][..here];
        for (g, tile) in from.iter().enumerate() {
            // SAFETY: `r` is below UNIT * ROWS, and `here` at most GROUPS.
            unsafe { (*to)[r / ROWS][g][r % ROWS] = *tile };
        }
    }
    (to.cast_const().cast(), GROUPS * ROWS)
}

/// The sums of `groups` groups of `blocks` blocks, whose activations lie at `a`, `stride` tiles from block to block.
///
/// # Safety
/// The tiles are configured, and `b` of the work is filled.
#[inline]
unsafe fn multiply(work: *mut Work, half: usize, (a, stride): (*const Tile, usize), groups: usize, blocks: usize) {
    for g in 0..groups {
        // SAFETY: a tile is 16 rows of 64 bytes. B lies in the work, as does C, one block after the other; A does as the
        // caller promises.
        unsafe {
            let b = (&raw const (*work).b[half].codes[g]).cast::<u8>();
            let c = (&raw mut (*work).c[g]).cast::<u8>();
            let a = |block: usize| a.add(block * stride + g * ROWS);
            for block in 0..blocks {
                asm!(
                    "tileloadd tmm6, [{b} + {line}]", "tileloadd tmm4, [{a} + {line}]", "tilezero tmm0",
                    "tdpbsud tmm0, tmm4, tmm6", "tilestored [{c} + {line}], tmm0",
                    a = in(reg) a(block), b = in(reg) b, c = in(reg) c.add(block * ROWS * LINE), line = in(reg) LINE,
                    options(nostack),
                );
            }
        }
    }
}

/// What the float part of a unit reads besides its sums: its slice, and d and ds of the first group of row 0, which are
/// `stride` apart from row to row.
struct Floats<'a> {
    slice: *const Slice,
    d: &'a [f32],
    ds: &'a [f32],
    stride: usize,
}

/// The float part of a unit: y += a, where a = fma(s, f32(C) * d, a) and a = fma(b, ds, a) for each of `N` groups.
///
/// # Safety
/// The lines of these rows and groups at `c` are filled.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
unsafe fn finish<const N: usize>(c: *const Results, rows: &[u32], floats: &Floats<'_>, out: &mut [Lanes]) {
    let &Floats { slice, d, ds, stride } = floats;
    // SAFETY: scales and biases of `N` groups were written.
    let (s, b) = unsafe {
        ((&raw const (*slice).s).cast::<[__m512; N]>().read(), (&raw const (*slice).b).cast::<[__m512; N]>().read())
    };
    for ((r, &row), y) in rows.iter().enumerate().take(UNIT * ROWS).zip(out) {
        let [d, ds] = [d, ds].map(|d| d[row as usize * stride..].first_chunk::<N>());
        let (Some(d), Some(ds)) = (d, ds) else { return };
        let mut a = _mm512_setzero_ps();
        for g in 0..N {
            // SAFETY: a filled line, as the caller promises.
            let c = unsafe { _mm512_load_si512((&raw const (*c)[g][r]).cast()) };
            let v = _mm512_mul_ps(_mm512_cvtepi32_ps(c), _mm512_set1_ps(d[g]));
            a = _mm512_fmadd_ps(s[g], v, a);
            a = _mm512_fmadd_ps(b[g], _mm512_set1_ps(ds[g]), a);
        }
        let y = y.as_mut_ptr();
        // SAFETY: 16 floats of an array of 16 floats.
        unsafe { _mm512_storeu_ps(y, _mm512_add_ps(_mm512_loadu_ps(y), a)) };
    }
}

/// Eight tiles of 16 rows of 64 bytes.
///
/// # Safety
/// The machine has AMX, and this process may use it.
unsafe fn configure() {
    #[repr(C, align(64))]
    struct Config([u8; 64]);
    let mut config = Config([0; 64]);
    config.0[0] = 1;
    for t in 0..8 {
        config.0[16 + 2 * t] = 64;
        config.0[48 + t] = ROWS as u8;
    }
    // SAFETY: 64 bytes are read; the caller sees to the rest.
    unsafe { asm!("ldtilecfg [{}]", in(reg) &config, options(nostack, readonly)) };
}
