//! Quantisation schemes: how the bytes of one row become numbers.
//!
//! Every scheme quantises along the input dimension (K) of a matrix [out, in], so rows can be cut, joined and
//! reordered without touching a code. One file per scheme; each holds the bytes per group, a scalar decoder and an encoder.

pub mod affine;
pub mod fp;
pub mod ggml;
pub mod kquant;

use crate::{Float, Row};

/// Rows and columns of one scale block of [`Scheme::Fp8Block`].
pub const FP8_BLOCK: usize = 128;

/// How a matrix is stored. Nothing is ever requantised on the way to a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// Plain floats.
    Dense(Float),
    /// E4M3 codes; value = code * scale, one scale for each block of 128 x 128.
    Fp8Block { scale: Float },
    /// MLX affine: value = scale * code + bias; `bits` in 1, 2, 3, 4, 5, 6, 8 and `group` in 32, 64, 128, and 16, which
    /// only blocks of ggml have.
    Affine { bits: u8, group: u16, scale: Float },
    /// Q4_0, Q5_0 and Q8_0 of ggml: value = scale * (code - 2^(bits - 1)), groups of 32, f16 scale.
    Symmetric { bits: u8 },
    /// Q4_K, Q5_K and Q6_K of ggml (4 to 6 bits): scales that are whole numbers times a float ([`kquant`]).
    KQuant { bits: u8 },
    /// E2M1 codes, groups of 32, E8M0 scale.
    Mxfp4,
    /// E4M3 codes, groups of 32, E8M0 scale.
    Mxfp8,
    /// E2M1 codes, groups of 16, E4M3 scale, times one f32 for the whole tensor.
    Nvfp4,
}

impl Scheme {
    /// Weights along K that share one scale; the whole row for plain floats.
    pub fn group(self, cols: usize) -> usize {
        match self {
            Scheme::Dense(_) => cols,
            Scheme::Fp8Block { .. } => FP8_BLOCK,
            Scheme::Affine { group, .. } => group as usize,
            Scheme::Symmetric { .. } | Scheme::Mxfp4 | Scheme::Mxfp8 => 32,
            Scheme::KQuant { bits } => kquant::group(bits),
            Scheme::Nvfp4 => 16,
        }
    }

    /// Bits of one code.
    pub fn bits(self) -> usize {
        match self {
            Scheme::Dense(f) => 8 * f.size(),
            Scheme::Fp8Block { .. } | Scheme::Mxfp8 => 8,
            Scheme::Affine { bits, .. } | Scheme::Symmetric { bits } | Scheme::KQuant { bits } => bits as usize,
            Scheme::Mxfp4 | Scheme::Nvfp4 => 4,
        }
    }

    /// Whether rows of `cols` weights can be stored in this scheme.
    pub fn fits(self, cols: usize) -> bool {
        match self {
            Scheme::Dense(_) | Scheme::Fp8Block { .. } => cols > 0,
            Scheme::KQuant { .. } => cols > 0 && cols.is_multiple_of(kquant::BLOCK),
            _ => cols > 0 && cols.is_multiple_of(self.group(cols)) && (cols * self.bits()).is_multiple_of(32),
        }
    }

    /// Bytes of the codes of one row.
    pub fn code_bytes(self, cols: usize) -> usize {
        (cols * self.bits()).div_ceil(8)
    }

    /// Bytes of the scales of one row. For [`Scheme::Fp8Block`]: of one row of blocks.
    pub fn scale_bytes(self, cols: usize) -> usize {
        match self {
            Scheme::Dense(_) => 0,
            Scheme::Fp8Block { scale } => cols.div_ceil(FP8_BLOCK) * scale.size(),
            Scheme::Affine { group, scale, .. } => cols / group as usize * scale.size(),
            Scheme::Symmetric { .. } => cols / 32 * 2,
            Scheme::KQuant { .. } => cols / 16,
            Scheme::Mxfp4 | Scheme::Mxfp8 => cols / 32,
            Scheme::Nvfp4 => cols / 16,
        }
    }

    /// Bytes of the biases of one row; of a [`Scheme::KQuant`] the factors of its scales.
    pub fn bias_bytes(self, cols: usize) -> usize {
        match self {
            Scheme::Affine { .. } => self.scale_bytes(cols),
            Scheme::KQuant { bits } => cols / kquant::BLOCK * kquant::factor_bytes(bits),
            _ => 0,
        }
    }

