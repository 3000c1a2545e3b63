//! Where random weights come from.

use super::Routing;
use crate::error::WeightsError;
use crate::quantise::plan::{How, Item, gate_scheme};
use crate::quantise::write::Put;
use martlet_tensor::scheme::{FP8_BLOCK, fp};
use martlet_tensor::{Float, Matrix, Part, Scheme, ShapeError};
use std::collections::BTreeMap;

/// Bytes of random codes of one scheme, and how many of them one piece of a matrix takes at most (more where a row or a
/// block of rows has more). Larger than any cache that would notice.
const POOL: usize = 8 << 20;
const PIECE: usize = 1 << 20;

/// Pieces begin at multiples of this: no element is cut.
const ALIGN: usize = 64;

/// Codes, scales and biases of one scheme.
#[derive(Debug)]
struct Planes {
    codes: Vec<u8>,
    /// The same scale, and the same bias, again and again.
    scales: Vec<u8>,
    biases: Vec<u8>,
}

/// Random codes for every scheme of a checkpoint.
#[derive(Debug)]
pub(crate) struct Pool {
    seed: u64,
    planes: BTreeMap<String, Planes>,
    /// Of routers: scales and biases of rows of different lengths.
    skewed: Option<Skew>,
}

/// Rows of a router are longer the more often their expert is to be chosen.
#[derive(Debug)]
struct Skew {
    scheme: Scheme,
    /// Bytes of one scale and one bias of each of [`RANKS`] lengths.
    lengths: Vec<(Vec<u8>, Vec<u8>)>,
}

/// Lengths of a router's rows, and how many times longer the longest is than the shortest, as a power of e. So 63 % of
/// choices fall on a layer's top 64 of 256 experts in the shape of 35b-a3b (`martlet trace-experts`); 58 to 72 % are
/// published of trained models. Of the experts of a token the one before had 7 %, not 41 % as in those: random layers
/// leave two tokens nothing in common.
const RANKS: usize = 256;
const SPREAD: f32 = 0.8;

/// splitmix64: small, and with good bits.
struct Rng(u64);

impl Rng {
    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform from -1 to 1.
    fn signed(&mut self) -> f32 {
        2.0 * (self.bits() >> 40) as f32 / (1 << 24) as f32 - 1.0
    }
}

impl Pool {
    /// Codes for `schemes`, so that weights have a deviation of 1 / sqrt(hidden).
    pub fn new(seed: u64, hidden: usize, schemes: impl Iterator<Item = Scheme>, routing: Routing) -> Pool {
        let deviation = 1.0 / (hidden.max(1) as f32).sqrt();
        let skewed = (routing == Routing::Skewed).then(|| Skew::new(deviation));
        let mut planes = BTreeMap::new();
        for scheme in schemes {
            planes.entry(scheme.to_string()).or_insert_with(|| Planes::new(seed, scheme, deviation));
        }
        Pool { seed, planes, skewed }
    }

    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Whether rows of `cols` weights are short enough.
    pub fn check(&self, scheme: Scheme, cols: usize) -> Result<(), String> {
        let piece = piece_rows(scheme, cols) * scheme.code_bytes(cols);
        match piece <= POOL / 2 {
            true => Ok(()),
            false => Err(format!("rows of {cols} weights are too long for random weights")),
        }
    }

