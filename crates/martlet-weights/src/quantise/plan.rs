//! What is written where, known in full before the first byte: names, shapes, schemes, files.

use super::{Options, WeightsError};
use crate::checkpoint::{Checkpoint, Layout};
use crate::names::{self, mlx, next::Heads};
use martlet_tensor::scheme::FP8_BLOCK;
use martlet_tensor::{Dtype, Float, Scheme};
use serde_json::{Map, Value, json};
use std::ops::Range;

/// Routers decide everything after them, and are small: always 8 bits in groups of 64.
const GATE_BITS: u8 = 8;
const GATE_GROUP: u16 = 64;

/// The scheme of routers and gates whose source has floats of this type.
pub(crate) fn gate_scheme(scale: Float) -> Scheme {
    Scheme::Affine { bits: GATE_BITS, group: GATE_GROUP, scale }
}

/// One tensor to be written, with its scales and biases.
#[derive(Debug)]
pub(crate) struct Item {
    /// Name in the file, without ".weight" where it is packed.
    pub name: String,
    pub shape: Vec<usize>,
    pub how: How,
    /// Canonical tensors and rows that it is made of, one below the other; an empty range for all of a vector.
    pub rows: Vec<(String, Range<usize>)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum How {
    Packed(Scheme),
    /// As [`Checkpoint::vector`] gives it: norms as multipliers.
    Plain(Float),
    /// The same with the channels moved to the end: the kernel of the patch embedding.
    ChannelsLast(Float),
}

/// One file of tensors.
#[derive(Debug)]
pub(crate) struct Shard {
    pub name: String,
    pub items: Vec<Item>,
}

#[derive(Debug)]
pub(crate) struct Plan {
    pub shards: Vec<Shard>,
    pub config: Value,
    /// Canonical names of matrices left plain for their width.
    pub unfit: Vec<String>,
}

impl Item {
    /// The stored tensors: name, type, shape.
    pub fn tensors(&self) -> Vec<(String, Dtype, Vec<usize>)> {
        let scheme = match self.how {
            How::Packed(scheme) => scheme,
            How::Plain(float) | How::ChannelsLast(float) => {
                return vec![(self.name.clone(), Dtype::from(float), self.shape.clone())];
            }
        };
        let Some((&cols, outer)) = self.shape.split_last() else {
            return Vec::new();
        };
        let shape = |last: usize| outer.iter().copied().chain([last]).collect::<Vec<_>>();
        if let Scheme::Fp8Block { scale } = scheme {
            let mut blocks = shape(cols.div_ceil(FP8_BLOCK));
            if let [.., rows, _] = blocks.as_mut_slice() {
                *rows = rows.div_ceil(FP8_BLOCK);
            }
            return vec![
                (format!("{}.weight", self.name), Dtype::F8E4m3, self.shape.clone()),
                (format!("{}.weight_scale_inv", self.name), Dtype::from(scale), blocks),
            ];
        }
        let dtype = match scheme {
            Scheme::Affine { scale, .. } => Dtype::from(scale),
            _ => Dtype::U8,
        };
        let groups = shape(cols / scheme.group(cols));
        let tensor = |part: &str| format!("{}.{part}", self.name);
        let mut list = vec![
            (tensor("weight"), Dtype::U32, shape(scheme.code_bytes(cols) / 4)),
            (tensor("scales"), dtype, groups.clone()),
        ];
        if scheme.bias_bytes(cols) > 0 {
            list.push((tensor("biases"), dtype, groups));
        }
        list
    }

    pub fn bytes(&self) -> u64 {
        let bytes = |(_, dtype, shape): &(String, Dtype, Vec<usize>)| {
            shape.iter().product::<usize>() as u64 * dtype.size() as u64
        };
        self.tensors().iter().map(bytes).sum()
    }

