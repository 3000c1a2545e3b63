//! Products of integer codes with AMX int8: `tdpbsud` multiplies 16 rows of activations with 16 outputs over 64 K, a
//! whole group, at once. For blocks of 16 rows and groups of 64; everything else is VNNI's, with the same bits.
//!
//! bytes: the weights once per call, of at most 128 rows (`products.rs`); activations once per strip, from L2.
//! layout: A = 16 rows x 64 codes of activations (signed), as they lie; B = a tile of weights (unsigned): its 16 rows of
//!   K / 4 are lines of 8-bit codes, or the nibbles of 4-bit ones, unpacked once per call and slice; C = 16 rows x 16
//!   outputs (i32), stored and read again as vectors whose lanes are the outputs.
//! instructions for 16 x 16 results and a group: 1 tile product (16 cycles of the tile unit) and 4 for each row
//!   (convert, times d, fma s, fma b): 64, which two units finish in 32 cycles. The tile products of one block are
//!   issued before the float part of the block before (of the slice before, where there is one block), so that both units
//!   are busy. Measured on a busy machine: 1.5 times the speed of VNNI, not limited by the float part; the loads and
//!   stores of tiles are suspected, not measured.
//! order: `mod.rs`. The scalar twin is `scalar.rs`.
#![allow(unsafe_code)]

use super::kinds::{BF16, F16, F32, U4, U8};
use super::vnni::{self, operands, scales};
use super::{CodeProducts, Input, Product, SLICE, codes, for_scheme};
use crate::acts::Tile;
use crate::lanes::{LANES, Lanes};
use crate::tiles::{Codes, LINE, Scales, TILE_K};
use std::arch::asm;
use std::arch::x86_64::*;
use std::mem::MaybeUninit;

/// Rows of a block. With blocks of 8, and a work space that was cleared for each strip, a step of 8 sequences took a fifth
/// longer than by VNNI.
const ROWS: usize = 16;
/// Groups of a slice.
const GROUPS: usize = SLICE / TILE_K;

pub struct Amx;

