//! The block types of ggml, as GGUF files hold them.
//!
//! A row is a run of blocks of 32 or 256 weights, each with its scales inside. A block is taken apart, not requantised:
//! [`BlockType::scheme`] says the planar scheme in which [`BlockType::planes`] writes the same numbers. All types but
//! MXFP4 are affine with scales and biases that are exact in f16 or f32; the commonest have schemes of their own, which
//! take less memory.
//!
//! | type | planar scheme | value |
//! | --- | --- | --- |
//! | Q4_0, Q5_0, Q8_0 | symmetric 4, 5, 8 bits, groups of 32, f16 | d * (code - 8, 16, 128) |
//! | Q4_1, Q5_1 | affine 4, 5 bits, groups of 32, f16 | d * code + m |
//! | Q2_K | affine 2 bits, groups of 16, f32 | (d * s) * code - dmin * m |
//! | Q3_K | affine 3 bits, groups of 16, f32 | (d * s) * (code - 4) |
//! | Q6_K | K-quant 6 bits, groups of 16 | (d * s) * (code - 32) |
//! | Q4_K, Q5_K | K-quant 4, 5 bits, groups of 32 | (d * s) * code - dmin * m |
//! | IQ4_NL, IQ4_XS | affine 8 bits, groups of 32, f16 or f32 | s * level(code), levels are whole numbers of 8 bits |
//! | IQ1_S | affine 2 bits, groups of 32, f32 | (d * s) * (level - 1 + 1/8 or - 1/8) |
//! | IQ1_M | affine 4 bits, groups of 16, f32 | the same, the sum in eighths as (2 code - 9) |
//! | IQ2_XXS; IQ2_XS, IQ2_S | affine 8 bits, groups of 32; 16, f32 | (d * s) * +-level, levels of 6 bits |
//! | IQ3_XXS | affine 6 bits, groups of 32, f32 | (d * s) * +-level, levels of 5 bits |
//! | IQ3_S | affine 4 bits, groups of 32, f32 | (d * s) * (2 code - 15) |
//! | TQ1_0, TQ2_0 | affine 2 bits, groups of 128, f16 | d * (code - 1) |
//! | MXFP4 | mxfp4 | 2^(e - 127) * E2M1 |
//!
//! The products above are exact in f32 (11 bits of d times at most 8 of s, times at most 7 of the code), so a fused
//! multiply-add of scale, code and bias rounds as often as the formula does: once where it has a sum, else never.
//! The levels of IQ4 take 8 bits a weight instead of 4, those of IQ2 8 instead of 3: the price of having no scheme with
//! a table of its own.

mod grids;
mod iq1;
mod iq2;
mod iq3;
mod iq4;
mod k;
mod legacy;
mod ternary;

use super::Scheme;
use super::affine::BitWriter;
use super::{fp, kquant};
use crate::Float;
use half::f16;

/// Weights of the largest block.
const MOST: usize = 256;

/// A ggml type whose blocks are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BlockType {
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2K,
    Q3K,
    Q4K,
    Q5K,
    Q6K,
    Iq1S,
    Iq1M,
    Iq2Xxs,
    Iq2Xs,
    Iq2S,
    Iq3Xxs,
    Iq3S,
    Iq4Nl,
    Iq4Xs,
    Tq1_0,
    Tq2_0,
    Mxfp4,
}

/// Number in files, name, weights and bytes of a block.
const TYPES: [(BlockType, u32, &str, usize, usize); 22] = [
    (BlockType::Q4_0, 2, "Q4_0", 32, 18),
    (BlockType::Q4_1, 3, "Q4_1", 32, 20),
    (BlockType::Q5_0, 6, "Q5_0", 32, 22),
    (BlockType::Q5_1, 7, "Q5_1", 32, 24),
    (BlockType::Q8_0, 8, "Q8_0", 32, 34),
    (BlockType::Q2K, 10, "Q2_K", 256, 84),
    (BlockType::Q3K, 11, "Q3_K", 256, 110),
    (BlockType::Q4K, 12, "Q4_K", 256, 144),
    (BlockType::Q5K, 13, "Q5_K", 256, 176),
    (BlockType::Q6K, 14, "Q6_K", 256, 210),
    (BlockType::Iq1S, 19, "IQ1_S", 256, 50),
    (BlockType::Iq1M, 29, "IQ1_M", 256, 56),
    (BlockType::Iq2Xxs, 16, "IQ2_XXS", 256, 66),
    (BlockType::Iq2Xs, 17, "IQ2_XS", 256, 74),
    (BlockType::Iq2S, 22, "IQ2_S", 256, 82),
    (BlockType::Iq3Xxs, 18, "IQ3_XXS", 256, 98),
    (BlockType::Iq3S, 21, "IQ3_S", 256, 110),
    (BlockType::Iq4Nl, 20, "IQ4_NL", 32, 18),
    (BlockType::Iq4Xs, 23, "IQ4_XS", 256, 136),
    (BlockType::Tq1_0, 34, "TQ1_0", 256, 54),
    (BlockType::Tq2_0, 35, "TQ2_0", 256, 66),
    (BlockType::Mxfp4, 39, "MXFP4", 32, 17),
];

