//! Weights as the kernels read them: tiles of 16 outputs, packed once when a matrix is loaded, still quantised.
//!
//! Integer codes: a tile is 16 outputs x 64 K. First the codes, then the scales of the tile's groups:
//!
//! ```text
//! 4 bits: 8 lines of 64 bytes; byte 4 l + j of line p: low nibble  = code[output l][k = 8 p + j]
//!                                                     high nibble = code[output l][k = 8 p + 4 + j]
//! 8 bits: 16 lines;            byte 4 l + j of line p = code[output l][k = 4 p + j]
//! scales, for each group of the tile (16, 32 or 64 along K), 16 outputs of: see `Scales`
//! ```
//!
//! So a line (or its nibbles) is one operand of the 8-bit dot-product instructions, with a 32-bit lane for each output.
//! Codes of 1 to 3 bits take 4 bits, codes of 5 and 6 bits take 8. Groups of 128 repeat their scale. Tiles follow each
//! other along K, then along N. K is filled up with code 0 and scale 0, N with outputs of zeros.
//!
//! Floats: for each 16 outputs, [K][16] values in their own type. Eight-bit floats (E4M3) are followed by their scales,
//! f32 [ceil(K / group)][16].
#![allow(unsafe_code)]

use crate::lanes::{LANES, widen_bf16, widen_f16};
use crate::pool::Pool;
use martlet_device::DeviceError;
use martlet_io::Arena;
use martlet_tensor::scheme::{FP8_BLOCK, fp};
use martlet_tensor::{Float, Matrix, Row, Scheme};

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
            Codes::U8 => 16 * LINE,
        }
    }
}

impl Scales {
    /// Bytes of 16 outputs.
    pub fn bytes(self) -> usize {
        match self {
            Scales::Bf16Pair | Scales::F16Pair => 64,
            Scales::F32Pair => 128,
            Scales::Bf16 | Scales::F16Factor => 32,
        }
    }
}

/// A matrix [rows, cols] in tiles.
pub struct Weights {
    pub rows: usize,
    pub cols: usize,
    pub kind: Kind,
    /// Inputs that share a scale and an exact integer sum: 16, 32 or 64.
    pub group: usize,
    /// Inputs that share a scale of the activations: 32 or 64.
    pub act_group: usize,
    bytes: Arena,
    /// Bytes of 16 outputs.
    strip: usize,
    /// A factor for each output ([`Scales::F16Factor`]; empty elsewhere).
    factors: Vec<f32>,
}

/// `len` copies of `value`, or the error that says there is no memory for them. Zeros come from the system as they are
/// first touched: the KV cache of a long context costs only what sequences fill.
pub fn allocate<T: Copy>(what: &'static str, len: usize, value: T) -> Result<Vec<T>, DeviceError> {
    let bytes = len.saturating_mul(size_of::<T>());
    // `vec!` takes untouched pages for zeros, but ends the program where it gets none: so ask first.
    let asked = Vec::<T>::new().try_reserve_exact(len);
    asked.map_err(|_| DeviceError::Memory { device: crate::NAME, what, bytes })?;
    Ok(vec![value; len])
}

impl Weights {
    /// Packs `m`, on all threads. With `exact` the weights become plain floats, so that activations stay f32 too.
    pub fn pack(m: &Matrix<'_>, exact: bool, pool: &Pool) -> Result<Weights, DeviceError> {
        let (kind, group) = layout(m.scheme(), exact);
        let strip = strip_bytes(kind, group, m.cols());
        let strips = m.rows().div_ceil(LANES);
        let bytes = strips.saturating_mul(strip);
        let no_memory = |_| DeviceError::Memory { device: crate::NAME, what: "weights", bytes };
        let mut w = Weights {
            rows: m.rows(),
            cols: m.cols(),
            kind,
            group,
            act_group: m.scheme().activation_group(),
            bytes: Arena::new(bytes).map_err(no_memory)?,
            strip,
            factors: Vec::new(),
        };
        if kind == Kind::Codes(Codes::E2m1, Scales::F16Factor) {
            w.factors = allocate("weights", strips * LANES, 0.0)?;
            for (r, factor) in w.factors.iter_mut().take(m.rows()).enumerate() {
                *factor = m.row(r).global;
            }
        }
        pool.chunks(&mut w.bytes, strip.max(1), LANES * m.cols(), |i, strip| {
            for r in i * LANES..m.rows().min((i + 1) * LANES) {
                pack_row(kind, group, &m.row(r), r % LANES, m.cols(), strip);
            }
        });
        Ok(w)
    }

