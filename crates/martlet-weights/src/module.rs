//! Modules: a weight tensor with the scales and biases that belong to it, and the scheme they make.

use crate::error::Problem;
use crate::gguf::Repack;
use crate::mlx::{Packed, Settings};
use crate::names::{input_width, strip_prefix};
use crate::source::Source;
use martlet_tensor::scheme::FP8_BLOCK;
use martlet_tensor::tiles::{Layout, Tiles};
use martlet_tensor::{Dtype, Float, Matrix, Part, Scheme};
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};

/// MLX stores the nvfp4 scale of a whole tensor as its largest magnitude: 448 (E4M3) * 6 (E2M1) times the factor.
const NVFP4_GLOBAL: f32 = 448.0 * 6.0;

/// A weight and what belongs to it; tensors are indices into [`Source::tensors`].
#[derive(Debug)]
pub(crate) struct Module {
    /// Name of the weight without prefix.
    pub name: String,
    pub weight: usize,
    pub scales: Option<usize>,
    pub biases: Option<usize>,
    pub global: Option<usize>,
    /// `None` where the elements are not weights (I64, U8).
    pub scheme: Option<Scheme>,
    /// In weights, not in packed words.
    pub shape: Vec<usize>,
    /// Rewritten when first used (GGUF), and then of `scheme`.
    pub repack: Option<Repack>,
    /// Stored in tiles (packs).
    pub tiles: Option<Layout>,
}

/// Rows and columns of a tensor as a matrix: a stack [E, out, in] has E * out rows, a kernel of more dimensions one
/// row for each output.
pub(crate) fn rows_cols(shape: &[usize]) -> (usize, usize) {
    match shape {
        [] => (1, 1),
        [outputs, _, _, _, ..] => (*outputs, shape[1..].iter().product()),
        [rows @ .., cols] => (rows.iter().product(), *cols),
    }
}

/// Groups all tensors of `source` into modules, sorted by name. Collects what does not fit together.
pub(crate) fn modules(source: &Source, settings: &Settings, config: &Value) -> (Vec<Module>, Vec<Problem>) {
    let mut problems = Vec::new();
    let mut names: BTreeMap<String, usize> = BTreeMap::new();
    for (i, t) in source.tensors.iter().enumerate() {
        let name = strip_prefix(&t.name);
        if let Some(other) = names.insert(name, i) {
            let other = &source.tensors[other].name;
            problems.push(source.problem(t, format!("is the same as {other} without the prefixes")));
        }
    }
    let companions = companions(&names);
    let mut modules = Vec::new();
    for (name, &weight) in &names {
        if companions.contains_key(name.as_str()) {
            continue;
        }
        if let Some(of) = orphan(name) {
            let text = format!("belongs to {of}.weight, which is not there");
            problems.push(source.problem(&source.tensors[weight], text));
            continue;
        }
        let get = |suffix: &str| names.get(&format!("{}{suffix}", base(name))).copied();
        let fp8 = names.get(&format!("{name}_scale_inv")).copied();
        let mut module = Module {
            name: name.clone(),
            weight,
            scales: fp8.or_else(|| get(".scales")),
            biases: get(".biases"),
            global: get(".global_scale"),
            scheme: None,
            repack: None,
            tiles: None,
            shape: source.tensors[weight].shape.clone(),
        };
        match resolve(&mut module, source, settings, config, fp8.is_some()) {
            Ok(()) => modules.push(module),
            Err(what) => problems.push(source.problem(&source.tensors[weight], what)),
        }
    }
    (modules, problems)
}

fn base(name: &str) -> &str {
    name.strip_suffix(".weight").unwrap_or(name)
}

/// Tensors that belong to the weight of another name.
fn companions(names: &BTreeMap<String, usize>) -> HashMap<&str, ()> {
    let belongs = |name: &&str| {
        let of_weight =
            |suffix: &str| name.strip_suffix(suffix).is_some_and(|b| names.contains_key(&format!("{b}.weight")));
        let of_fp8 = name.strip_suffix("_scale_inv").is_some_and(|b| names.contains_key(b));
        [".scales", ".biases", ".global_scale"].into_iter().any(of_weight) || of_fp8
    };
    names.keys().map(String::as_str).filter(belongs).map(|n| (n, ())).collect()
}

