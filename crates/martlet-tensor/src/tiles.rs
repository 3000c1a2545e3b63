//! Tiles: matrices as kernels read them, still quantised. One layout for all instruction sets; packs store it too.
//!
//! Integer codes: a tile is 16 outputs x 64 K. First the codes, then the scales of the tile's groups:
//!
//! ```text
//! 4 bits: 8 lines of 64 bytes; byte 4 l + j of line p: low nibble  = code[output l][k = 8 p + j]
//!                                                     high nibble = code[output l][k = 8 p + 4 + j]
//! 8 bits: 16 lines;            byte 4 l + j of line p = code[output l][k = 4 p + j]
//! 5 bits: the lines of 4 bits, then 2 lines of fifth bits; bit p of byte 4 l + j of line q: that of k = 32 q + 4 p + j
//! 6 bits: the lines of 4 bits, then 4 lines of upper bits; bits 2 p, 2 p + 1 of the same:   those of k = 16 q + 4 p + j
//! scales, for each group of the tile (16, 32 or 64 along K), 16 outputs of: see `Scales`
//! ```
//!
//! So a line (or its nibbles) is one operand of the 8-bit dot-product instructions, with a 32-bit lane for each output.
//! Codes of 1 to 3 bits take 4 bits. Groups of 128 repeat their scale. Tiles follow each other along K, then along N. K is
//! filled up with code 0 and scale 0, N with outputs of zeros. Where scales are whole numbers ([`Scales::whole`]) a line of
//! their factors precedes every two tiles.
//!
//! Floats: for each 16 outputs, [K][16] values in their own type. Eight-bit floats (E4M3) are followed by their scales,
//! f32 [ceil(K / group)][16].
//!
//! All tiles of 16 outputs are a *strip*, of whole lines. Behind the strips of a matrix whose scheme has them lie factors,
//! f32 for each output, filled up to whole strips.

mod pack;

use crate::scheme::{FP8_BLOCK, fp, kquant};
use crate::{Float, Scheme, ShapeError, Shared};
use std::ops::Range;

/// Changes whenever the bytes of some matrix's tiles do. 0: it may still change without notice between releases.
pub const VERSION: u64 = 0;

/// Outputs of a strip.
pub const LANES: usize = 16;
/// Inputs (K) of one tile of integer codes.
pub const TILE_K: usize = 64;
/// One cache line.
pub const LINE: usize = 64;

/// What a tile holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Integer codes with their scales.
    Codes(Codes, Scales),
    Floats(Float),
    /// E4M3 codes, an f32 scale for each 16 outputs and `group` inputs.
    E4m3 {
        group: usize,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codes {
    /// Unsigned, 4 bits.
    U4,
    /// Unsigned, 5 bits.
    U5,
    /// Unsigned, 6 bits.
    U6,
    /// Unsigned, 8 bits.
    U8,
    /// E2M1, 4 bits; a code counts as the integer that is twice its value.
    E2m1,
}

/// Scales of 16 outputs in one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scales {
    /// u32: bf16 scale in the high half, bf16 bias in the low half.
    Bf16Pair,
    /// u32: f16 scale, f16 bias.
    F16Pair,
    /// f32 [16] scales, f32 [16] biases.
    F32Pair,
    /// f16: a scale; the bias is that of a code in the middle, -8, -16 or -128 scales for 4, 5 or 8 bits.
    F16Middle,
    /// u8 scale, u8 minimum; times f16 d and f16 dmin of 128 inputs. The bias is -(dmin * minimum).
    WholePair,
    /// i8 scale; times f16 d of 128 inputs. The bias is -32 scales.
    Whole,
    /// bf16: a power of two, halved because codes count double.
    Bf16,
    /// f16: an E4M3 scale, halved; times the f32 factor of its output.
    F16Factor,
}

impl Codes {
    /// Bytes of the codes of one tile.
    pub fn bytes(self) -> usize {
        match self {
            Codes::U4 | Codes::E2m1 => 8 * LINE,
            Codes::U5 => 10 * LINE,
            Codes::U6 => 12 * LINE,
            Codes::U8 => 16 * LINE,
        }
    }

    /// The middle code.
    pub fn middle(self) -> u8 {
        match self {
            Codes::U4 | Codes::E2m1 => 8,
            Codes::U5 => 16,
            Codes::U6 => 32,
            Codes::U8 => 128,
        }
    }
}

impl Scales {
    /// Bytes of 16 outputs.
    pub fn bytes(self) -> usize {
        match self {
            Scales::Bf16Pair | Scales::F16Pair => 64,
            Scales::F32Pair => 128,
            Scales::Bf16 | Scales::F16Factor | Scales::F16Middle | Scales::WholePair => 32,
            Scales::Whole => 16,
        }
    }

    /// Whether they are whole numbers. Those of a tile are then 4 bytes for each output, group by group, and a line of
    /// factors precedes every two tiles: for each output f16 d, f16 dmin.
    pub fn whole(self) -> bool {
        matches!(self, Scales::WholePair | Scales::Whole)
    }
}