    /// Strips of 16 outputs.
    pub fn strips(&self) -> usize {
        self.rows.div_ceil(LANES)
    }

    /// Bytes in memory.
    pub fn bytes(&self) -> usize {
        self.bytes.len() + 4 * self.factors.len()
    }

    /// All tiles of the outputs 16 i to 16 i + 15.
    #[inline(always)]
    pub fn strip(&self, i: usize) -> &[u8] {
        &self.bytes[i * self.strip..(i + 1) * self.strip]
    }

    /// The same as little-endian words.
    #[inline(always)]
    pub fn words(&self, i: usize) -> &[[u32; LANES]] {
        let bytes = self.strip(i);
        // SAFETY: strips are whole lines in memory that is aligned to a page; any 64 bytes are 16 words.
        unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast(), bytes.len() / LINE) }
    }

    /// Factors of the same outputs; 1 where the scheme has none.
    #[inline(always)]
    pub fn factors(&self, i: usize) -> [f32; LANES] {
        let mut f = [1.0; LANES];
        if !self.factors.is_empty() {
            f.copy_from_slice(&self.factors[i * LANES..(i + 1) * LANES]);
        }
        f
    }

    /// Integer code of (output, k), for the kinds that have them.
    pub fn code(&self, n: usize, k: usize) -> i32 {
        let Kind::Codes(codes, scales) = self.kind else { return 0 };
        let tile = codes.bytes() + TILE_K / self.group * scales.bytes();
        let (at, k, lane) = (k / TILE_K * tile, k % TILE_K, n % LANES);
        let tile = &self.strip(n / LANES)[at..];
        let nibble = || (tile[k / 8 * LINE + 4 * lane + k % 4] >> (k & 4)) & 15;
        match codes {
            Codes::U4 => i32::from(nibble()),
            Codes::E2m1 => i32::from(fp::e2m1_halves(nibble())),
            Codes::U8 => i32::from(tile[k / 4 * LINE + 4 * lane + k % 4]),
        }
    }

    /// Scale and bias of (output, k); for floats that have none, 1 and 0.
    pub fn scale(&self, n: usize, k: usize) -> (f32, f32) {
        let (strip, lane) = (self.strip(n / LANES), n % LANES);
        let word = |at: usize| u32::from_le_bytes([strip[at], strip[at + 1], strip[at + 2], strip[at + 3]]);
        let half = |at: usize| u16::from_le_bytes([strip[at], strip[at + 1]]);
        match self.kind {
            Kind::Floats(_) => (1.0, 0.0),
            Kind::E4m3 { group } => {
                let at = self.cols * LANES + 4 * (k / group * LANES + lane);
                (f32::from_bits(word(at)), 0.0)
            }
            Kind::Codes(codes, scales) => {
                let groups = TILE_K / self.group;
                let tile = k / TILE_K * (codes.bytes() + groups * scales.bytes());
                let at = tile + codes.bytes() + k % TILE_K / self.group * scales.bytes();
                match scales {
                    Scales::Bf16Pair => {
                        (widen_bf16((word(at + 4 * lane) >> 16) as u16), widen_bf16(half(at + 4 * lane)))
                    }
                    Scales::F16Pair => (widen_f16((word(at + 4 * lane) >> 16) as u16), widen_f16(half(at + 4 * lane))),
                    Scales::F32Pair => (f32::from_bits(word(at + 4 * lane)), f32::from_bits(word(at + 64 + 4 * lane))),
                    Scales::Bf16 => (widen_bf16(half(at + 2 * lane)), 0.0),
                    Scales::F16Factor => (widen_f16(half(at + 2 * lane)) * self.factors(n / LANES)[lane], 0.0),
                }
            }
        }
    }

    /// The weight of (output, k) as f32, equal to what the scheme's own decoder gives.
    pub fn value(&self, n: usize, k: usize) -> f32 {
        let (strip, at) = (self.strip(n / LANES), k * LANES + n % LANES);
        match self.kind {
            Kind::Floats(float) => float.get(strip, at),
            Kind::E4m3 { .. } => fp::e4m3(strip[at]) * self.scale(n, k).0,
            Kind::Codes(codes, _) => {
                let (s, b) = self.scale(n, k);
                match codes {
                    Codes::U4 | Codes::U8 => s.mul_add(self.code(n, k) as f32, b),
                    Codes::E2m1 => s * self.code(n, k) as f32,
                }
            }
        }
    }
}

