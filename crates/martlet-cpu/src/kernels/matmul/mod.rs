//! y[n] = sum over k of w[n, k] * x[k], for 16 outputs n at a time and any rows x.
//!
//! bytes: the weights once per block of rows, from memory once per call; activations from L1 or L2.
//! layout: `tiles.rs`. A lane is an output, so no float is ever added across lanes.
//! order: slices of 256 absolute K, from zero each, added to y in index order. Inside a slice:
//!   integer codes   for each exact group G in order (the part of K that shares a scale of the weights and one of the
//!                   activations: 64, or 32 in schemes with groups of 32, or 16 in nvfp4 and affine groups of 16):
//!                   I = sum of code * x code, exact; t = f32(I) * d; a = fma(s, t, a); with biases also
//!                   a = fma(b, ds, a). Affine groups of 128 are two groups of 64 with one scale; mxfp4 and nvfp4 count
//!                   codes double and halve s. E4M3 scales of nvfp4 are multiplied by their f32 factor first, rounded once.
//!   q6_k            for each 64, which share d of the activations: t = fma(f32(scale), f32(I), t) for the four groups of
//!                   16 in order, from zero, where I counts codes less 32; then a = fma(d of the weights, t * d, a).
//!   plain floats    a = fma(w, x, a) for k in order.
//!   E4M3            for each scale group (32, or 128 of block-scaled fp8) in order: g = fma(w, x, g) for k in order,
//!                   from zero; then a = fma(s, g, a).
//! tails: K is filled up with zeros whose scales are zero. Nothing here depends on the number of rows or on threads.

#[cfg(target_arch = "x86_64")]
pub mod amx;
#[cfg(target_arch = "x86_64")]
pub mod avx2;
pub mod codes;
#[cfg(target_arch = "aarch64")]
pub mod dotprod;
mod floats;
#[cfg(target_arch = "aarch64")]
pub mod i8mm;
#[cfg(target_arch = "aarch64")]
pub mod neon;
#[cfg(test)]
mod scalar;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
pub mod vnni;

use crate::acts::{Starts, Tile};
use crate::lanes::Lanes;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use crate::tiles::LINE;
use crate::tiles::{Codes, Kind, Scales, Weights};
use martlet_tensor::Float;

/// Inputs of one slice of the sum.
pub const SLICE: usize = 256;

/// Strips of a product, at most: `vnni.rs` says what two at once are good for.
pub const STRIPS: usize = 2;

/// 16 outputs of some rows, or 32.
#[derive(Clone, Copy)]
pub struct Product<'a> {
    pub w: &'a Weights,
    /// The first strip of 16 outputs.
    pub strip: usize,
    /// How many: up to [`STRIPS`].
    pub strips: usize,
    /// The weights that this thread will read after these: their first lines are asked for early.
    pub next: &'a [u8],
    pub x: Input<'a>,
    /// The rows of x to multiply.
    pub rows: &'a [u32],
}

/// Activations of many rows, as the scheme of the weights wants them.
#[derive(Clone, Copy)]
// Blocks of rows are AMX's.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
pub enum Input<'a> {
    /// Row r is `codes[r * tiles..]`, with `starts` of the same where the weights want them, and `groups` scales from `r * groups` on; see `acts.rs`.
    Codes {
        codes: &'a [Tile],
        blocks: &'a [Tile],
        starts: &'a [Starts],
        d: &'a [f32],
        ds: &'a [f32],
        tiles: usize,
        groups: usize,
    },
    /// Row r is `x[r * stride..]`.
    Floats { x: &'a [f32], stride: usize },
}

/// How an instruction set multiplies integer codes. All ways give the same bits: the sums inside a group are exact.
pub trait CodeProducts {
    /// out[i] = the 16 outputs of row `rows[i]`; of one strip.
    fn rows(p: &Product<'_>, codes: Codes, scales: Scales, out: &mut [Lanes]);

    /// The same for all strips: [strip][row].
    #[inline(always)]
    fn strips(p: &Product<'_>, codes: Codes, scales: Scales, out: &mut [Lanes]) {
        Self::one_by_one(p, codes, scales, out);
    }

    /// Each strip by itself.
    #[inline(always)]
    fn one_by_one(p: &Product<'_>, codes: Codes, scales: Scales, out: &mut [Lanes]) {
        for (i, out) in out.chunks_exact_mut(p.rows.len()).enumerate() {
            Self::rows(&p.one(i), codes, scales, out);
        }
    }
}

impl<'a> Product<'a> {
    /// The `i`-th strip by itself. (For loops: a closure over the strips would be compiled without the features of the
    /// instruction set around it.)
    #[inline(always)]
    fn one(&self, i: usize) -> Product<'a> {
        let strip = self.strip + i;
        let next = if i + 1 < self.strips { self.w.strip(strip + 1) } else { self.next };
        Product { strip, strips: 1, next, ..*self }
    }
}

