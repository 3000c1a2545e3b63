//! Checkpoints of random weights, in the layout of MLX: for measuring speed and memory, which do not depend on the
//! values, but for which experts are chosen ([`Routing`]). Their text is noise, and no draft is right.
//!
//! A matrix is made of pieces of a small pool of random codes, each piece from a place that seed, name and number decide:
//! so a checkpoint needs no memory to speak of, and the same one can be opened here ([`Synthetic::checkpoint`]) or written
//! to files ([`Synthetic::write`]), with equal bytes.

mod pool;

pub(crate) use pool::Pool;

use crate::checkpoint::Checkpoint;
use crate::error::WeightsError;
use crate::folder::Bytes;
use crate::names::{mlx, next::Heads};
use crate::quantise::plan::{How, Item, Plan, Shard, split};
use crate::quantise::write::{self, Output, Put};
use crate::quantise::{self, Progress, SHARD_BYTES};
use crate::report::{Expected, Kind};
use crate::source::{MTP_FILE, Raw, Source, SourceFile};
use crate::staging::Staging;
use martlet_tensor::{Float, Scheme};
use serde_json::{Map, Value, json};
use std::path::Path;
use std::sync::Arc;

/// The ways in which matrices can be stored.
pub const MODES: [&str; 8] = ["affine", "mxfp4", "mxfp8", "nvfp4", "bf16", "f16", "f32", "fp8"];

/// Which experts are chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Routing {
    /// All equally often, each token anew: the worst for a cache.
    #[default]
    Even,
    /// Some more often than others, as in trained models: the rows of routers are of different lengths.
    Skewed,
}

/// How the matrices are stored, what the weights are drawn from, and what routers choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    pub scheme: Scheme,
    pub seed: u64,
    pub routing: Routing,
}

impl Default for Options {
    fn default() -> Options {
        Options { scheme: Scheme::Affine { bits: 4, group: 64, scale: Float::Bf16 }, seed: 1, routing: Routing::Even }
    }
}

impl Options {
    /// The options of one of [`MODES`]; `bits` and `group` as in [`quantise::Options::new`], and only where it knows them.
    pub fn new(mode: &str, bits: Option<u8>, group: Option<u16>, seed: u64) -> Result<Options, WeightsError> {
        let scheme = match mode {
            "bf16" => Scheme::Dense(Float::Bf16),
            "f16" => Scheme::Dense(Float::F16),
            "f32" => Scheme::Dense(Float::F32),
            "fp8" => Scheme::Fp8Block { scale: Float::F32 },
            _ => {
                let scheme = quantise::Options::new(mode, bits, group)?.scheme(Float::Bf16)?;
                return Ok(Options { scheme, seed, ..Options::default() });
            }
        };
        match (bits, group) {
            (None, None) => Ok(Options { scheme, seed, ..Options::default() }),
            _ => Err(WeightsError::file("synthetic", format!("mode {mode} has no choice of bits or groups"))),
        }
    }
}

/// A checkpoint that is made when it is read.
#[derive(Debug)]
pub struct Synthetic {
    plan: Plan,
    pool: Pool,
}

impl Synthetic {
    /// A checkpoint with the tensors of `expected` for `config`, a config.json without quantisation.
    pub fn new(config: &Value, expected: &[Expected], options: Options) -> Result<Synthetic, WeightsError> {
        let hidden = crate::names::number(config, "hidden_size").unwrap_or(1);
        let planner = Planner { config, options, settings: Map::new() };
        let plan = planner.plan(expected)?;
        let schemes = plan.shards.iter().flat_map(|s| &s.items).filter_map(matrix_scheme);
        let pool = Pool::new(options.seed, hidden, schemes, options.routing);
        if options.routing == Routing::Skewed && matches!(options.scheme, Scheme::Dense(_) | Scheme::Fp8Block { .. }) {
            let text = format!("skewed routing needs routers with scales, which {} leaves as floats", options.scheme);
            return Err(WeightsError::file("synthetic", text));
        }
        for item in plan.shards.iter().flat_map(|s| &s.items) {
            if let Some(scheme) = matrix_scheme(item) {
                let cols = item.shape.last().copied().unwrap_or(0);
                pool.check(scheme, cols).map_err(|e| WeightsError::file(&item.name, e))?;
            }
        }
        Ok(Synthetic { plan, pool })
    }