/// The tiles of a scheme, and the group of its exact integer sums.
fn layout(scheme: Scheme, exact: bool) -> (Kind, usize) {
    let pair = |scale| match scale {
        Float::F32 => Scales::F32Pair,
        Float::F16 => Scales::F16Pair,
        Float::Bf16 => Scales::Bf16Pair,
    };
    match scheme {
        Scheme::Dense(float) => (Kind::Floats(float), TILE_K),
        _ if exact => (Kind::Floats(Float::F32), TILE_K),
        Scheme::Fp8Block { .. } => (Kind::E4m3 { group: FP8_BLOCK }, TILE_K),
        Scheme::Mxfp8 => (Kind::E4m3 { group: 32 }, TILE_K),
        Scheme::Affine { bits, group, scale } => {
            let codes = if bits <= 4 { Codes::U4 } else { Codes::U8 };
            (Kind::Codes(codes, pair(scale)), (group as usize).min(TILE_K))
        }
        Scheme::Mxfp4 => (Kind::Codes(Codes::E2m1, Scales::Bf16), 32),
        Scheme::Nvfp4 => (Kind::Codes(Codes::E2m1, Scales::F16Factor), 16),
    }
}

/// Bytes of 16 outputs with all their inputs, in whole lines.
fn strip_bytes(kind: Kind, group: usize, cols: usize) -> usize {
    let bytes = match kind {
        Kind::Codes(codes, scales) => cols.div_ceil(TILE_K) * (codes.bytes() + TILE_K / group * scales.bytes()),
        Kind::Floats(float) => cols * LANES * float.size(),
        Kind::E4m3 { group } => cols * LANES + cols.div_ceil(group) * 4 * LANES,
    };
    bytes.next_multiple_of(LINE)
}

/// Writes one row into lane `lane` of its strip, which holds zeros.
fn pack_row(kind: Kind, group: usize, row: &Row<'_>, lane: usize, cols: usize, strip: &mut [u8]) {
    match kind {
        Kind::Floats(float) if row.scheme == Scheme::Dense(float) => {
            let size = float.size();
            for (k, value) in row.codes.chunks_exact(size).enumerate() {
                strip[(k * LANES + lane) * size..][..size].copy_from_slice(value);
            }
        }
        Kind::Floats(_) => {
            let mut values = vec![0.0; cols];
            row.dequantise(&mut values);
            for (k, value) in values.iter().enumerate() {
                strip[(k * LANES + lane) * 4..][..4].copy_from_slice(&value.to_le_bytes());
            }
        }
        Kind::E4m3 { group } => {
            for (k, code) in row.codes.iter().enumerate() {
                strip[k * LANES + lane] = *code;
            }
            for g in 0..cols.div_ceil(group) {
                let s = match row.scheme {
                    Scheme::Fp8Block { scale } => scale.get(row.scales, g),
                    _ => fp::e8m0(row.scales[g]),
                };
                strip[cols * LANES + 4 * (g * LANES + lane)..][..4].copy_from_slice(&s.to_le_bytes());
            }
        }
        Kind::Codes(codes, scales) => {
            let stride = codes.bytes() + TILE_K / group * scales.bytes();
            for (t, tile) in strip.chunks_exact_mut(stride).enumerate() {
                let k0 = t * TILE_K;
                pack_codes(codes, row, k0, cols.min(k0 + TILE_K), lane, tile);
                let groups = tile[codes.bytes()..].chunks_exact_mut(scales.bytes()).enumerate();
                for (g, bytes) in groups.take_while(|(g, _)| k0 + g * group < cols) {
                    pack_scale(scales, row, k0 + g * group, lane, bytes);
                }
            }
        }
    }
}

