//! Random matrices for this crate's tests.

use martlet_tensor::{Float, Matrix, Part, Scheme};

/// A small generator (splitmix64): the same numbers on every machine.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Between -1 and 1.
    pub fn unit(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u32 << 23) as f32 - 1.0
    }

    pub fn vec(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| self.unit()).collect()
    }
}

/// A matrix that owns its bytes.
pub struct Stored {
    scheme: Scheme,
    rows: usize,
    cols: usize,
    codes: Vec<u8>,
    scales: Vec<u8>,
    biases: Vec<u8>,
    global: f32,
}

impl Stored {
    pub fn view(&self) -> Matrix<'_> {
        let part = Part { global: self.global, ..Part::new(self.rows, &self.codes, &self.scales, &self.biases) };
        Matrix::new(self.scheme, self.cols, vec![part]).expect("a test's own matrix")
    }
}

pub fn every_scheme() -> Vec<Scheme> {
    let floats = [Float::F32, Float::F16, Float::Bf16];
    let mut all: Vec<Scheme> = floats.into_iter().map(Scheme::Dense).collect();
    all.extend([Scheme::Mxfp4, Scheme::Mxfp8, Scheme::Nvfp4]);
    all.extend([4, 5, 8].map(|bits| Scheme::Symmetric { bits }));
    all.extend([4, 5, 6].map(|bits| Scheme::KQuant { bits }));
    all.extend([Float::F32, Float::Bf16].map(|scale| Scheme::Fp8Block { scale }));
    for bits in [1, 2, 3, 4, 5, 6, 8] {
        for group in [16, 32, 64, 128] {
            all.extend(floats.map(|scale| Scheme::Affine { bits, group, scale }));
        }
    }
    all
}

pub fn random_matrix(r: &mut Random, scheme: Scheme, rows: usize, cols: usize) -> Stored {
    let mut floats = |float: Float, bytes: usize| {
        let mut out = Vec::with_capacity(bytes);
        (0..bytes / float.size()).for_each(|_| float.put(r.unit() * 0.1, &mut out));
        out
    };
    let scale_rows = if matches!(scheme, Scheme::Fp8Block { .. }) { rows.div_ceil(128) } else { rows };
    let scale_bytes = scale_rows * scheme.scale_bytes(cols);
    let (mut scales, mut biases, mut codes) = (Vec::new(), Vec::new(), Vec::new());
    match scheme {
        Scheme::Dense(float) => codes = floats(float, rows * cols * float.size()),
        Scheme::Fp8Block { scale } => scales = floats(scale, scale_bytes),
        Scheme::Affine { scale, .. } => {
            scales = floats(scale, scale_bytes);
            biases = floats(scale, rows * scheme.bias_bytes(cols));
        }
        Scheme::Symmetric { .. } => scales = floats(Float::F16, scale_bytes),
        Scheme::KQuant { .. } => {
            biases = floats(Float::F16, rows * scheme.bias_bytes(cols));
            scales = (0..scale_bytes).map(|_| r.bits() as u8).collect();
        }
        Scheme::Mxfp4 | Scheme::Mxfp8 => scales = (0..scale_bytes).map(|_| 118 + (r.bits() % 8) as u8).collect(),
        Scheme::Nvfp4 => scales = (0..scale_bytes).map(|_| (r.bits() % 100) as u8).collect(),
    }
    if codes.is_empty() {
        let integers = matches!(scheme, Scheme::Affine { .. } | Scheme::Symmetric { .. });
        let nan = |c: u8| scheme.bits() == 8 && !integers && c & 0x7f == 0x7f;
        codes = (0..rows * scheme.code_bytes(cols))
            .map(|_| (r.bits() >> 11) as u8)
            .map(|c| if nan(c) { 0x38 } else { c })
            .collect();
    }
    let global = if scheme == Scheme::Nvfp4 { 0.037 } else { 1.0 };
    Stored { scheme, rows, cols, codes, scales, biases, global }
}