    /// Storage per weight, scales and biases included, in bits.
    pub fn bits_per_weight(self) -> f64 {
        match self {
            Scheme::Fp8Block { scale } => 8.0 + (8 * scale.size()) as f64 / (FP8_BLOCK * FP8_BLOCK) as f64,
            Scheme::Dense(f) => 8.0 * f.size() as f64,
            _ => {
                let g = if matches!(self, Scheme::KQuant { .. }) { kquant::BLOCK } else { self.group(0) };
                (g * self.bits() + 8 * (self.scale_bytes(g) + self.bias_bytes(g))) as f64 / g as f64
            }
        }
    }

    /// The group that shares a scale, as the activations' quantisation follows it: 32 for schemes with groups of 32, 16
    /// for affine ones with groups of 16 (a bias multiplies the sum of its group's activations), else 64: also for Q6_K,
    /// whose groups of 16 share a factor and need no bias.
    pub fn activation_group(self) -> usize {
        match self {
            Scheme::Affine { group: 16, .. } => 16,
            Scheme::Affine { group: 32, .. } | Scheme::Symmetric { .. } | Scheme::Mxfp4 | Scheme::Mxfp8 => 32,
            Scheme::KQuant { bits: 4 | 5 } => 32,
            _ => 64,
        }
    }
}

impl std::fmt::Display for Scheme {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = |x: &Float| match x {
            Float::F32 => "f32",
            Float::F16 => "f16",
            Float::Bf16 => "bf16",
        };
        match self {
            Scheme::Dense(x) => f.write_str(name(x)),
            Scheme::Fp8Block { scale } => write!(f, "fp8 128x128 {}", name(scale)),
            Scheme::Affine { bits, group, scale } => write!(f, "affine{bits} g{group} {}", name(scale)),
            Scheme::Symmetric { bits } => write!(f, "q{bits}_0"),
            Scheme::KQuant { bits } => write!(f, "q{bits}_k"),
            Scheme::Mxfp4 => f.write_str("mxfp4"),
            Scheme::Mxfp8 => f.write_str("mxfp8"),
            Scheme::Nvfp4 => f.write_str("nvfp4"),
        }
    }
}

impl std::str::FromStr for Scheme {
    type Err = String;

    /// The reverse of its display.
    fn from_str(text: &str) -> Result<Scheme, String> {
        let float = |name: &str| match name {
            "f32" => Some(Float::F32),
            "f16" => Some(Float::F16),
            "bf16" => Some(Float::Bf16),
            _ => None,
        };
        let affine = |bits: &str, group: &str, scale: &str| {
            let (bits, group) = (bits.parse().ok()?, group.strip_prefix('g')?.parse().ok()?);
            let known = matches!((bits, group), (1..=6 | 8, 16 | 32 | 64 | 128));
            known.then_some(Scheme::Affine { bits, group, scale: float(scale)? })
        };
        let words: Vec<&str> = text.split(' ').collect();
        let found = match words.as_slice() {
            ["q4_0"] => Some(Scheme::Symmetric { bits: 4 }),
            ["q5_0"] => Some(Scheme::Symmetric { bits: 5 }),
            ["q8_0"] => Some(Scheme::Symmetric { bits: 8 }),
            ["q4_k"] => Some(Scheme::KQuant { bits: 4 }),
            ["q5_k"] => Some(Scheme::KQuant { bits: 5 }),
            ["q6_k"] => Some(Scheme::KQuant { bits: 6 }),
            ["mxfp4"] => Some(Scheme::Mxfp4),
            ["mxfp8"] => Some(Scheme::Mxfp8),
            ["nvfp4"] => Some(Scheme::Nvfp4),
            ["fp8", "128x128", scale] => float(scale).map(|scale| Scheme::Fp8Block { scale }),
            [name, group, scale] => name.strip_prefix("affine").and_then(|bits| affine(bits, group, scale)),
            [name] => float(name).map(Scheme::Dense),
            _ => None,
        };
        found.ok_or_else(|| format!("\"{text}\" is no scheme"))
    }
}