    /// Bytes of all tensors.
    pub fn bytes(&self) -> u64 {
        self.plan.shards.iter().flat_map(|s| &s.items).map(Item::bytes).sum()
    }

    /// The checkpoint in memory. Matrices are made of the pool as they are asked for, and take no memory of their own.
    pub fn checkpoint(self) -> Result<Checkpoint, WeightsError> {
        let config = self.plan.config.clone();
        let (mut vectors, mut made, mut tensors) = (Vec::new(), 0, Vec::new());
        for item in self.plan.shards.iter().flat_map(|s| &s.items) {
            let file = usize::from(matrix_scheme(item).is_some());
            for (name, dtype, shape) in item.tensors() {
                let len = shape.iter().product::<usize>() * dtype.size();
                let start = if file == 0 { vectors.len() } else { made };
                tensors.push(Raw { name, dtype, shape, file, range: start..start + len });
                match file {
                    0 => vectors.extend(self.pool.vector(item)),
                    _ => made += len,
                }
            }
        }
        let files = [Bytes::Owned(Arc::new(vectors)), Bytes::Made(made)];
        let name = format!("random weights (seed {})", self.pool.seed());
        let files = files.map(|bytes| SourceFile { name: name.clone(), bytes }).into_iter().collect();
        Checkpoint::from_source(Source { files, tensors, pool: Some(self.pool), rewritten: Default::default() }, config)
    }

    /// Writes the checkpoint to the new folder `dst`, which appears when it is complete. Holds a piece of a tensor at a
    /// time. Refuses a `dst` that is there and not empty. Returns the bytes of the weight files.
    pub fn write(&self, dst: &Path, progress: Progress<'_>) -> Result<u64, WeightsError> {
        let staging = Staging::new(dst)?;
        let mut output = Output::Folder(staging.path());
        let mut encode = |item: &Item, put: Put<'_>| match matrix_scheme(item) {
            Some(scheme) => self.pool.write(item, scheme, put),
            None => put(&self.pool.vector(item)),
        };
        let summary = write::write(&self.plan, Vec::new(), &mut output, &mut encode, progress)?;
        staging.finish()?;
        Ok(summary.bytes)
    }
}

/// The scheme of a matrix; `None` of what is small and made value by value.
fn matrix_scheme(item: &Item) -> Option<Scheme> {
    match item.how {
        How::Packed(scheme) => Some(scheme),
        How::Plain(float) => {
            let small = item.shape.len() == 1 || item.name.ends_with("conv1d.weight");
            (!small).then_some(Scheme::Dense(float))
        }
        How::ChannelsLast(_) => None,
    }
}

struct Planner<'a> {
    config: &'a Value,
    options: Options,
    /// Settings of modules that differ from the rest.
    settings: Map<String, Value>,
}

