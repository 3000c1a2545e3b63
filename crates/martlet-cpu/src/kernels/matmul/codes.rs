//! Products of integer codes: one skeleton, and for each code how it becomes a number.
//!
//! The exact sums are taken in f32: a sum of 64 products of at most 255 * 127 stays below 2^24, so every partial sum is
//! a whole number that f32 holds, in any order, and a fused multiply-add does a product and its addition for 16 outputs
//! in one instruction. Instruction sets with dot products of bytes take those instead: the sums are the same.

use super::{CodeProducts, Input, Product, SLICE};
use crate::acts::{Starts, Tile};
use crate::lanes::{LANES, Lanes, twice_e2m1, widen_bf16, widen_f16};
use crate::tiles::{Codes, Kind, LINE, Scales, TILE_K};

const ZERO: Lanes = [0.0; LANES];

/// A code and its place in a line.
pub trait Unpack {
    /// Codes of one output in a line: 8 nibbles or 4 bytes.
    const PER_LINE: usize;

    /// Code `i` of the word of one output, as a number.
    fn get(word: u32, i: usize) -> f32;
}

/// Unsigned, 4 bits: byte j holds code j in its low nibble and code 4 + j in its high one.
pub struct U4;

impl Unpack for U4 {
    const PER_LINE: usize = 8;

    #[inline(always)]
    fn get(word: u32, i: usize) -> f32 {
        nibble(word, i) as i32 as f32
    }
}

/// E2M1 in the same places, counted double.
pub struct E2m1;

impl Unpack for E2m1 {
    const PER_LINE: usize = 8;

    #[inline(always)]
    fn get(word: u32, i: usize) -> f32 {
        twice_e2m1(nibble(word, i))
    }
}

/// Unsigned, 8 bits.
pub struct U8;

impl Unpack for U8 {
    const PER_LINE: usize = 4;

    #[inline(always)]
    fn get(word: u32, i: usize) -> f32 {
        ((word >> (8 * i)) & 255) as i32 as f32
    }
}

#[inline(always)]
fn nibble(word: u32, i: usize) -> u32 {
    (word >> (i % 4 * 8 + i / 4 * 4)) & 15
}

/// Products in f32 lanes, which the compiler makes of what the machine has.
pub struct Plain<const FUSED: bool>;

impl<const FUSED: bool> CodeProducts for Plain<FUSED> {
    #[inline(always)]
    fn rows(p: &Product<'_>, codes: Codes, scales: Scales, out: &mut [Lanes]) {
        match (codes, p.w.group) {
            (Codes::U4, 16) => rows::<U4, 2, FUSED>(p, scales, out),
            (Codes::U4, 32) => rows::<U4, 4, FUSED>(p, scales, out),
            (Codes::U4, _) => rows::<U4, 8, FUSED>(p, scales, out),
            // Codes of 5 and 6 bits are unpacked to bytes first.
            (Codes::U5 | Codes::U6 | Codes::U8, 16) => rows::<U8, 4, FUSED>(p, scales, out),
            (Codes::U5 | Codes::U6 | Codes::U8, 32) => rows::<U8, 8, FUSED>(p, scales, out),
            (Codes::U5 | Codes::U6 | Codes::U8, _) => rows::<U8, 16, FUSED>(p, scales, out),
            (Codes::E2m1, 16) => rows::<E2m1, 2, FUSED>(p, scales, out),
            (Codes::E2m1, _) => rows::<E2m1, 4, FUSED>(p, scales, out),
        }
    }
}

/// All rows of a product: blocks of 4 share the unpacking of the codes, the rest goes one by one. `LINES`: lines of one
/// group. `FUSED`: the machine has a fused multiply-add (for exact sums both ways are the same).
#[inline(always)]
fn rows<C: Unpack, const LINES: usize, const FUSED: bool>(p: &Product<'_>, scales: Scales, out: &mut [Lanes]) {
    let (mut i, rows) = (0, p.rows);
    while i + 4 <= rows.len() {
        let y = block::<C, LINES, 4, FUSED>(p, scales, [rows[i], rows[i + 1], rows[i + 2], rows[i + 3]]);
        out[i..i + 4].copy_from_slice(&y);
        i += 4;
    }
    while i < rows.len() {
        [out[i]] = block::<C, LINES, 1, FUSED>(p, scales, [rows[i]]);
        i += 1;
    }
}

