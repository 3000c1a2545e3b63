//! The tensors of GGUF files as modules under the names of the Hugging Face format.
//!
//! What llama.cpp's converter changes, and how it is undone:
//! - norms that multiply by 1 + w are stored as multipliers: [`Layout::Gguf`](crate::Layout) does not add 1 again;
//! - `A_log` is stored as -exp(A_log): its logarithm is taken;
//! - convolutions have no middle dimension, the gate of the shared expert has one dimension;
//! - Qwen3-Next's joint projections are cut (in_proj_qkvz; not in_proj_ba, nor either in the oldest files);
//! - `qwen35` and `qwen35moe` with more value heads than key heads have the value heads in tiled order (all first ones
//!   of each key head, then all second ones, ...) in place of the grouped one: rows are put back by pieces, columns when
//!   a tensor is rewritten. `qwen3next` keeps the grouped order.
//!
//! The query projection keeps its gates where they are.

use super::files::Files;
use super::reader::TensorType;
use super::repack::{How, Repack};
use crate::entries::{Entry, Piece};
use crate::error::Problem;
use crate::module::Module;
use crate::names::gguf::to_hf;
use crate::names::next::Heads;
use crate::names::number;
use martlet_tensor::{Float, Scheme};
use serde_json::Value;
use std::collections::BTreeMap;

/// All tensors as modules, sorted by name, with what can not be read; and the heads, where they are tiled.
pub(crate) fn modules(files: &Files, config: &Value) -> (Vec<Module>, Option<Heads>, Vec<Problem>) {
    let layers = number(config, "num_hidden_layers").unwrap_or(usize::MAX);
    let next = config.get("model_type").and_then(Value::as_str) == Some("qwen3_next");
    let heads = Heads::new(config).ok().filter(|h| !next && h.keys != h.values);
    let (mut modules, mut problems) = (BTreeMap::new(), Vec::new());
    for (weight, raw) in files.source.tensors.iter().enumerate() {
        let name = to_hf(&raw.name, layers);
        match module(&name, weight, raw.shape.clone(), files.types[weight], heads) {
            Ok(module) => drop(modules.insert(name, module)),
            Err(what) => problems.push(files.source.problem(raw, what)),
        }
    }
    (modules.into_values().collect(), heads, problems)
}

fn module(
    name: &str,
    weight: usize,
    mut shape: Vec<usize>,
    kind: TensorType,
    heads: Option<Heads>,
) -> Result<Module, String> {
    let part = name.rsplit_once("linear_attn.").map_or("", |(_, part)| part);
    if name.ends_with(".mlp.shared_expert_gate.weight") && shape.len() == 1 {
        shape.insert(0, 1);
    }
    let columns = heads.filter(|_| matches!(part, "out_proj.weight" | "A_log" | "dt_bias"));
    if let Some(heads) = columns {
        let share = if part == "out_proj.weight" { heads.value_dim } else { 1 };
        if shape.last() != Some(&(heads.values * share)) {
            return Err(format!("has shape {shape:?}, expected {} columns", heads.values * share));
        }
    }
    let how = match (part, kind) {
        ("A_log", TensorType::Float(Float::F32)) => Some(How::LogOfNegative),
        ("A_log", _) => return Err("is not F32".into()),
        (_, TensorType::Blocks(block)) => Some(How::Blocks(block)),
        (_, TensorType::Float(float)) => columns.map(|_| How::Float(float)),
    };
    if let (Some(heads), Some(How::Blocks(block))) = (columns, how)
        && !heads.value_dim.is_multiple_of(block.plain_scheme().group(0))
    {
        let (name, group, dim) = (block.name(), block.plain_scheme().group(0), heads.value_dim);
        return Err(format!("is {name}, whose groups of {group} do not fit value heads of {dim}"));
    }
    let repack = how.map(|how| Repack::new(how, columns));
    let scheme = match (&repack, kind) {
        (_, TensorType::Float(float)) => Scheme::Dense(float),
        (Some(repack), _) => repack.scheme(),
        (None, TensorType::Blocks(block)) => block.scheme(),
    };
    let name = name.to_string();
    Ok(Module {
        name,
        weight,
        scales: None,
        biases: None,
        global: None,
        scheme: Some(scheme),
        shape,
        repack,
        tiles: None,
    })
}

/// For each value head in grouped order (all of the first key head, then all of the second, ...) its place in tiled
/// order.
pub(crate) fn tiled(heads: &Heads) -> impl Iterator<Item = usize> {
    let (keys, each) = (heads.keys, heads.values / heads.keys);
    (0..heads.values).map(move |head| head % each * keys + head / each)
}

/// Puts the rows of value heads back into grouped order.
pub(crate) fn group_rows(entries: &mut BTreeMap<String, Entry>, heads: &Heads) {
    for (name, entry) in entries {
        let Some((_, part)) = name.rsplit_once("linear_attn.") else { continue };
        let (first, width) = match part {
            "in_proj_qkv.weight" | "conv1d.weight" => (2 * heads.keys * heads.key_dim, heads.value_dim),
            "in_proj_z.weight" => (0, heads.value_dim),
            "in_proj_a.weight" | "in_proj_b.weight" => (0, 1),
            _ => continue,
        };
        // A tensor with another number of rows stays as it is and is refused for its shape.
        let &[Piece { module, ref rows }] = entry.pieces.as_slice() else { continue };
        if *rows != (0..first + heads.values * width) {
            continue;
        }
        let values = tiled(heads).map(|head| first + head * width..first + (head + 1) * width);
        let pieces = std::iter::once(0..first).chain(values).filter(|rows| !rows.is_empty());
        entry.pieces = pieces.map(|rows| Piece { module, rows }).collect();
    }
}