impl Planner<'_> {
    fn plan(mut self, expected: &[Expected]) -> Result<Plan, WeightsError> {
        let joint = self.config.get("model_type").is_some_and(|t| t == "qwen3_next");
        let (mut model, mut draft) = (Vec::new(), Vec::new());
        for tensor in expected {
            let (name, shape) = match joint {
                true => match self.joined(tensor)? {
                    Some(joined) => joined,
                    None => continue,
                },
                false => (tensor.name.clone(), tensor.shape.clone()),
            };
            let item = self.item(&name, shape, tensor.kind)?;
            if name.starts_with("mtp.") { draft.push(item) } else { model.push(item) }
        }
        let mut shards = split(model, SHARD_BYTES);
        if !draft.is_empty() {
            shards.push(Shard { name: MTP_FILE.into(), items: draft });
        }
        Ok(Plan { shards, config: self.config(), unfit: Vec::new() })
    }

    /// Qwen3-Next stores some projections as one; nothing for what is part of another.
    fn joined(&self, tensor: &Expected) -> Result<Option<(String, Vec<usize>)>, WeightsError> {
        let Some((layer, part)) = tensor.name.split_once(".linear_attn.in_proj_") else {
            return Ok(Some((tensor.name.clone(), tensor.shape.clone())));
        };
        let heads = Heads::new(self.config).map_err(|e| WeightsError::file(&tensor.name, e))?;
        let width = tensor.shape.last().copied().unwrap_or(0);
        let of = |part: &str, rows| Some((format!("{layer}.linear_attn.in_proj_{part}.weight"), vec![rows, width]));
        Ok(match part {
            "qkv.weight" => of("qkvz", heads.qkvz_rows()),
            "b.weight" => of("ba", heads.ba_rows()),
            _ => None,
        })
    }

    fn item(&mut self, canonical: &str, mut shape: Vec<usize>, kind: Kind) -> Result<Item, WeightsError> {
        let name = mlx::stored_name(canonical, self.config.get("text_config").is_some());
        let item = |name: String, shape, how| Item { name, shape, how, rows: Vec::new() };
        if kind == Kind::Vector {
            if canonical.ends_with("conv1d.weight") {
                shape.push(1);
            }
            let float = if canonical.ends_with("A_log") { Float::F32 } else { Float::Bf16 };
            return Ok(item(name, shape, How::Plain(float)));
        }
        let scheme = self.scheme(canonical);
        let cols = shape.last().copied().unwrap_or(0);
        if !scheme.fits(cols) {
            let text = format!("rows of {cols} weights can not be stored as {scheme}: choose a smaller group");
            return Err(WeightsError::file(canonical, text));
        }
        if let Scheme::Dense(float) = scheme {
            return Ok(item(name, shape, How::Plain(float)));
        }
        let module = name.trim_end_matches(".weight").to_string();
        if scheme != self.options.scheme {
            self.settings.insert(module.clone(), setting(scheme));
        }
        Ok(item(module, shape, How::Packed(scheme)))
    }

    /// Conversions keep routers and gates of shared experts at 8 bits; those with blocks of 8-bit floats leave them, the
    /// tables and the small projections as they are.
    fn scheme(&self, name: &str) -> Scheme {
        let ends = |names: &[&str]| names.iter().any(|n| name.ends_with(&format!("{n}.weight")));
        match self.options.scheme {
            Scheme::Dense(float) => Scheme::Dense(float),
            Scheme::Fp8Block { scale } => {
                let plain = ["mlp.gate", "shared_expert_gate", "in_proj_a", "in_proj_b", "in_proj_ba"];
                let plain = ends(&plain) || ends(&["embed_tokens", "lm_head", "mtp.fc"]);
                if plain { Scheme::Dense(Float::Bf16) } else { Scheme::Fp8Block { scale } }
            }
            _ if ends(&["mlp.gate", "shared_expert_gate"]) => quantise::plan::gate_scheme(Float::Bf16),
            scheme => scheme,
        }
    }

    /// config.json with the quantisation.
    fn config(self) -> Value {
        let mut config = self.config.clone();
        let (Some(map), scheme) = (config.as_object_mut(), self.options.scheme) else { return config };
        let quantisation = match scheme {
            Scheme::Dense(_) => return config,
            Scheme::Fp8Block { .. } => json!({"quant_method": "fp8", "weight_block_size": [128, 128]}),
            _ => {
                let mut all = setting(scheme);
                if let Some(all) = all.as_object_mut() {
                    all.extend(self.settings);
                }
                map.insert("quantization".into(), all.clone());
                all
            }
        };
        map.insert("quantization_config".into(), quantisation);
        config
    }
}

/// How config.json names a packed scheme.
fn setting(scheme: Scheme) -> Value {
    let mode = match scheme {
        Scheme::Mxfp4 => "mxfp4",
        Scheme::Mxfp8 => "mxfp8",
        Scheme::Nvfp4 => "nvfp4",
        _ => "affine",
    };
    json!({"group_size": scheme.group(0), "bits": scheme.bits(), "mode": mode})
}

#[cfg(test)]
mod tests;