/// Kinds of codes and scales as constants that a function can be compiled for.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod kinds {
    pub const U4: u8 = 4;
    pub const U5: u8 = 5;
    pub const U6: u8 = 6;
    pub const U8: u8 = 8;
    pub const BF16: u8 = 0;
    pub const F16: u8 = 1;
    pub const F32: u8 = 2;
    pub const MIDDLE: u8 = 3;
    pub const WHOLE_PAIR: u8 = 4;
    pub const WHOLE: u8 = 5;
}
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use kinds::*;

/// How a tile of codes `C` and scales `S` lies whose groups have `L` lines of nibbles or bytes; `tiles.rs` has the layout.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
struct TileOf<const C: u8, const S: u8, const L: usize>;

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
impl<const C: u8, const S: u8, const L: usize> TileOf<C, S, L> {
    /// Lines of nibbles or bytes.
    const CODES: usize = if C == U8 { 16 } else { 8 };
    /// Lines of nibbles to which one line of upper bits belongs.
    const PER_UPPER: usize = if C == U5 { 4 } else { 2 };
    /// Bytes before the scales.
    const SCALES_AT: usize =
        LINE * if C == U5 || C == U6 { Self::CODES + Self::CODES / Self::PER_UPPER } else { Self::CODES };
    const GROUPS: usize = Self::CODES / L;
    /// Whether scales are whole numbers: one line a tile, with a line of factors before every two tiles.
    const WHOLE: bool = S == WHOLE_PAIR || S == WHOLE;
    /// Bytes of the scales of a group.
    const SCALES: usize = match S {
        F32 => 2 * LINE,
        MIDDLE => LINE / 2,
        _ => LINE,
    };
    const BYTES: usize = Self::SCALES_AT + if Self::WHOLE { LINE } else { Self::GROUPS * Self::SCALES };
    /// Groups of activations.
    const ACT_GROUPS: usize = if S == WHOLE { 1 } else { Self::GROUPS };
    /// The code whose value is zero, where that is the same for all scales.
    const MIDDLE: i32 = 1 << (C - 1);

    /// The first byte of the `i`-th strip; panics where strip and activations are not of this kind and of `tiles` tiles.
    fn strip(p: &Product<'_>, i: usize, tiles: usize, groups: usize) -> *const u8 {
        let factors = if Self::WHOLE { tiles.div_ceil(2) * LINE } else { 0 };
        let bytes = p.w.strip(p.strip + i);
        let expected = tiles * Self::BYTES + factors;
        assert!(bytes.len() == expected && groups == tiles * Self::ACT_GROUPS, "activations of another shape");
        bytes.as_ptr()
    }
}