/// One block taken apart: value k = scale of its group * (code k - zero of its group), or where zeros are 0,
/// scale * code k + bias.
struct Block {
    codes: [u8; MOST],
    scales: [f32; MOST / 16],
    /// All 0 in types with zeros.
    biases: [f32; MOST / 16],
    zeros: [f32; MOST / 16],
}

/// A row in the planar form of [`BlockType::scheme`], but for the codes, which have a byte each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Planes {
    pub codes: Vec<u8>,
    pub scales: Vec<u8>,
    pub biases: Vec<u8>,
}

/// A scale of a block that is no finite number, or whose bias is none in the planar scheme.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the scale of block {block} is no finite number, or too large")]
pub struct ScaleError {
    /// Index of the block in its row.
    pub block: usize,
}

impl BlockType {
    /// All of them.
    pub fn all() -> impl Iterator<Item = BlockType> {
        TYPES.iter().map(|t| t.0)
    }

    /// The type of this number in a file.
    pub fn from_number(number: u32) -> Option<BlockType> {
        TYPES.iter().find(|t| t.1 == number).map(|t| t.0)
    }

    fn entry(self) -> (&'static str, usize, usize) {
        let at = TYPES.iter().find(|t| t.0 == self).expect("the table has all types");
        (at.2, at.3, at.4)
    }