/// How a matrix [rows, cols] lies in tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    pub rows: usize,
    pub cols: usize,
    pub kind: Kind,
    /// Inputs that share a scale and an exact integer sum: 16, 32 or 64.
    pub group: usize,
    /// Bytes of 16 outputs with all their inputs, in whole lines.
    strip: usize,
}

impl Layout {
    /// The tiles of a scheme; with `exact` they are plain floats, so that activations stay f32 too. `None` where the
    /// scheme has no such rows, or the bytes are more than can be addressed.
    pub fn new(scheme: Scheme, exact: bool, rows: usize, cols: usize) -> Option<Layout> {
        let pair = |scale| match scale {
            Float::F32 => Scales::F32Pair,
            Float::F16 => Scales::F16Pair,
            Float::Bf16 => Scales::Bf16Pair,
        };
        let codes = |bits| match bits {
            ..=4 => Codes::U4,
            5 => Codes::U5,
            6 => Codes::U6,
            _ => Codes::U8,
        };
        let (kind, group) = match scheme {
            Scheme::Dense(float) => (Kind::Floats(float), TILE_K),
            _ if exact => (Kind::Floats(Float::F32), TILE_K),
            Scheme::Fp8Block { .. } => (Kind::E4m3 { group: FP8_BLOCK }, TILE_K),
            Scheme::Mxfp8 => (Kind::E4m3 { group: 32 }, TILE_K),
            Scheme::Affine { bits, group, scale } => {
                (Kind::Codes(codes(bits), pair(scale)), (group as usize).min(TILE_K))
            }
            Scheme::Symmetric { bits } => (Kind::Codes(codes(bits), Scales::F16Middle), 32),
            Scheme::KQuant { bits: 6 } => (Kind::Codes(Codes::U6, Scales::Whole), 16),
            Scheme::KQuant { bits } => (Kind::Codes(codes(bits), Scales::WholePair), 32),
            Scheme::Mxfp4 => (Kind::Codes(Codes::E2m1, Scales::Bf16), 32),
            Scheme::Nvfp4 => (Kind::Codes(Codes::E2m1, Scales::F16Factor), 16),
        };
        // Below 2^40 no sum here overflows; no matrix comes near.
        if cols >= 1 << 40 || !scheme.fits(cols) {
            return None;
        }
        let strip = match kind {
            Kind::Codes(codes, scales) => {
                let (tiles, factors) = (cols.div_ceil(TILE_K), if scales.whole() { LINE } else { 0 });
                tiles * (codes.bytes() + TILE_K / group * scales.bytes()) + tiles.div_ceil(2) * factors
            }
            Kind::Floats(float) => cols * LANES * float.size(),
            Kind::E4m3 { group } => cols * LANES + cols.div_ceil(group) * 4 * LANES,
        };
        let layout = Layout { rows, cols, kind, group, strip: strip.next_multiple_of(LINE) };
        let each = layout.strip + 4 * LANES;
        rows.div_ceil(LANES).checked_mul(each).filter(|bytes| *bytes <= isize::MAX as usize)?;
        Some(layout)
    }

    /// Strips of 16 outputs.
    pub fn strips(&self) -> usize {
        self.rows.div_ceil(LANES)
    }

    /// Bytes of one strip.
    pub fn strip_bytes(&self) -> usize {
        self.strip
    }

    /// Bytes of all strips.
    pub fn tile_bytes(&self) -> usize {
        self.strips() * self.strip
    }

    /// Whether each output has a factor of its own.
    pub fn has_factors(&self) -> bool {
        matches!(self.kind, Kind::Codes(_, Scales::F16Factor))
    }

    /// Bytes of strips and factors.
    pub fn bytes(&self) -> usize {
        let factors = if self.has_factors() { 4 * LANES * self.strips() } else { 0 };
        self.tile_bytes() + factors
    }

    /// Where tile `t` begins in a strip of integer codes.
    fn tile_at(&self, t: usize) -> usize {
        let Kind::Codes(codes, scales) = self.kind else { return 0 };
        let factors = if scales.whole() { (t / 2 + 1) * LINE } else { 0 };
        t * (codes.bytes() + TILE_K / self.group * scales.bytes()) + factors
    }

    /// Integer code of (lane, k) in a strip, for the kinds that have them; else 0.
    #[inline]
    pub fn code(&self, strip: &[u8], lane: usize, k: usize) -> i32 {
        let Kind::Codes(codes, _) = self.kind else { return 0 };
        let (tile, k) = (&strip[self.tile_at(k / TILE_K)..], k % TILE_K);
        let byte = |line: usize| tile[line * LINE + 4 * lane + k % 4];
        let nibble = || (byte(k / 8) >> (k & 4)) & 15;
        i32::from(match codes {
            Codes::U4 => nibble(),
            Codes::E2m1 => return i32::from(fp::e2m1_halves(nibble())),
            Codes::U5 => nibble() | (byte(8 + k / 32) >> (k / 4 % 8) & 1) << 4,
            Codes::U6 => nibble() | (byte(8 + k / 16) >> (k / 4 % 4 * 2) & 3) << 4,
            Codes::U8 => byte(k / 4),
        })
    }