/// Widens one row to f32; `out` holds as many values as the row has columns.
pub fn dequantise(row: &Row<'_>, out: &mut [f32]) {
    match row.scheme {
        Scheme::Dense(float) => out.iter_mut().enumerate().for_each(|(k, y)| *y = float.get(row.codes, k)),
        Scheme::Affine { bits, group, scale } => affine::dequantise(row, bits, group as usize, scale, out),
        Scheme::Symmetric { bits } => {
            let middle = f32::from(1u16 << (bits - 1));
            for (k, y) in out.iter_mut().enumerate() {
                let s = Float::F16.get(row.scales, k / 32);
                *y = s.mul_add(f32::from(row.code(k)), -middle * s);
            }
        }
        Scheme::KQuant { bits } => {
            for (k, y) in out.iter_mut().enumerate() {
                let (s, b) = kquant::scale(row, bits, k);
                *y = s.mul_add(f32::from(row.code(k)), b);
            }
        }
        Scheme::Fp8Block { scale } => {
            for (k, y) in out.iter_mut().enumerate() {
                *y = fp::e4m3(row.codes[k]) * scale.get(row.scales, k / FP8_BLOCK);
            }
        }
        Scheme::Mxfp8 => {
            for (k, y) in out.iter_mut().enumerate() {
                *y = fp::e4m3(row.codes[k]) * fp::e8m0(row.scales[k / 32]);
            }
        }
        Scheme::Mxfp4 => {
            for (k, y) in out.iter_mut().enumerate() {
                *y = fp::e2m1(row.code(k)) * fp::e8m0(row.scales[k / 32]);
            }
        }
        Scheme::Nvfp4 => {
            for (k, y) in out.iter_mut().enumerate() {
                *y = fp::e2m1(row.code(k)) * (fp::e4m3(row.scales[k / 16]) * row.global);
            }
        }
    }
}

/// Encoded rows, one after the other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Encoded {
    pub codes: Vec<u8>,
    pub scales: Vec<u8>,
    pub biases: Vec<u8>,
}

/// Appends one row of finite values to `out`. The row must fit the scheme ([`Scheme::fits`]).
///
/// Deterministic, and the same on every machine. [`Scheme::Fp8Block`] has scales of whole blocks of rows and is not
/// encoded, nor are ggml's own schemes: their rows stay away.
pub fn encode(scheme: Scheme, row: &[f32], out: &mut Encoded) {
    match scheme {
        Scheme::Dense(float) => row.iter().for_each(|&v| float.put(v, &mut out.codes)),
        Scheme::Affine { bits, group, scale } => affine::encode(row, bits, group as usize, scale, out),
        Scheme::Mxfp4 => fp::encode_mx(row, 4, out),
        Scheme::Mxfp8 => fp::encode_mx(row, 8, out),
        Scheme::Nvfp4 => fp::encode_nvfp4(row, out),
        Scheme::Fp8Block { .. } | Scheme::Symmetric { .. } | Scheme::KQuant { .. } => {}
    }
}

/// Values with the shape of trained weights: many small ones and a few large ones.
#[cfg(test)]
pub(crate) fn test_values(n: usize) -> Vec<f32> {
    let mut seed = 1u64;
    let mut uniform = || {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (seed >> 40) as f32 / (1u64 << 24) as f32 - 0.5
    };
    (0..n).map(|_| (uniform() + uniform() + uniform() + uniform()) * 0.1 + 0.002).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        let floats = [Float::F32, Float::F16, Float::Bf16];
        let mut all = vec![Scheme::Mxfp4, Scheme::Mxfp8, Scheme::Nvfp4];
        all.extend([4, 5, 8].map(|bits| Scheme::Symmetric { bits }));
        all.extend([4, 5, 6].map(|bits| Scheme::KQuant { bits }));
        all.extend(floats.map(Scheme::Dense));
        all.extend(floats.map(|scale| Scheme::Fp8Block { scale }));
        for bits in [1, 2, 3, 4, 5, 6, 8] {
            for group in [16, 32, 64, 128] {
                all.extend(floats.map(|scale| Scheme::Affine { bits, group, scale }));
            }
        }
        for scheme in all {
            assert_eq!(scheme.to_string().parse(), Ok(scheme));
        }
        for text in
            ["", "affine7 g64 bf16", "affine4 g48 bf16", "affine4 g64", "affine4 64 bf16", "fp8 128x128 u8", "f64"]
        {
            assert!(text.parse::<Scheme>().unwrap_err().contains(text), "{text}");
        }
    }
}