/// `R` rows at once: a = fma(s, f32(I) * d, a) for each group, and with a bias a = fma(b, ds, a); or for scales that are
/// whole numbers without minima, the order of q6_k.
#[inline(always)]
fn block<C: Unpack, const LINES: usize, const R: usize, const FUSED: bool>(
    p: &Product<'_>,
    kind: Scales,
    rows: [u32; R],
) -> [Lanes; R] {
    let Input::Codes { codes: x, starts, d, ds, tiles, groups, .. } = p.x else { return [[f32::NAN; LANES]; R] };
    let Kind::Codes(stored, _) = p.w.kind else { return [[f32::NAN; LANES]; R] };
    let mut row_x: [&[Tile]; R] = [&[]; R];
    let mut row_starts: [&[Starts]; R] = [&[]; R];
    let (mut row_d, mut row_ds): ([&[f32]; R], [&[f32]; R]) = ([&[]; R], [&[]; R]);
    for r in 0..R {
        let row = rows[r] as usize;
        row_x[r] = &x[row * tiles..(row + 1) * tiles];
        row_d[r] = &d[row * groups..(row + 1) * groups];
        row_ds[r] = &ds[row * groups..(row + 1) * groups];
        if kind == Scales::Whole {
            row_starts[r] = &starts[row * tiles..(row + 1) * tiles];
        }
    }
    let group = LINES * C::PER_LINE;
    let mut scales =
        ReadScales { kind, middle: f32::from(stored.middle()), factors: p.w.factors(p.strip), pair: (ZERO, ZERO) };
    let (code_lines, per_group) = (stored.bytes() / LINE, kind.bytes());
    let tile_lines = code_lines + if kind.whole() { 1 } else { TILE_K / group * per_group / LINE };
    let act_shift = p.w.act_group.trailing_zeros();
    let bias = !matches!(kind, Scales::Bf16 | Scales::F16Factor);
    let (mut y, mut a) = ([ZERO; R], [ZERO; R]);
    let mut rest = p.w.words(p.strip);
    for t in 0..tiles {
        if kind.whole() && t % 2 == 0 {
            (scales.pair, rest) = (f16_pairs(&rest[0]), &rest[1..]);
        }
        let (tile, next) = rest.split_at(tile_lines);
        rest = next;
        let (codes, scale_lines) = tile.split_at(code_lines);
        let unpacked;
        let codes = match stored {
            Codes::U5 | Codes::U6 => {
                unpacked = to_bytes(stored, codes);
                &unpacked
            }
            _ => codes,
        };
        let mut x = [[0.0; TILE_K]; R];
        for r in 0..R {
            let codes = &row_x[r][t];
            for i in 0..TILE_K {
                x[r][i] = f32::from(codes[i]);
            }
        }
        let mut total = [ZERO; R];
        for g in 0..TILE_K / group {
            let (s, b) = scales.read(scale_lines, g);
            let k = g * group;
            let act = (t * TILE_K + k) >> act_shift;
            let Some(lines) = codes[g * LINES..].first_chunk::<LINES>() else { continue };
            let mut sums = [ZERO; R];
            if R == 1 {
                sums[0] = sum_group::<C, LINES, FUSED>(lines, &x[0][k..k + group]);
            } else {
                for (p, line) in lines.iter().enumerate() {
                    let mut part: [&[f32]; R] = [&[]; R];
                    for r in 0..R {
                        part[r] = &x[r][k + p * C::PER_LINE..k + (p + 1) * C::PER_LINE];
                    }
                    sum_line::<C, R, FUSED>(line, part, &mut sums);
                }
            }
            for r in 0..R {
                if kind == Scales::Whole {
                    let start = row_starts[r][t][g] as f32;
                    for l in 0..LANES {
                        total[r][l] = s[l].mul_add(sums[r][l] + start, total[r][l]);
                    }
                    continue;
                }
                let (d, ds) = (row_d[r][act], row_ds[r][act]);
                for l in 0..LANES {
                    a[r][l] = s[l].mul_add(sums[r][l] * d, a[r][l]);
                }
                if bias {
                    for l in 0..LANES {
                        a[r][l] = b[l].mul_add(ds, a[r][l]);
                    }
                }
            }
        }
        if kind == Scales::Whole {
            for r in 0..R {
                for l in 0..LANES {
                    a[r][l] = scales.pair.1[l].mul_add(total[r][l] * row_d[r][t], a[r][l]);
                }
            }
        }
        if (t + 1) % (SLICE / TILE_K) == 0 {
            flush(&mut y, &mut a);
        }
    }
    if !tiles.is_multiple_of(SLICE / TILE_K) {
        flush(&mut y, &mut a);
    }
    y
}