    /// The matrix that is stored as the tensor `name`; `units` are the experts of a stack, 1 of a matrix.
    pub fn matrix(
        &self,
        name: &str,
        scheme: Scheme,
        rows: usize,
        cols: usize,
        units: usize,
    ) -> Result<Matrix<'_>, ShapeError> {
        Matrix::new(scheme, cols, self.parts(name, scheme, rows, cols, units))
    }

    fn parts(&self, name: &str, scheme: Scheme, rows: usize, cols: usize, units: usize) -> Vec<Part<'_>> {
        let Some(planes) = self.planes.get(&scheme.to_string()) else { return Vec::new() };
        let mut rng = Rng(self.seed ^ hash(name));
        if let Some(skew) = self.skewed.as_ref().filter(|s| is_router(name) && s.fits(scheme, cols)) {
            return skew.parts(planes, &mut rng, rows, cols);
        }
        let most = piece_rows(scheme, cols);
        // A block of rows that share scales ends with its expert.
        let units = if matches!(scheme, Scheme::Fp8Block { .. }) { units.max(1) } else { 1 };
        let mut parts = Vec::new();
        for _ in 0..units {
            let mut left = rows / units;
            while left > 0 {
                let rows = left.min(most);
                left -= rows;
                let len = rows * scheme.code_bytes(cols);
                let start = rng.bits() as usize % ((POOL - len) / ALIGN + 1) * ALIGN;
                let scale_rows = if let Scheme::Fp8Block { .. } = scheme { rows.div_ceil(FP8_BLOCK) } else { rows };
                let scales = &planes.scales[..scale_rows * scheme.scale_bytes(cols)];
                let biases = &planes.biases[..rows * scheme.bias_bytes(cols)];
                parts.push(Part::new(rows, &planes.codes[start..start + len], scales, biases));
            }
        }
        parts
    }

    /// The tensors of a matrix, in the order of [`Item::tensors`].
    pub fn write(&self, item: &Item, scheme: Scheme, put: Put<'_>) -> Result<(), WeightsError> {
        let (rows, cols) = crate::module::rows_cols(&item.shape);
        let units = if item.shape.len() == 3 { item.shape[0] } else { 1 };
        let Some((name, ..)) = item.tensors().into_iter().next() else { return Ok(()) };
        let parts = self.parts(&name, scheme, rows, cols, units);
        parts.iter().try_for_each(|p| put(p.codes))?;
        parts.iter().try_for_each(|p| put(p.scales))?;
        parts.iter().try_for_each(|p| put(p.biases))
    }

    /// The bytes of a small tensor: what such tensors hold in trained models, roughly.
    pub fn vector(&self, item: &Item) -> Vec<u8> {
        let How::Plain(float) = item.how else { return Vec::new() };
        let (middle, deviation) = match item.name.as_str() {
            n if n.ends_with("A_log") => (0.5, 0.5),
            n if n.ends_with("dt_bias") => (0.0, 0.7),
            n if n.ends_with("conv1d.weight") => (0.0, 0.5),
            _ => (1.0, 0.2),
        };
        let mut rng = Rng(self.seed ^ hash(&item.name));
        let mut bytes = Vec::new();
        (0..item.shape.iter().product::<usize>())
            .for_each(|_| float.put(middle + deviation * rng.signed(), &mut bytes));
        bytes
    }
}

impl Skew {
    fn new(deviation: f32) -> Skew {
        let scheme = gate_scheme(Float::Bf16);
        let length = |rank: usize| (SPREAD * (0.5 - rank as f32 / (RANKS - 1) as f32)).exp();
        let of = |rank| {
            let (scale, bias) = constants(scheme, deviation * length(rank));
            (scale.repeat(PIECE / RANKS), bias.repeat(PIECE / RANKS))
        };
        Skew { scheme, lengths: (0..RANKS).map(of).collect() }
    }

    fn fits(&self, scheme: Scheme, cols: usize) -> bool {
        self.scheme == scheme && self.lengths.iter().all(|(scales, _)| scheme.scale_bytes(cols) <= scales.len())
    }

    /// Each row has a length of its own; which expert has which differs from layer to layer.
    fn parts<'a>(&'a self, planes: &'a Planes, rng: &mut Rng, rows: usize, cols: usize) -> Vec<Part<'a>> {
        let mut order: Vec<usize> = (0..rows).collect();
        (1..rows).rev().for_each(|i| order.swap(i, rng.bits() as usize % (i + 1)));
        let (code, scale, bias) =
            (self.scheme.code_bytes(cols), self.scheme.scale_bytes(cols), self.scheme.bias_bytes(cols));
        let row = |place: usize| {
            let start = rng.bits() as usize % ((POOL - code) / ALIGN + 1) * ALIGN;
            let (scales, biases) = &self.lengths[place * RANKS / rows];
            Part::new(1, &planes.codes[start..start + code], &scales[..scale], &biases[..bias])
        };
        order.into_iter().map(row).collect()
    }
}

