//! Rows as they are stored into tiles. No number changes.

use super::{Codes, Kind, LANES, LINE, Layout, Scales, TILE_K};
use crate::scheme::{fp, kquant};
use crate::{Float, Matrix, Row, Scheme};

impl Layout {
    /// Writes strip `i` of `m`, which has this layout's shape and scheme and is not in tiles itself, into `strip`, which
    /// holds zeros.
    pub fn pack(&self, m: &Matrix<'_>, i: usize, strip: &mut [u8]) {
        for r in i * LANES..self.rows.min((i + 1) * LANES) {
            self.pack_row(&m.row(r), r % LANES, strip);
        }
    }

    /// The factors of `m`, filled up with zeros to whole strips; empty where the scheme has none.
    pub fn pack_factors(&self, m: &Matrix<'_>) -> Vec<f32> {
        if !self.has_factors() {
            return Vec::new();
        }
        let factor = |r| if r < self.rows { m.row(r).global } else { 0.0 };
        (0..self.strips() * LANES).map(factor).collect()
    }

    fn pack_row(&self, row: &Row<'_>, lane: usize, strip: &mut [u8]) {
        let cols = self.cols;
        match self.kind {
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
                for t in 0..cols.div_ceil(TILE_K) {
                    let (k0, at) = (t * TILE_K, self.tile_at(t));
                    pack_codes(codes, row, k0, cols.min(k0 + TILE_K), lane, &mut strip[at..]);
                    if scales.whole() {
                        pack_whole(row, t, lane, &mut strip[at + codes.bytes()..]);
                        pack_factors(row, t, lane, &mut strip[self.tile_at(t & !1) - LINE..]);
                        continue;
                    }
                    let groups = strip[at + codes.bytes()..].chunks_exact_mut(scales.bytes()).enumerate();
                    for (g, bytes) in groups.take(TILE_K / self.group).take_while(|(g, _)| k0 + g * self.group < cols) {
                        pack_scale(scales, row, k0 + g * self.group, lane, bytes);
                    }
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
        Codes::U5 | Codes::U6 => {
            let upper = if codes == Codes::U5 { 1 } else { 2 };
            for k in from..to {
                let (i, code) = (k - from, row.code(k));
                tile[i / 8 * LINE + 4 * lane + i % 4] |= (code & 15) << (i & 4);
                // Upper bits of as many fours as a byte has room for.
                let (line, four) = (8 + i / 4 / (8 / upper), i / 4 % (8 / upper));
                tile[line * LINE + 4 * lane + i % 4] |= code >> 4 << (four * upper);
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

/// The whole-number scales of tile `t`, four bytes.
fn pack_whole(row: &Row<'_>, t: usize, lane: usize, line: &mut [u8]) {
    line[4 * lane..][..4].copy_from_slice(&row.scales[4 * t..4 * t + 4]);
}

/// Their factors, which tile `t` may share with another.
fn pack_factors(row: &Row<'_>, t: usize, lane: usize, line: &mut [u8]) {
    let (size, block) = (kquant::factor_bytes(row.scheme.bits() as u8), t * TILE_K / kquant::BLOCK);
    line[4 * lane..][..size].copy_from_slice(&row.biases[block * size..(block + 1) * size]);
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
        (Scales::F16Middle, _) => bytes[2 * lane..][..2].copy_from_slice(&row.scales[2 * g..2 * g + 2]),
        // Of a tile, not of a group: `pack_whole`.
        (Scales::WholePair | Scales::Whole, _) => {}
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