fn pack_codes(codes: Codes, row: &Row<'_>, from: usize, to: usize, lane: usize, tile: &mut [u8]) {
    let whole_bytes = row.scheme.bits() == 4 && to - from == TILE_K;
    match codes {
        // The common case, eight codes (4 bytes) of the source at a time.
        Codes::U4 | Codes::E2m1 if whole_bytes => {
            for (p, four) in row.codes[from / 2..to / 2].chunks_exact(4).enumerate() {
                let line = &mut tile[p * LINE + 4 * lane..][..4];
                for j in 0..4 {
                    let (low, high) = (four[j / 2] >> (4 * (j % 2)) & 15, four[2 + j / 2] >> (4 * (j % 2)) & 15);
                    line[j] = low | high << 4;
                }
            }
        }
        Codes::U4 | Codes::E2m1 => {
            for k in from..to {
                let i = k - from;
                tile[i / 8 * LINE + 4 * lane + i % 4] |= row.code(k) << (i & 4);
            }
        }
        Codes::U8 => {
            let bytes = row.scheme.bits() == 8;
            for k in from..to {
                let i = k - from;
                tile[i / 4 * LINE + 4 * lane + i % 4] = if bytes { row.codes[k] } else { row.code(k) };
            }
        }
    }
}

/// Scale (and bias) of the group that holds input `k`.
fn pack_scale(scales: Scales, row: &Row<'_>, k: usize, lane: usize, bytes: &mut [u8]) {
    let g = k / row.scheme.group(0).max(1);
    match (scales, row.scheme) {
        (Scales::F32Pair, _) => {
            bytes[4 * lane..][..4].copy_from_slice(&row.scales[4 * g..4 * g + 4]);
            bytes[64 + 4 * lane..][..4].copy_from_slice(&row.biases[4 * g..4 * g + 4]);
        }
        (Scales::Bf16Pair | Scales::F16Pair, _) => {
            bytes[4 * lane..][..2].copy_from_slice(&row.biases[2 * g..2 * g + 2]);
            bytes[4 * lane + 2..][..2].copy_from_slice(&row.scales[2 * g..2 * g + 2]);
        }
        // 2^(e - 128) as bf16: all its values are exact there, subnormal ones included.
        (Scales::Bf16, _) => {
            let half = fp::e8m0(row.scales[g]) * 0.5;
            bytes[2 * lane..][..2].copy_from_slice(&((half.to_bits() >> 16) as u16).to_le_bytes());
        }
        // Half of any E4M3 value is exact in f16.
        (Scales::F16Factor, _) => {
            let mut half = Vec::with_capacity(2);
            Float::F16.put(fp::e4m3(row.scales[g]) * 0.5, &mut half);
            bytes[2 * lane..][..2].copy_from_slice(&half);
        }
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::testing::{Random, every_scheme, random_matrix};

    #[test]
    fn zeros_cost_no_memory_until_they_are_written() {
        let resident = || martlet_io::memory::peak_resident().expect("the system tells");
        let before = resident();
        let zeros = allocate::<u16>("keys and values", 512 << 20, 0).expect("a reservation of 1 GiB");
        assert!(zeros[zeros.len() - 1] == 0 && resident() < before + (512 << 20));
    }

    #[test]
    fn packed_weights_are_the_stored_ones() {
        let pool = Pool::new(2).unwrap();
        for scheme in every_scheme() {
            for (rows, cols) in [(1, 128), (16, 128), (37, 384), (5, 64), (130, 320), (3, 160), (18, 96)] {
                if !scheme.fits(cols) {
                    continue;
                }
                let stored = random_matrix(&mut Random::new(cols as u64), scheme, rows, cols);
                let want = stored.view().dequantise();
                for exact in [false, true] {
                    let w = Weights::pack(&stored.view(), exact, &pool).unwrap();
                    for (i, want) in want.iter().enumerate() {
                        let got = w.value(i / cols, i % cols);
                        assert_eq!(got.to_bits(), want.to_bits(), "{scheme} {rows}x{cols} at {i}: {got} {want}");
                    }
                }
            }
        }
    }
}
