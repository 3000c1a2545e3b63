//! Random matrices in every scheme.

use super::Random;
use martlet_tensor::scheme::{FP8_BLOCK, kquant};
use martlet_tensor::{Float, Matrix, Part, Scheme};

/// Every scheme that a matrix may come in.
pub fn schemes() -> Vec<Scheme> {
    let floats = [Float::F32, Float::F16, Float::Bf16];
    let mut all = vec![Scheme::Mxfp4, Scheme::Mxfp8, Scheme::Nvfp4];
    all.extend([4, 5, 8].map(|bits| Scheme::Symmetric { bits }));
    all.extend([4, 5, 6].map(|bits| Scheme::KQuant { bits }));
    for scale in floats {
        all.extend([Scheme::Dense(scale), Scheme::Fp8Block { scale }]);
        for bits in [1, 2, 3, 4, 5, 6, 8] {
            // A row may be one group, and is whole words of 32 bits.
            let groups = [16, 32, 64, 128].into_iter().filter(|group| (group * u16::from(bits)).is_multiple_of(32));
            all.extend(groups.map(|group| Scheme::Affine { bits, group, scale }));
        }
    }
    all
}

/// A matrix with its bytes: one part, or several of different origin (lengths, global scales, places in their blocks).
#[derive(Clone, Debug)]
pub struct RandomMatrix {
    scheme: Scheme,
    cols: usize,
    parts: Vec<OwnedPart>,
}

#[derive(Clone, Debug)]
struct OwnedPart {
    rows: usize,
    codes: Vec<u8>,
    scales: Vec<u8>,
    biases: Vec<u8>,
    global: f32,
    block_row: usize,
}

impl OwnedPart {
    fn view(&self) -> Part<'_> {
        let part = Part::new(self.rows, &self.codes, &self.scales, &self.biases);
        Part { global: self.global, block_row: self.block_row, ..part }
    }
}

impl RandomMatrix {
    /// Weights of a deviation near 1 / sqrt(cols), in `parts` parts where there are rows enough.
    pub fn new(scheme: Scheme, rows: usize, cols: usize, parts: usize, random: &mut Random) -> RandomMatrix {
        let parts = parts.clamp(1, rows.max(1));
        let mut left = rows;
        let parts = (0..parts)
            .map(|i| {
                let rows = if i + 1 == parts { left } else { 1 + random.below(left - (parts - i - 1)) };
                left -= rows;
                part(scheme, rows, cols, random)
            })
            .collect();
        RandomMatrix { scheme, cols, parts }
    }

    pub fn view(&self) -> Matrix<'_> {
        let parts = self.parts.iter().map(OwnedPart::view).collect();
        Matrix::new(self.scheme, self.cols, parts).expect("the parts were made for this scheme")
    }

    /// What rounding is measured by, for each weight: |scale * code| + |bias|, which is |w| but for affine schemes.
    pub fn magnitudes(&self) -> Vec<f32> {
        let m = self.view();
        let mut all = m.dequantise();
        for (r, row) in all.chunks_mut(self.cols).enumerate() {
            let stored = m.row(r);
            for (k, w) in row.iter_mut().enumerate() {
                let bias = match self.scheme {
                    Scheme::Affine { group, scale, .. } => scale.get(stored.biases, k / group as usize),
                    Scheme::Symmetric { bits } => {
                        -f32::from(1u16 << (bits - 1)) * Float::F16.get(stored.scales, k / self.scheme.group(0))
                    }
                    Scheme::KQuant { bits } => kquant::scale(&stored, bits, k).1,
                    _ => 0.0,
                };
                *w = (*w - bias).abs() + bias.abs();
            }
        }
        all
    }
}

fn part(scheme: Scheme, rows: usize, cols: usize, random: &mut Random) -> OwnedPart {
    let size = 1.0 / (cols as f32).sqrt();
    let block_row = match scheme {
        Scheme::Fp8Block { .. } => random.below(FP8_BLOCK),
        _ => 0,
    };
    let scale_rows = match scheme {
        Scheme::Fp8Block { .. } => (block_row + rows).div_ceil(FP8_BLOCK),
        _ => rows,
    };
    let mut codes: Vec<u8> = (0..rows * scheme.code_bytes(cols)).map(|_| random.bits() as u8).collect();
    let (mut scales, mut biases) = (Vec::new(), Vec::new());
    let bytes = scale_rows * scheme.scale_bytes(cols);
    match scheme {
        Scheme::Dense(float) => {
            codes.clear();
            (0..rows * cols).for_each(|_| float.put(size * random.normal(), &mut codes));
        }
        Scheme::Fp8Block { scale } => {
            (0..bytes / scale.size()).for_each(|_| scale.put(size * random.between(0.005, 0.02), &mut scales));
        }
        Scheme::Affine { bits, scale, .. } => {
            let half = f32::from((1u16 << bits) - 1) / 2.0;
            for _ in 0..bytes / scale.size() {
                // Both signs occur in checkpoints; the bias puts zero somewhere inside the codes.
                let s = random.pick(&[1.0, -1.0]) * size * random.between(0.5, 2.0) / half;
                scale.put(s, &mut scales);
                scale.put(-s * half * random.between(0.5, 1.5), &mut biases);
            }
        }
        Scheme::Symmetric { bits } => {
            let half = f32::from(1u16 << (bits - 1));
            for _ in 0..bytes / 2 {
                Float::F16.put(random.pick(&[1.0, -1.0]) * size * random.between(0.5, 2.0) / half, &mut scales);
            }
        }
        Scheme::KQuant { bits } => {
            scales = (0..bytes).map(|_| random.bits() as u8 & if bits == 6 { 255 } else { 63 }).collect();
            // d, and dmin where there is one: half the largest code brings the middle to zero.
            let step = size / f32::from(1u16 << (bits - 1)) / 32.0;
            let middle = f32::from(1u16 << (bits - 1));
            for i in 0..rows * scheme.bias_bytes(cols) / 2 {
                let min = bits != 6 && i % 2 == 1;
                Float::F16.put(step * random.between(0.5, 2.0) * if min { middle } else { 1.0 }, &mut biases);
            }
        }
        Scheme::Mxfp4 | Scheme::Mxfp8 => {
            let steps = if scheme == Scheme::Mxfp4 { 3 } else { 9 };
            let exponent = 127 + size.log2() as i32 - steps;
            scales = (0..bytes).map(|_| (exponent + random.below(4) as i32) as u8).collect();
        }
        Scheme::Nvfp4 => scales = (0..bytes).map(|_| 0x28 + random.below(32) as u8).collect(),
    }
    if matches!(scheme, Scheme::Fp8Block { .. } | Scheme::Mxfp8) {
        // The largest code is the one NaN.
        codes.iter_mut().filter(|c| **c & 0x7f == 0x7f).for_each(|c| *c = 0x36);
    }
    let global = if scheme == Scheme::Nvfp4 { size * random.between(0.1, 0.5) } else { 1.0 };
    OwnedPart { rows, codes, scales, biases, global, block_row }
}