    /// Scale and bias of (lane, k) in a strip; for floats that have none, 1 and 0. `factor` is the output's.
    #[inline]
    pub fn scale(&self, strip: &[u8], factor: f32, lane: usize, k: usize) -> (f32, f32) {
        match self.kind {
            Kind::Floats(_) => (1.0, 0.0),
            Kind::E4m3 { group } => {
                (Float::F32.get(&strip[self.cols * LANES + 4 * (k / group * LANES + lane)..], 0), 0.0)
            }
            Kind::Codes(codes, scales) => {
                let (t, g) = (k / TILE_K, k % TILE_K / self.group);
                let all = &strip[self.tile_at(t) + codes.bytes()..];
                let at = if scales.whole() { &all[4 * lane..] } else { &all[g * scales.bytes()..] };
                let factors = || &strip[self.tile_at(t & !1) - LINE + 4 * lane..];
                match scales {
                    Scales::Bf16Pair => (Float::Bf16.get(at, 2 * lane + 1), Float::Bf16.get(at, 2 * lane)),
                    Scales::F16Pair => (Float::F16.get(at, 2 * lane + 1), Float::F16.get(at, 2 * lane)),
                    Scales::F32Pair => (Float::F32.get(at, lane), Float::F32.get(at, LANES + lane)),
                    Scales::F16Middle => {
                        let s = Float::F16.get(at, lane);
                        (s, -f32::from(codes.middle()) * s)
                    }
                    Scales::WholePair => {
                        let [d, min] = [0, 1].map(|i| Float::F16.get(factors(), i));
                        kquant::with_minimum(d, min, &at[2 * g..])
                    }
                    Scales::Whole => kquant::signed(Float::F16.get(factors(), 0), at[g]),
                    Scales::Bf16 => (Float::Bf16.get(at, lane), 0.0),
                    Scales::F16Factor => (Float::F16.get(at, lane) * factor, 0.0),
                }
            }
        }
    }

    /// The weight of (lane, k) in a strip as f32, equal to what the scheme's own decoder gives.
    #[inline]
    pub fn value(&self, strip: &[u8], factor: f32, lane: usize, k: usize) -> f32 {
        match self.kind {
            Kind::Floats(float) => float.get(strip, k * LANES + lane),
            Kind::E4m3 { .. } => fp::e4m3(strip[k * LANES + lane]) * self.scale(strip, factor, lane, k).0,
            Kind::Codes(codes, _) => {
                let ((s, b), code) = (self.scale(strip, factor, lane, k), self.code(strip, lane, k) as f32);
                if codes == Codes::E2m1 { s * code } else { s.mul_add(code, b) }
            }
        }
    }
}

/// Tiles that lie in memory.
#[derive(Clone, Debug)]
pub struct Tiles {
    layout: Layout,
    strips: Shared,
    factors: Shared,
}

impl Tiles {
    /// `bytes` are the strips and factors of `layout`; their number must be just that.
    pub fn new(layout: Layout, bytes: &Shared) -> Result<Tiles, ShapeError> {
        let (rows, expected, found) = (layout.rows, layout.bytes(), bytes.len());
        let parts = || Some((bytes.part(0..layout.tile_bytes())?, bytes.part(layout.tile_bytes()..expected)?));
        match parts() {
            Some((strips, factors)) if found == expected => Ok(Tiles { layout, strips, factors }),
            _ => Err(ShapeError::Bytes { what: "tiles", rows, expected, found }),
        }
    }

    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// All strips, one after the other.
    pub fn strips(&self) -> &Shared {
        &self.strips
    }

    /// A factor for each output, filled up to whole strips; empty where the scheme has none.
    pub fn factors(&self) -> Vec<f32> {
        crate::read_floats(Float::F32, &self.factors)
    }

    /// Strips and factors, in bytes.
    pub fn bytes(&self) -> usize {
        self.layout.bytes()
    }

    /// Rows `range`, which begins with a strip; panics where it does not, or is out of bounds.
    pub(crate) fn slice(&self, range: Range<usize>) -> Tiles {
        assert!(range.start.is_multiple_of(LANES), "tiles can be cut between strips, not at row {}", range.start);
        let layout = Layout { rows: range.len(), ..self.layout };
        let (first, last) = (range.start / LANES, range.end.div_ceil(LANES));
        let cut = |bytes: &Shared, each: usize| bytes.part(first * each..last * each).expect("rows in bounds");
        let factors = if self.layout.has_factors() { 4 * LANES } else { 0 };
        Tiles { layout, strips: cut(&self.strips, self.layout.strip), factors: cut(&self.factors, factors) }
    }

    /// Row `r`, widened.
    pub(crate) fn dequantise_row(&self, r: usize, out: &mut [f32]) {
        let (layout, i, lane) = (&self.layout, r / LANES, r % LANES);
        let strip = &self.strips[i * layout.strip..(i + 1) * layout.strip];
        let factor = if self.layout.has_factors() { Float::F32.get(&self.factors, r) } else { 1.0 };
        out.iter_mut().enumerate().for_each(|(k, y)| *y = layout.value(strip, factor, lane, k));
    }
}