/// The lines of a tile of 5- or 6-bit codes as those of 8-bit ones.
#[inline(always)]
fn to_bytes(codes: Codes, lines: &[[u32; LANES]]) -> [[u32; LANES]; TILE_K / 4] {
    let (bits, mask) = if codes == Codes::U5 { (1, 0x0101_0101) } else { (2, 0x0303_0303) };
    let mut bytes = [[0; LANES]; TILE_K / 4];
    for (p, to) in bytes.iter_mut().enumerate() {
        let (low, upper) = (&lines[p / 2], &lines[8 + p * bits / 8]);
        for l in 0..LANES {
            let nibbles = low[l] >> (p % 2 * 4) & 0x0f0f_0f0f;
            to[l] = nibbles | (upper[l] >> (p * bits % 8) & mask) << 4;
        }
    }
    bytes
}

/// Sums of one row, a whole group at a time.
///
/// Here and below the loop over the lanes is the outer one and its body long, so that it stays a loop until the
/// compiler makes vectors of it; loops inside it must be short enough to be unrolled before that.
#[inline(always)]
fn sum_group<C: Unpack, const LINES: usize, const FUSED: bool>(lines: &[[u32; LANES]; LINES], x: &[f32]) -> Lanes {
    // Side by side, to hide the latency of the multiply-add.
    const CHAINS: usize = 4;
    let (mut out, x) = (ZERO, &x[..LINES * C::PER_LINE]);
    for l in 0..LANES {
        let mut sums = [0.0f32; CHAINS];
        for p in 0..LINES {
            let word = u32::from_le(lines[p][l]);
            for i in 0..C::PER_LINE {
                let sum = &mut sums[i % CHAINS];
                *sum = add_product::<FUSED>(C::get(word, i), x[p * C::PER_LINE + i], *sum);
            }
        }
        out[l] = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    }
    out
}

/// Adds one line to the sums of several rows.
#[inline(always)]
fn sum_line<C: Unpack, const R: usize, const FUSED: bool>(line: &[u32; LANES], x: [&[f32]; R], sums: &mut [Lanes; R]) {
    for r in 0..R {
        assert!(x[r].len() == C::PER_LINE);
    }
    for l in 0..LANES {
        let word = u32::from_le(line[l]);
        let mut pairs = [[0.0f32; 2]; R];
        for r in 0..R {
            pairs[r][0] = sums[r][l];
        }
        for i in 0..C::PER_LINE {
            let code = C::get(word, i);
            for r in 0..R {
                let sum = &mut pairs[r][i % 2];
                *sum = add_product::<FUSED>(code, x[r][i], *sum);
            }
        }
        for r in 0..R {
            sums[r][l] = pairs[r][0] + pairs[r][1];
        }
    }
}