impl CodeProducts for Amx {
    #[inline(always)]
    fn rows(p: &Product<'_>, codes: Codes, scales: Scales, out: &mut [Lanes]) {
        if p.rows.len() < ROWS || p.w.group != TILE_K {
            return vnni::Vnni::rows(p, codes, scales, out);
        }
        let Some(rows) = for_scheme!(rows, codes, p.w.group, scales) else {
            return codes::Plain::<true>::rows(p, codes, scales, out);
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

/// Unpacked codes of a slice, the results of two blocks, and rows put side by side. Never cleared: what is read was written
/// before.
#[repr(C, align(64))]
struct Work {
    b: [[u8; 16 * LINE]; GROUPS],
    c: [[[[i32; LANES]; ROWS]; GROUPS]; 2],
    a: [[Tile; GROUPS]; ROWS],
}

/// Whole blocks of rows; `out` is as long as they are.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
fn rows<const C: u8, const S: u8, const L: usize>(p: &Product<'_>, out: &mut [Lanes]) {
    let Input::Codes { codes, d, ds, tiles, groups } = p.x else { return };
    let code_lines = if C == U8 { 16 } else { 8 };
    let tile_lines = code_lines + if S == F32 { 2 } else { 1 };
    let words = p.w.words(p.strip);
    assert!(words.len() == tiles * tile_lines && groups == tiles, "activations of another shape");
    out.fill([0.0; LANES]);
    let mut work = MaybeUninit::<Work>::uninit();
    let work = work.as_mut_ptr();
    let blocks = out.len() / ROWS;
    let in_order = p.rows.windows(2).all(|rows| rows[1] == rows[0] + 1);
    // SAFETY: the tiles are this thread's; they are released below.
    unsafe { configure() };
    let here = |slice: usize| GROUPS.min(tiles - slice * GROUPS);
    let zero = _mm512_setzero_ps();
    // Scales and biases of two slices.
    let mut factors = [([zero; GROUPS], [zero; GROUPS]); 2];
    let units = tiles.div_ceil(GROUPS) * blocks;
    for unit in 0..=units {
        let (slice, block) = (unit / blocks, unit % blocks);
        if unit < units {
            let first = slice * GROUPS;
            if block == 0 {
                let (s, b) = &mut factors[slice % 2];
                for g in 0..here(slice) {
                    let tile = words[(first + g) * tile_lines..(first + g + 1) * tile_lines].as_ptr().cast::<u8>();
                    // SAFETY: the tile is `code_lines` lines of codes and then its scales; `b[g]` of the work is 16 lines.
                    unsafe {
                        for i in 0..8 {
                            let (low, high) = operands::<C>(tile, i, false);
                            let to = (&raw mut (*work).b[g]).cast::<u8>().add(2 * i * LINE);
                            _mm512_store_si512(to.cast(), low);
                            _mm512_store_si512(to.add(LINE).cast(), high);
                        }
                        (s[g], b[g]) = scales::<S>(tile.add(code_lines * LINE));
                    }
                }
            }
            let rows = &p.rows[block * ROWS..(block + 1) * ROWS];
            // SAFETY: the tiles are configured; the codes of the slice are unpacked.
            unsafe { multiply(work, unit % 2, codes, (tiles, first, here(slice)), rows, in_order) };
        }
        if let Some(last) = unit.checked_sub(1) {
            let (slice, block) = (last / blocks, last % blocks);
            let finish = match here(slice) {
                4 => finish::<4>,
                3 => finish::<3>,
                2 => finish::<2>,
                _ => finish::<1>,
            };
            let these = block * ROWS..(block + 1) * ROWS;
            let (s, b) = &factors[slice % 2];
            let scales = [d, ds].map(|d| (&d[slice * GROUPS..], groups));
            // SAFETY: the tile products of the block have filled all rows for each group.
            unsafe {
                let c = (&raw const (*work).c[last % 2]).cast();
                finish(c, (s, b), &p.rows[these.clone()], scales, &mut out[these]);
            }
        }
    }
    // SAFETY: no tile is in use any more.
    unsafe { asm!("tilerelease", options(nostack, nomem)) };
}

/// The float part of a block: y += a, where a = fma(s, f32(C) * d, a) and a = fma(b, ds, a) for each of `N` groups.
/// `factors`: d and ds of the first group of row 0, and how many there are from row to row.
///
/// # Safety
/// At `c` are [N][ROWS] lines, of which those of the block's rows are filled.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
unsafe fn finish<const N: usize>(
    c: *const [[i32; LANES]; ROWS],
    (s, b): (&[__m512; GROUPS], &[__m512; GROUPS]),
    rows: &[u32],
    factors: [(&[f32], usize); 2],
    out: &mut [Lanes],
) {
    for ((r, &row), y) in rows.iter().enumerate().take(ROWS).zip(out) {
        let [d, ds] = factors.map(|(d, groups)| d[row as usize * groups..].first_chunk::<N>());
        let (Some(d), Some(ds)) = (d, ds) else { return };
        let mut a = _mm512_setzero_ps();
        for g in 0..N {
            // SAFETY: a filled line, as the caller promises.
            let c = unsafe { _mm512_load_si512(c.cast::<[i32; LANES]>().add(g * ROWS + r).cast()) };
            let v = _mm512_mul_ps(_mm512_cvtepi32_ps(c), _mm512_set1_ps(d[g]));
            a = _mm512_fmadd_ps(s[g], v, a);
            a = _mm512_fmadd_ps(b[g], _mm512_set1_ps(ds[g]), a);
        }
        let y = y.as_mut_ptr();
        // SAFETY: 16 floats of an array of 16 floats.
        unsafe { _mm512_storeu_ps(y, _mm512_add_ps(_mm512_loadu_ps(y), a)) };
    }
}

/// C[half][g] = the sums of a block of rows and group g, for `here` groups from tile `slice` on. Rows that do not follow
/// each other (`in_order`) are put side by side first.
///
/// # Safety
/// The tiles are configured, and `b` of the work is filled for `here` groups.
#[inline(always)]
unsafe fn multiply(
    work: *mut Work,
    half: usize,
    codes: &[Tile],
    (tiles, slice, here): (usize, usize, usize),
    rows: &[u32],
    in_order: bool,
) {
    let first = rows[0] as usize;
    let (mut a, mut stride) = (codes[first * tiles + slice..].as_ptr(), tiles * TILE_K);
    if in_order {
        assert!((first + rows.len()) * tiles <= codes.len(), "rows beyond the activations");
    } else {
        // SAFETY: the caller's work.
        let to = unsafe { (&raw mut (*work).a).cast::<Tile>() };
        for (r, &row) in rows.iter().enumerate().take(ROWS) {
            let from = &codes[row as usize * tiles + slice..][..here];
            // SAFETY: `here` of the GROUPS tiles of row r of ROWS.
            unsafe { to.add(r * GROUPS).copy_from_nonoverlapping(from.as_ptr(), here) };
        }
        (a, stride) = (to.cast_const(), GROUPS * TILE_K);
    }
    // SAFETY: the caller's work.
    let (b, c) = unsafe {
        ((&raw const (*work).b).cast::<[u8; 16 * LINE]>(), (&raw mut (*work).c[half]).cast::<[[i32; LANES]; ROWS]>())
    };
    // SAFETY: A is the block's rows of `here` times 64 bytes, `stride` apart, inside the activations or the work's, as seen above;
    // B and C are 16 rows of 64 bytes for each group. The tiles are configured.
    unsafe {
        for g in 0..here {
            asm!(
                "tilezero tmm0", "tileloadd tmm1, [{a} + {stride}]", "tileloadd tmm2, [{b} + {line}]",
                "tdpbsud tmm0, tmm1, tmm2", "tilestored [{c} + {line}], tmm0",
                a = in(reg) a.add(g), b = in(reg) b.add(g), c = in(reg) c.add(g), stride = in(reg) stride,
                line = in(reg) LINE, options(nostack),
            );
        }
    }
}

/// Three tiles of 16 rows of 64 bytes.
///
/// # Safety
/// The machine has AMX, and this process may use it.
unsafe fn configure() {
    #[repr(C, align(64))]
    struct Config([u8; 64]);
    let mut config = Config([0; 64]);
    config.0[0] = 1;
    for t in 0..3 {
        config.0[16 + 2 * t] = 64;
        config.0[48 + t] = ROWS as u8;
    }
    // SAFETY: 64 bytes are read; the caller sees to the rest.
    unsafe { asm!("ldtilecfg [{}]", in(reg) &config, options(nostack, readonly)) };
}