/// The function `$rows::<codes, scales, lines of a group>` for a scheme with biases, none for another.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
macro_rules! for_scheme {
    ($rows:ident, $codes:expr, $group:expr, $scales:expr) => {
        match ($codes, $group, $scales) {
            (Codes::U4, 64, Scales::Bf16Pair) => Some($rows::<U4, BF16, 8> as unsafe fn(&Product<'_>, &mut [Lanes])),
            (Codes::U4, 64, Scales::F16Pair) => Some($rows::<U4, F16, 8> as _),
            (Codes::U4, 32, Scales::Bf16Pair) => Some($rows::<U4, BF16, 4> as _),
            (Codes::U4, 32, Scales::F16Pair) => Some($rows::<U4, F16, 4> as _),
            (Codes::U4, 32, Scales::F32Pair) => Some($rows::<U4, F32, 4> as _),
            (Codes::U4, 32, Scales::F16Middle) => Some($rows::<U4, MIDDLE, 4> as _),
            (Codes::U4, 32, Scales::WholePair) => Some($rows::<U4, WHOLE_PAIR, 4> as _),
            (Codes::U4, 16, Scales::F32Pair) => Some($rows::<U4, F32, 2> as _),
            (Codes::U5, 64, Scales::Bf16Pair) => Some($rows::<U5, BF16, 8> as _),
            (Codes::U5, 64, Scales::F16Pair) => Some($rows::<U5, F16, 8> as _),
            (Codes::U5, 32, Scales::Bf16Pair) => Some($rows::<U5, BF16, 4> as _),
            (Codes::U5, 32, Scales::F16Pair) => Some($rows::<U5, F16, 4> as _),
            (Codes::U5, 32, Scales::F16Middle) => Some($rows::<U5, MIDDLE, 4> as _),
            (Codes::U5, 32, Scales::WholePair) => Some($rows::<U5, WHOLE_PAIR, 4> as _),
            (Codes::U6, 64, Scales::Bf16Pair) => Some($rows::<U6, BF16, 8> as _),
            (Codes::U6, 64, Scales::F16Pair) => Some($rows::<U6, F16, 8> as _),
            (Codes::U6, 32, Scales::Bf16Pair) => Some($rows::<U6, BF16, 4> as _),
            (Codes::U6, 32, Scales::F16Pair) => Some($rows::<U6, F16, 4> as _),
            (Codes::U6, 32, Scales::F32Pair) => Some($rows::<U6, F32, 4> as _),
            (Codes::U6, 16, Scales::Whole) => Some($rows::<U6, WHOLE, 2> as _),
            (Codes::U8, 64, Scales::Bf16Pair) => Some($rows::<U8, BF16, 16> as _),
            (Codes::U8, 64, Scales::F16Pair) => Some($rows::<U8, F16, 16> as _),
            (Codes::U8, 32, Scales::Bf16Pair) => Some($rows::<U8, BF16, 8> as _),
            (Codes::U8, 32, Scales::F16Pair) => Some($rows::<U8, F16, 8> as _),
            (Codes::U8, 32, Scales::F32Pair) => Some($rows::<U8, F32, 8> as _),
            (Codes::U8, 32, Scales::F16Middle) => Some($rows::<U8, MIDDLE, 8> as _),
            (Codes::U8, 16, Scales::F32Pair) => Some($rows::<U8, F32, 4> as _),
            _ => None,
        }
    };
}
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use for_scheme;

/// The code products of a set whose machines have `$features`: all rows, in blocks of so many, by the set's own `block`;
/// where there are just so many as `two` says, by its `block_of_two`, which reads two strips. Other schemes go to plain
/// Rust.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
macro_rules! code_products {
    ($set:ident, $features:literal, [$($rows:literal),*] $(, two: [$($few:literal),*])?) => {
        impl CodeProducts for $set {
            #[inline(always)]
            fn rows(p: &Product<'_>, codes: Codes, scales: Scales, out: &mut [Lanes]) {
                let Some(rows) = for_scheme!(rows, codes, p.w.group, scales) else {
                    return codes::Plain::<true>::rows(p, codes, scales, out);
                };
                // SAFETY: the set is reached only through a `KernelSet` of its own, which exists only where the
                // features do.
                unsafe { rows(p, out) }
            }

            $(#[inline(always)]
            fn strips(p: &Product<'_>, codes: Codes, scales: Scales, out: &mut [Lanes]) {
                match for_scheme!(two, codes, p.w.group, scales) {
                    // SAFETY: as above.
                    Some(two) if p.strips == 2 && [$($few),*].contains(&p.rows.len()) => unsafe { two(p, out) },
                    _ => Self::one_by_one(p, codes, scales, out),
                }
            })?
        }

        $(#[target_feature(enable = $features)]
        fn two<const C: u8, const S: u8, const L: usize>(p: &Product<'_>, out: &mut [Lanes]) {
            match p.rows.len() {
                $($few => block_of_two::<C, S, L, $few>(p, out),)*
                rows => unreachable!("two strips of {rows} rows"),
            }
        })?

        /// `L`: lines of one group.
        #[target_feature(enable = $features)]
        fn rows<const C: u8, const S: u8, const L: usize>(p: &Product<'_>, out: &mut [Lanes]) {
            let mut first = 0;
            $(while p.rows.len() - first >= $rows {
                block::<C, S, L, $rows>(p, first, out);
                first += $rows;
            })*
        }
    };
}
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use code_products;

/// out[s * rows.len() + i] = the 16 outputs of strip `strip + s` of row `rows[i]`.
#[inline(always)]
pub fn matmul<C: CodeProducts>(p: &Product<'_>, out: &mut [Lanes]) {
    assert!(!p.rows.is_empty() && out.len() == p.strips * p.rows.len(), "outputs of another number");
    if let Kind::Codes(codes, scales) = p.w.kind {
        return C::strips(p, codes, scales, out);
    }
    for (i, out) in out.chunks_exact_mut(p.rows.len()).enumerate() {
        let p = &p.one(i);
        match p.w.kind {
            Kind::Codes(..) => {}
            Kind::Floats(Float::F32) => floats::rows::<floats::F32>(p, out),
            Kind::Floats(Float::F16) => floats::rows::<floats::F16>(p, out),
            Kind::Floats(Float::Bf16) => floats::rows::<floats::Bf16>(p, out),
            Kind::E4m3 { group } => floats::scaled_rows(p, group, out),
        }
    }
}