/// Whether a stored tensor, or the module that it is part of, is a router.
fn is_router(name: &str) -> bool {
    name.trim_end_matches(".weight").ends_with("mlp.gate")
}

/// Rows of one piece: whole blocks where rows share scales.
fn piece_rows(scheme: Scheme, cols: usize) -> usize {
    let fits = (PIECE / scheme.code_bytes(cols).max(1)).max(1);
    match scheme {
        Scheme::Fp8Block { .. } => fits.next_multiple_of(FP8_BLOCK),
        _ => fits,
    }
}

fn hash(name: &str) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&blake3::hash(name.as_bytes()).as_bytes()[..8]);
    u64::from_le_bytes(bytes)
}

impl Planes {
    fn new(seed: u64, scheme: Scheme, deviation: f32) -> Planes {
        let mut rng = Rng(seed ^ hash(&scheme.to_string()));
        let mut codes = Vec::with_capacity(POOL);
        while codes.len() < POOL {
            match scheme {
                // Uniform: sqrt(3) times as wide as it deviates.
                Scheme::Dense(float) => float.put(3f32.sqrt() * deviation * rng.signed(), &mut codes),
                _ => codes.extend(rng.bits().to_le_bytes()),
            }
        }
        if matches!(scheme, Scheme::Fp8Block { .. } | Scheme::Mxfp8) {
            // The two codes of E4M3 that are no numbers become their neighbours.
            codes.iter_mut().filter(|c| **c & 0x7f == 0x7f).for_each(|c| *c -= 1);
        }
        let (scale, bias) = constants(scheme, deviation);
        // No scheme has more bytes of scales than of codes.
        Planes { codes, scales: again(&scale), biases: again(&bias) }
    }
}

fn again(bytes: &[u8]) -> Vec<u8> {
    if bytes.is_empty() { Vec::new() } else { bytes.repeat(POOL / 2 / bytes.len()) }
}

/// Bytes of the one scale and the one bias that give random codes a deviation.
fn constants(scheme: Scheme, deviation: f32) -> (Vec<u8>, Vec<u8>) {
    let float = |float: Float, value: f32| {
        let mut bytes = Vec::new();
        float.put(value, &mut bytes);
        bytes
    };
    match scheme {
        Scheme::Dense(_) => (Vec::new(), Vec::new()),
        Scheme::Affine { bits, scale, .. } => {
            let last = ((1u32 << bits) - 1) as f32;
            // Of whole numbers from 0 to `last`.
            let step = deviation / ((last * (last + 2.0)) / 12.0).sqrt();
            (float(scale, step), float(scale, -step * last / 2.0))
        }
        // Not written by safetensors files, and so not made.
        Scheme::Symmetric { .. } | Scheme::KQuant { .. } => (Vec::new(), Vec::new()),
        Scheme::Fp8Block { scale } => (float(scale, deviation / spread(fp::e4m3, 256)), Vec::new()),
        Scheme::Mxfp8 => (vec![exponent(deviation / spread(fp::e4m3, 256))], Vec::new()),
        Scheme::Mxfp4 => (vec![exponent(deviation / spread(fp::e2m1, 16))], Vec::new()),
        Scheme::Nvfp4 => (vec![fp::to_e4m3(deviation / spread(fp::e2m1, 16)).max(1)], Vec::new()),
    }
}

/// Root of the mean square of all codes that are numbers.
fn spread(value: fn(u8) -> f32, codes: usize) -> f32 {
    let squares: Vec<f32> = (0..codes).map(|c| value(c as u8)).filter(|v| v.is_finite()).map(|v| v * v).collect();
    (squares.iter().sum::<f32>() / squares.len() as f32).sqrt()
}

/// E8M0 of the power of two next to `scale`.
fn exponent(scale: f32) -> u8 {
    (127.0 + scale.log2().round()).clamp(0.0, 254.0) as u8
}