    /// As ggml calls it.
    pub fn name(self) -> &'static str {
        self.entry().0
    }

    /// Weights of a block.
    pub fn weights(self) -> usize {
        self.entry().1
    }

    /// Bytes of a block.
    pub fn bytes(self) -> usize {
        self.entry().2
    }

    /// The scheme that holds the same numbers, codes apart from scales and biases.
    pub fn scheme(self) -> Scheme {
        match self {
            BlockType::Q4_0 => Scheme::Symmetric { bits: 4 },
            BlockType::Q5_0 => Scheme::Symmetric { bits: 5 },
            BlockType::Q8_0 => Scheme::Symmetric { bits: 8 },
            BlockType::Q4K => Scheme::KQuant { bits: 4 },
            BlockType::Q5K => Scheme::KQuant { bits: 5 },
            BlockType::Q6K => Scheme::KQuant { bits: 6 },
            _ => self.plain_scheme(),
        }
    }

    /// The same for rows whose columns are moved in pieces of any number of whole groups: no scale has a factor that it
    /// shares with another group.
    pub fn plain_scheme(self) -> Scheme {
        let affine = |bits, group, scale| Scheme::Affine { bits, group, scale };
        match self {
            BlockType::Q4_0 | BlockType::Q5_0 | BlockType::Q8_0 => self.scheme(),
            BlockType::Q4_1 => affine(4, 32, Float::F16),
            BlockType::Q5_1 => affine(5, 32, Float::F16),
            BlockType::Iq4Nl => affine(8, 32, Float::F16),
            BlockType::Q2K => affine(2, 16, Float::F32),
            BlockType::Q3K => affine(3, 16, Float::F32),
            BlockType::Q4K => affine(4, 32, Float::F32),
            BlockType::Q5K => affine(5, 32, Float::F32),
            BlockType::Q6K => affine(6, 16, Float::F32),
            BlockType::Iq1S => affine(2, 32, Float::F32),
            BlockType::Iq1M => affine(4, 16, Float::F32),
            BlockType::Iq2Xs | BlockType::Iq2S => affine(8, 16, Float::F32),
            BlockType::Iq3Xxs => affine(6, 32, Float::F32),
            BlockType::Iq3S => affine(4, 32, Float::F32),
            BlockType::Iq2Xxs | BlockType::Iq4Xs => affine(8, 32, Float::F32),
            BlockType::Tq1_0 | BlockType::Tq2_0 => affine(2, 128, Float::F16),
            BlockType::Mxfp4 => Scheme::Mxfp4,
        }
    }

    /// Takes a block apart. MXFP4 has no scale of this kind and is not called with.
    fn block(self, bytes: &[u8]) -> Block {
        let groups = [0.0; MOST / 16];
        let mut b = Block { codes: [0; MOST], scales: groups, biases: groups, zeros: groups };
        match self {
            BlockType::Q4_0 => legacy::q4_0(bytes, &mut b),
            BlockType::Q4_1 => legacy::q4_1(bytes, &mut b),
            BlockType::Q5_0 => legacy::q5_0(bytes, &mut b),
            BlockType::Q5_1 => legacy::q5_1(bytes, &mut b),
            BlockType::Q8_0 => legacy::q8_0(bytes, &mut b),
            BlockType::Q2K => k::q2(bytes, &mut b),
            BlockType::Q3K => k::q3(bytes, &mut b),
            BlockType::Q4K => k::q4(bytes, &mut b),
            BlockType::Q5K => k::q5(bytes, &mut b),
            BlockType::Q6K => k::q6(bytes, &mut b),
            BlockType::Iq1S => iq1::s(bytes, &mut b),
            BlockType::Iq1M => iq1::m(bytes, &mut b),
            BlockType::Iq2Xxs => iq2::xxs(bytes, &mut b),
            BlockType::Iq2Xs => iq2::xs(bytes, &mut b),
            BlockType::Iq2S => iq2::s(bytes, &mut b),
            BlockType::Iq3Xxs => iq3::xxs(bytes, &mut b),
            BlockType::Iq3S => iq3::s(bytes, &mut b),
            BlockType::Iq4Nl => iq4::nl(bytes, &mut b),
            BlockType::Iq4Xs => iq4::xs(bytes, &mut b),
            BlockType::Tq1_0 => ternary::tq1(bytes, &mut b),
            BlockType::Tq2_0 => ternary::tq2(bytes, &mut b),
            BlockType::Mxfp4 => {}
        }
        b
    }

    /// The values of whole blocks, by the definition of the type. `out` has one value for each weight.
    pub fn dequantise(self, blocks: &[u8], out: &mut [f32]) {
        let group = self.scheme().group(0);
        for (bytes, out) in blocks.chunks_exact(self.bytes()).zip(out.chunks_exact_mut(self.weights())) {
            if self == BlockType::Mxfp4 {
                let scale = fp::e8m0(bytes[0]);
                out.iter_mut().enumerate().for_each(|(k, y)| *y = fp::e2m1(nibble(&bytes[1..], k)) * scale);
                continue;
            }
            let b = self.block(bytes);
            for (k, y) in out.iter_mut().enumerate() {
                let zero = b.zeros[k / group];
                *y = b.scales[k / group] * (b.codes[k] as f32 - zero);
                if zero == 0.0 {
                    *y += b.biases[k / group];
                }
            }
        }
    }

    /// Appends whole blocks in the form of `scheme`, which is one of this type's two.
    pub fn planes(self, blocks: &[u8], scheme: Scheme, out: &mut Planes) -> Result<(), ScaleError> {
        for (block, bytes) in blocks.chunks_exact(self.bytes()).enumerate() {
            let finite = match scheme {
                Scheme::Affine { group, scale, .. } => self.affine_planes(bytes, group as usize, scale, out),
                Scheme::Symmetric { .. } => {
                    let b = self.block(bytes);
                    out.codes.extend(&b.codes[..self.weights()]);
                    Float::F16.put(b.scales[0], &mut out.scales);
                    b.scales[0].is_finite()
                }
                Scheme::KQuant { bits } => {
                    out.codes.extend(self.block(bytes).codes);
                    let whole = k::whole(bytes, bits);
                    out.scales.extend(whole.scales);
                    let factors = &whole.factors[..kquant::factor_bytes(bits)];
                    (0..MOST / kquant::BLOCK).for_each(|_| out.biases.extend(factors));
                    (0..factors.len() / 2).all(|i| half(factors, 2 * i).is_finite())
                }
                _ => {
                    out.scales.push(bytes[0]);
                    out.codes.extend((0..self.weights()).map(|k| nibble(&bytes[1..], k)));
                    bytes[0] != 0xff
                }
            };
            if !finite {
                return Err(ScaleError { block });
            }
        }
        Ok(())
    }

    /// One block; whether its scales and biases are numbers.
    fn affine_planes(self, bytes: &[u8], group: usize, scale: Float, out: &mut Planes) -> bool {
        let b = self.block(bytes);
        out.codes.extend(&b.codes[..self.weights()]);
        (0..self.weights() / group).all(|g| {
            let bias = if b.zeros[g] == 0.0 { b.biases[g] } else { b.scales[g] * -b.zeros[g] };
            scale.put(b.scales[g], &mut out.scales);
            scale.put(bias, &mut out.biases);
            b.scales[g].is_finite() && scale.round(bias).is_finite()
        })
    }
}

/// Appends codes of `bits` bits (1 to 8), one a byte, as the bit stream of a planar row. Whole words only: as many
/// codes as [`Scheme::fits`] allows.
pub fn pack(codes: &[u8], bits: usize, out: &mut Vec<u8>) {
    let mut pack = BitWriter { bytes: out, buffer: 0, filled: 0 };
    codes.iter().for_each(|&c| pack.push(c as u32, bits as u32));
    pack.finish();
}

/// Code `k` of a block of 32 whose low nibbles are the first 16.
fn nibble(bytes: &[u8], k: usize) -> u8 {
    bytes[k % 16] >> (k / 16 * 4) & 15
}

/// Eight signs of which the lowest seven bits are stored: the number of negative ones is even.
fn signs_of(seven: u32) -> u8 {
    let seven = (seven & 127) as u8;
    seven | (seven.count_ones() as u8 & 1) << 7
}

/// The f16 at `at`.
fn half(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

#[cfg(test)]
mod tests;