    pub fn weights(&self) -> u64 {
        self.shape.iter().product::<usize>() as u64
    }
}

impl Plan {
    pub fn new(src: &Checkpoint, options: Options, shard_bytes: u64) -> Result<Plan, WeightsError> {
        options.scheme(Float::Bf16)?;
        if let Layout::Gguf | Layout::Pack = src.layout() {
            let what = if src.layout() == Layout::Pack { "pack" } else { "GGUF file" };
            let text = format!("is a {what}: quantise from the safetensors files of the model");
            return Err(WeightsError::file(src.folder().label(""), text));
        }
        let mut planner = Planner {
            src,
            options,
            wrapped: src.config().get("text_config").is_some(),
            settings: Map::new(),
            unfit: Vec::new(),
        };
        let (mut model, mut draft) = (Vec::new(), Vec::new());
        let joint = src.config().get("model_type").is_some_and(|t| t == "qwen3_next");
        for name in src.names() {
            let item = match joint && name.contains(".linear_attn.in_proj_") {
                true => planner.joint(name)?,
                false => Some(planner.item(name)?),
            };
            match name.starts_with("mtp.") {
                true => draft.extend(item),
                false => model.extend(item),
            }
        }
        let config = planner.config();
        let unfit = planner.unfit;
        let mut shards = split(model, shard_bytes);
        if !draft.is_empty() {
            shards.push(Shard { name: crate::source::MTP_FILE.into(), items: draft });
        }
        Ok(Plan { shards, config, unfit })
    }

    /// Weights of all items.
    pub fn weights(&self) -> u64 {
        self.shards.iter().flat_map(|s| &s.items).map(Item::weights).sum()
    }
}

/// Fills shards in order.
pub(crate) fn split(items: Vec<Item>, shard_bytes: u64) -> Vec<Shard> {
    let mut groups: Vec<Vec<Item>> = Vec::new();
    let mut room = 0;
    for item in items {
        let bytes = item.bytes();
        if groups.is_empty() || bytes > room {
            groups.push(Vec::new());
            room = shard_bytes;
        }
        room = room.saturating_sub(bytes);
        if let Some(group) = groups.last_mut() {
            group.push(item);
        }
    }
    let count = groups.len();
    let name = |i: usize| match count {
        1 => "model.safetensors".to_string(),
        _ => format!("model-{:05}-of-{count:05}.safetensors", i + 1),
    };
    groups.into_iter().enumerate().map(|(i, items)| Shard { name: name(i), items }).collect()
}

struct Planner<'a> {
    src: &'a Checkpoint,
    options: Options,
    /// The language model sits in a wrapper beside a vision tower (Qwen3.5), or stands alone (Qwen3-Next).
    wrapped: bool,
    /// Settings of modules that differ from the rest.
    settings: Map<String, Value>,
    unfit: Vec<String>,
}