/// The module whose weight is missing, for the scales or biases of one.
fn orphan(name: &str) -> Option<&str> {
    [".scales", ".biases", ".global_scale", ".weight_scale_inv"]
        .into_iter()
        .find_map(|suffix| name.strip_suffix(suffix))
}

/// Finds the scheme of a module and checks that its tensors fit together.
fn resolve(m: &mut Module, source: &Source, settings: &Settings, config: &Value, fp8: bool) -> Result<(), String> {
    let weight = &source.tensors[m.weight];
    match weight.dtype {
        Dtype::U32 => packed(m, source, settings, config),
        Dtype::F8E4m3 if fp8 => fp8_blocks(m, source),
        Dtype::F8E4m3 => Err("is F8_E4M3, but has no weight_scale_inv beside it".into()),
        dtype => {
            if m.scales.is_some() || m.biases.is_some() || m.global.is_some() {
                return Err(format!("is {dtype:?} and not packed, but has scales or biases beside it"));
            }
            if let Some(Some(setting)) = settings.named(base(&m.name)) {
                return Err(format!("is {dtype:?}, but config.json says {setting}"));
            }
            m.scheme = dtype.float().map(Scheme::Dense);
            Ok(())
        }
    }
}

fn packed(m: &mut Module, source: &Source, settings: &Settings, config: &Value) -> Result<(), String> {
    let weight = &source.tensors[m.weight];
    let Some(scales) = m.scales.map(|i| &source.tensors[i]) else {
        return Err("is packed (U32), but has no scales beside it".into());
    };
    let outer = |shape: &[usize]| shape.split_last().map(|(_, outer)| outer.to_vec());
    if outer(&scales.shape) != outer(&weight.shape) || outer(&weight.shape).is_none() {
        let (found, of) = (&scales.shape, &weight.shape);
        return Err(format!("has shape {of:?}, but its scales have {found:?}"));
    }
    if let Some(biases) = m.biases.map(|i| &source.tensors[i])
        && (&biases.shape, biases.dtype) != (&scales.shape, scales.dtype)
    {
        let (a, b) = (&biases.shape, &scales.shape);
        let (c, d) = (biases.dtype, scales.dtype);
        return Err(format!("has biases of {a:?} {c:?}, but scales of {b:?} {d:?}"));
    }
    let scheme = settings.scheme(&Packed {
        module: base(&m.name),
        weight: &weight.shape,
        scales: &scales.shape,
        scale_dtype: scales.dtype,
        biases: m.biases.is_some(),
        width: input_width(&m.name, config),
    })?;
    if let Some(global) = m.global.map(|i| &source.tensors[i]) {
        let values: usize = global.shape.iter().product();
        let stack = if weight.shape.len() == 3 { weight.shape[0] } else { 1 };
        if scheme != Scheme::Nvfp4 || global.dtype != Dtype::F32 || (values != 1 && values != stack) {
            let (shape, dtype) = (&global.shape, global.dtype);
            return Err(format!("is {scheme} and has a global_scale of {shape:?} {dtype:?}"));
        }
    }
    let groups = scales.shape.last().copied().unwrap_or(0);
    let cols = groups * scheme.group(0);
    if let Some(last) = m.shape.last_mut() {
        *last = cols;
    }
    m.scheme = Some(scheme);
    Ok(())
}