#[inline(always)]
fn add_product<const FUSED: bool>(code: f32, x: f32, sum: f32) -> f32 {
    if FUSED { code.mul_add(x, sum) } else { code * x + sum }
}

/// The end of a slice: y += a, a = 0.
#[inline(always)]
fn flush<const R: usize>(y: &mut [Lanes; R], a: &mut [Lanes; R]) {
    for r in 0..R {
        for l in 0..LANES {
            y[r][l] += a[r][l];
            a[r][l] = 0.0;
        }
    }
}

/// What scales and biases are read with.
struct ReadScales {
    kind: Scales,
    /// The middle code.
    middle: f32,
    /// One for each output.
    factors: Lanes,
    /// dmin and d of scales that are whole numbers.
    pair: (Lanes, Lanes),
}

impl ReadScales {
    /// Of group `g` of a tile whose lines of scales these are; of [`Scales::Whole`] the whole numbers alone.
    #[inline(always)]
    fn read(&self, lines: &[[u32; LANES]], g: usize) -> (Lanes, Lanes) {
        let (mut s, mut b) = (ZERO, ZERO);
        match self.kind {
            Scales::Bf16Pair => {
                for l in 0..LANES {
                    let w = u32::from_le(lines[g][l]);
                    s[l] = f32::from_bits(w & 0xffff_0000);
                    b[l] = f32::from_bits(w << 16);
                }
            }
            Scales::F16Pair => (s, b) = f16_pairs(&lines[g]),
            Scales::F32Pair => {
                for l in 0..LANES {
                    s[l] = f32::from_bits(u32::from_le(lines[2 * g][l]));
                    b[l] = f32::from_bits(u32::from_le(lines[2 * g + 1][l]));
                }
            }
            Scales::F16Middle => {
                s = f16_halves(lines, g);
                for l in 0..LANES {
                    b[l] = -self.middle * s[l];
                }
            }
            Scales::WholePair => {
                for l in 0..LANES {
                    let w = u32::from_le(lines[0][l]) >> (16 * g);
                    s[l] = self.pair.1[l] * (w & 255) as f32;
                    b[l] = -(self.pair.0[l] * (w >> 8 & 255) as f32);
                }
            }
            Scales::Whole => {
                for l in 0..LANES {
                    s[l] = ((u32::from_le(lines[0][l]) >> (8 * g)) as i8) as f32;
                }
            }
            Scales::Bf16 => {
                let words = halves(lines, g);
                for i in 0..LANES / 2 {
                    s[2 * i] = widen_bf16(words[i] as u16);
                    s[2 * i + 1] = widen_bf16((words[i] >> 16) as u16);
                }
            }
            Scales::F16Factor => {
                s = f16_halves(lines, g);
                for l in 0..LANES {
                    s[l] *= self.factors[l];
                }
            }
        }
        (s, b)
    }
}

/// The two f16 of each word: high half, low half.
#[inline(always)]
fn f16_pairs(line: &[u32; LANES]) -> (Lanes, Lanes) {
    let (mut high, mut low) = (ZERO, ZERO);
    for l in 0..LANES {
        let w = u32::from_le(line[l]);
        (high[l], low[l]) = (widen_f16((w >> 16) as u16), widen_f16(w as u16));
    }
    (high, low)
}

/// The `g`-th 16 f16.
#[inline(always)]
fn f16_halves(lines: &[[u32; LANES]], g: usize) -> Lanes {
    let (words, mut s) = (halves(lines, g), ZERO);
    for i in 0..LANES / 2 {
        s[2 * i] = widen_f16(words[i] as u16);
        s[2 * i + 1] = widen_f16((words[i] >> 16) as u16);
    }
    s
}

/// The `g`-th 16 half words, two to a word.
#[inline(always)]
fn halves(lines: &[[u32; LANES]], g: usize) -> [u32; LANES / 2] {
    let mut words = [0; LANES / 2];
    for i in 0..LANES / 2 {
        words[i] = u32::from_le(lines[g / 2][g % 2 * (LANES / 2) + i]);
    }
    words
}