impl Planner<'_> {
    fn item(&mut self, name: &str) -> Result<Item, WeightsError> {
        let shape = self.src.shape(name).unwrap_or(&[]).to_vec();
        let float = self.float(name)?;
        let rows = |rows: usize| vec![(name.to_string(), 0..rows)];
        let plain = |shape: Vec<usize>, how: How| Item { name: self.mlx_name(name), shape, how, rows: rows(0) };
        if let Some(kernel) = name.strip_suffix(".conv1d.weight")
            && kernel.ends_with(".linear_attn")
        {
            return Ok(plain([&shape[..], &[1]].concat(), How::Plain(float)));
        }
        if let (&[o, c, t, p, q], "visual.patch_embed.proj.weight") = (shape.as_slice(), name) {
            return Ok(plain(vec![o, t, p, q, c], How::ChannelsLast(float)));
        }
        if names::is_shifted_norm(name) {
            return Ok(plain(shape, How::Plain(self.norm_float(name, float)?)));
        }
        if !matches!(shape.len(), 2 | 3) || name.starts_with("visual.") {
            return Ok(plain(shape, How::Plain(float)));
        }
        let outputs = shape[..shape.len() - 1].iter().product();
        self.packed(name, name, shape, rows(outputs), float)
    }

    /// Qwen3-Next's joint projections, put together again; nothing for the canonical tensors joined to another.
    fn joint(&mut self, name: &str) -> Result<Option<Item>, WeightsError> {
        let Some((layer, part)) = name.split_once(".linear_attn.in_proj_") else {
            return Ok(None);
        };
        let heads = Heads::new(self.src.config()).map_err(|e| self.src.problem(name, e))?;
        let of = |part: &str| format!("{layer}.linear_attn.in_proj_{part}.weight");
        let (joined, rows) = match part {
            "qkv.weight" => (of("qkvz"), heads.join_qkvz(&of("qkv"), &of("z"))),
            "b.weight" => (of("ba"), heads.join_ba(&of("b"), &of("a"))),
            _ => return Ok(None),
        };
        for (name, range) in &rows {
            let shape = self.src.shape(name);
            if !shape.is_some_and(|s| s.len() == 2 && s[0] >= range.end) {
                let text = format!("has shape {shape:?}, too small for {joined}");
                return Err(self.src.problem(name, text).into());
            }
        }
        let total = rows.iter().map(|(_, r)| r.len()).sum();
        let width = self.src.shape(name).map_or(0, |s| s[1]);
        let float = self.float(name)?;
        self.packed(&joined, name, vec![total, width], rows, float).map(Some)
    }

    /// A matrix or a stack called `name`; `source` is the canonical tensor that errors speak of.
    fn packed(
        &mut self,
        name: &str,
        source: &str,
        shape: Vec<usize>,
        rows: Vec<(String, Range<usize>)>,
        float: Float,
    ) -> Result<Item, WeightsError> {
        let gate = name.ends_with(".mlp.gate.weight") || name.ends_with(".mlp.shared_expert_gate.weight");
        let usual = self.options.scheme(float)?;
        let scheme = match gate {
            true => gate_scheme(float),
            false => usual,
        };
        let name = self.mlx_name(name);
        let Some(module) = name.strip_suffix(".weight") else {
            return Err(self.src.problem(source, "is a matrix, but its name does not end in .weight").into());
        };
        let cols = shape.last().copied().unwrap_or(0);
        if !scheme.fits(cols) {
            self.unfit.push(source.to_string());
            self.settings.insert(module.to_string(), Value::Bool(false));
            // Products of FP8 codes and scales are exact in f32 only.
            let dense = matches!(self.src.describe(source)?.scheme, Scheme::Dense(_));
            let how = How::Plain(if dense { float } else { Float::F32 });
            return Ok(Item { name, shape, how, rows });
        }
        if scheme != usual {
            let setting = json!({"group_size": GATE_GROUP, "bits": GATE_BITS, "mode": "affine"});
            self.settings.insert(module.to_string(), setting);
        }
        Ok(Item { name: module.to_string(), shape, how: How::Packed(scheme), rows })
    }

    /// The type of the source's floats; packed sources are refused.
    fn float(&self, name: &str) -> Result<Float, WeightsError> {
        match self.src.describe(name)?.scheme {
            Scheme::Dense(float) => Ok(float),
            // What such files were made from.
            Scheme::Fp8Block { .. } => Ok(Float::Bf16),
            scheme => {
                let text = format!("is {scheme} already; quantise from the unquantised checkpoint");
                Err(self.src.problem(name, text).into())
            }
        }
    }

    /// The source's type if all multipliers are exact in it, else f32: bf16 loses up to half a percent of 1 + w.
    fn norm_float(&self, name: &str, float: Float) -> Result<Float, WeightsError> {
        let exact = self.src.vector(name)?.iter().all(|&v| float.round(v) == v);
        Ok(if exact { float } else { Float::F32 })
    }

    fn mlx_name(&self, name: &str) -> String {
        mlx::stored_name(name, self.wrapped)
    }

    /// config.json with the quantisation, under both keys that MLX uses.
    fn config(&mut self) -> Value {
        let Options { bits, group, mode } = self.options;
        let mut quantisation = Map::new();
        quantisation.insert("group_size".into(), group.into());
        quantisation.insert("bits".into(), bits.into());
        quantisation.insert("mode".into(), mode.name().into());
        quantisation.append(&mut self.settings);
        let mut config = self.src.config().clone();
        if let Some(map) = config.as_object_mut() {
            map.insert("quantization".into(), quantisation.clone().into());
            map.insert("quantization_config".into(), quantisation.into());
        }
        config
    }
}