fn fp8_blocks(m: &mut Module, source: &Source) -> Result<(), String> {
    let Some(scales) = m.scales.map(|i| &source.tensors[i]) else {
        return Err("has no weight_scale_inv".into());
    };
    let scale = match scales.dtype {
        Dtype::F32 => Float::F32,
        Dtype::Bf16 => Float::Bf16,
        dtype => return Err(format!("has a weight_scale_inv of {dtype:?}, expected F32 or BF16")),
    };
    let expected: Vec<usize> = match m.shape.as_slice() {
        [rows, cols] => vec![rows.div_ceil(FP8_BLOCK), cols.div_ceil(FP8_BLOCK)],
        [e, rows, cols] => vec![*e, rows.div_ceil(FP8_BLOCK), cols.div_ceil(FP8_BLOCK)],
        shape => {
            return Err(format!("is F8_E4M3 of shape {shape:?}, expected a matrix or a stack of them"));
        }
    };
    if scales.shape != expected {
        let (shape, found) = (&m.shape, &scales.shape);
        return Err(format!(
            "of shape {shape:?} has a weight_scale_inv of {found:?}, expected {expected:?} (blocks of 128 x 128)"
        ));
    }
    m.scheme = Some(Scheme::Fp8Block { scale });
    Ok(())
}

impl Module {
    /// The stored matrix; a vector is one row. Fails when the elements are not weights.
    pub fn matrix<'a>(&'a self, source: &'a Source) -> Result<Matrix<'a>, Problem> {
        let weight = &source.tensors[self.weight];
        let Some(scheme) = self.scheme else {
            return Err(source.problem(weight, format!("holds {:?}, not weights", weight.dtype)));
        };
        let (rows, cols) = rows_cols(&self.shape);
        let misfit = |e: martlet_tensor::ShapeError| source.problem(weight, e.to_string());
        if let Some(layout) = self.tiles {
            let bytes = source.shared(self.weight);
            let bytes = bytes.ok_or_else(|| source.problem(weight, "lies beyond the end of its file"))?;
            return Ok(Matrix::tiled(scheme, Tiles::new(layout, &bytes).map_err(misfit)?));
        }
        if let Some(pool) = source.pool_of(self.weight) {
            let units = if self.shape.len() == 3 { self.shape[0] } else { 1 };
            return pool.matrix(&weight.name, scheme, rows, cols, units).map_err(misfit);
        }
        if let Some(repack) = &self.repack {
            let first = repack.cell.get().is_none();
            let planes = repack.planes(source.bytes(self.weight), rows, cols);
            let planes = planes.map_err(|what| source.problem(weight, what))?;
            if first {
                source.rewritten.add(planes.codes.len() + planes.scales.len() + planes.biases.len());
            }
            let part = Part::new(rows, &planes.codes, &planes.scales, &planes.biases);
            return Matrix::new(scheme, cols, vec![part]).map_err(misfit);
        }
        let bytes = |t: Option<usize>| t.map_or(&[][..], |t| source.bytes(t));
        let (codes, scales, biases) = (source.bytes(self.weight), bytes(self.scales), bytes(self.biases));
        let global = bytes(self.global);
        // Each expert has scale blocks, or a factor, of its own.
        let each = matches!(scheme, Scheme::Fp8Block { .. }) || global.len() > 4;
        let pieces = if each && self.shape.len() == 3 { self.shape[0] } else { 1 };
        let parts = (0..pieces).map(|i| {
            let cut = |bytes: &'a [u8]| &bytes[bytes.len() / pieces * i..bytes.len() / pieces * (i + 1)];
            let mut part = Part::new(rows / pieces, cut(codes), cut(scales), cut(biases));
            if !global.is_empty() {
                part.global = Float::F32.get(global, i.min(global.len() / 4 - 1)) / NVFP4_GLOBAL;
            }
            part
        });
        Matrix::new(scheme, cols, parts.collect()).map_err(misfit)
    }

    /// All stored tensors of the module.
    pub fn tensors(&self) -> impl Iterator<Item = usize> {
        [Some(self.weight), self.scales, self.biases, self.global].into_iter().flatten()
    }

    /// Stored bytes, scales and biases included.
    pub fn bytes(&self, source: &Source) -> usize {
        self.tensors().map(|t| source.tensors[t].range.len()).sum()
    }
}

#[cfg(test)]
mod tests;
