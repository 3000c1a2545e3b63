//! MLX's packed matrices: which scheme a module has, from config.json and the shapes of its tensors together.
//!
//! `X.weight` is U32 [.., in * bits / 32], `X.scales` (and `X.biases`) [.., in / group]. The shapes alone only give
//! bits * group, so the settings in config.json or the width of the inputs must decide; all that is known must agree.

use martlet_tensor::{Dtype, Scheme};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;

/// What config.json says on quantisation.
#[derive(Debug, Default)]
pub(crate) struct Settings {
    default: Option<Setting>,
    /// Modules (by prefix-free name) with settings of their own; `None` are left dense.
    modules: BTreeMap<String, Option<Setting>>,
}

/// How one module is quantised.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Setting {
    pub mode: String,
    pub bits: u64,
    pub group: u64,
}

/// What the tensors of one packed module look like.
pub(crate) struct Packed<'a> {
    /// Prefix-free name of the module.
    pub module: &'a str,
    pub weight: &'a [usize],
    pub scales: &'a [usize],
    pub scale_dtype: Dtype,
    pub biases: bool,
    /// Width of the inputs, where the model's configuration tells it.
    pub width: Option<usize>,
}

impl Settings {
    /// Reads `quantization`, or `quantization_config` where that is MLX's copy of it. The error names the key.
    pub fn new(config: &Value) -> Result<Settings, String> {
        let (key, value) = match (config.get("quantization"), config.get("quantization_config")) {
            (Some(value), _) => ("quantization", value),
            (None, Some(value)) => ("quantization_config", value),
            (None, None) => return Ok(Settings::default()),
        };
        if value.is_null() {
            return Ok(Settings::default());
        }
        if let Some(method) = value.get("quant_method") {
            return other_method(key, method, value);
        }
        let object = value.as_object().ok_or_else(|| format!("{key} is not an object"))?;
        let mut modules = BTreeMap::new();
        for (name, value) in object {
            let setting = match value {
                Value::Object(_) => Some(Setting::new(value).map_err(|e| format!("{key}, {name}: {e}"))?),
                Value::Bool(false) => None,
                // `true` means the default, which holds for modules that are not named too.
                _ => continue,
            };
            modules.insert(crate::names::strip_prefix(name), setting);
        }
        let default = match object.contains_key("bits") || object.contains_key("group_size") {
            true => Some(Setting::new(value).map_err(|e| format!("{key}: {e}"))?),
            false => None,
        };
        Ok(Settings { default, modules })
    }

    /// Settings for this module alone: `Some(None)` when it is to be left dense.
    pub fn named(&self, module: &str) -> Option<Option<&Setting>> {
        self.modules.get(module).map(Option::as_ref)
    }

    /// The scheme of a packed module. The error gives what config.json says and what the tensors look like.
    pub fn scheme(&self, packed: &Packed<'_>) -> Result<Scheme, String> {
        let says = match self.named(packed.module) {
            Some(None) => {
                let text = "config.json leaves it dense (false), but it is packed";
                return Err(format!("{text}: {packed}"));
            }
            Some(Some(setting)) => {
                let fit = setting.fit(packed);
                return fit.ok_or_else(|| format!("config.json says {setting}, found {packed}"));
            }
            None => self.default.as_ref(),
        };
        if let Some(scheme) = says.and_then(|s| s.fit(packed)) {
            return Ok(scheme);
        }
        let says = says.map_or("nothing".to_string(), |s| s.to_string());
        let infer = packed.infer();
        infer.ok_or_else(|| format!("config.json says {says}, and no known scheme fits {packed}"))
    }
}

/// `quantization_config` of other tools: FP8 in blocks of 128 x 128 is read, the rest refused.
fn other_method(key: &str, method: &Value, value: &Value) -> Result<Settings, String> {
    if method != "fp8" {
        return Err(format!("{key}.quant_method {method} is not supported; known are fp8 and MLX's"));
    }
    match value.get("weight_block_size") {
        None | Some(Value::Null) => Ok(Settings::default()),
        Some(size) if *size == serde_json::json!([128, 128]) => Ok(Settings::default()),
        Some(size) => Err(format!("{key}.weight_block_size is {size}, supported is [128, 128]")),
    }
}

impl Setting {
    fn new(value: &Value) -> Result<Setting, String> {
        let number = |key: &str, default: u64| match value.get(key) {
            None => Ok(default),
            Some(v) => v.as_u64().ok_or_else(|| format!("{key} is {v}, expected a number")),
        };
        let mode = match value.get("mode") {
            None | Some(Value::Null) => "affine".to_string(),
            Some(Value::String(mode)) => mode.clone(),
            Some(v) => return Err(format!("mode is {v}, expected a name")),
        };
        // MLX's own defaults, for a module that names only one of the two.
        let (bits, group) = match mode.as_str() {
            "affine" => (4, 64),
            "mxfp4" => (4, 32),
            "mxfp8" => (8, 32),
            "nvfp4" => (4, 16),
            _ => {
                return Err(format!("mode {mode} is not known; known are affine, mxfp4, mxfp8, nvfp4"));
            }
        };
        Ok(Setting { mode, bits: number("bits", bits)?, group: number("group_size", group)? })
    }

    /// The scheme, if the tensors can be what the setting says.
    fn fit(&self, packed: &Packed<'_>) -> Option<Scheme> {
        let scheme = scheme(&self.mode, self.bits, self.group, packed)?;
        let cols = packed.groups()?.checked_mul(usize::try_from(self.group).ok()?)?;
        let bits = cols.checked_mul(scheme.bits())?;
        let fits = packed.words()?.checked_mul(32) == Some(bits) && packed.width.is_none_or(|w| w == cols);
        fits.then_some(scheme)
    }
}

/// The scheme of that name, if it exists and scales and biases are of its types.
fn scheme(mode: &str, bits: u64, group: u64, packed: &Packed<'_>) -> Option<Scheme> {
    if mode == "affine" {
        let known = matches!(bits, 1..=6 | 8) && matches!(group, 32 | 64 | 128) && packed.biases;
        let scale = packed.scale_dtype.float()?;
        return known.then_some(Scheme::Affine { bits: bits as u8, group: group as u16, scale });
    }
    if packed.scale_dtype != Dtype::U8 || packed.biases {
        return None;
    }
    match (mode, bits, group) {
        ("mxfp4", 4, 32) => Some(Scheme::Mxfp4),
        ("mxfp8", 8, 32) => Some(Scheme::Mxfp8),
        ("nvfp4", 4, 16) => Some(Scheme::Nvfp4),
        _ => None,
    }
}

impl Packed<'_> {
    fn words(&self) -> Option<usize> {
        self.weight.last().copied()
    }

    fn groups(&self) -> Option<usize> {
        self.scales.last().copied()
    }

    /// From the shapes and the width of the inputs alone.
    fn infer(&self) -> Option<Scheme> {
        let (width, words, groups) = (self.width?, self.words()?, self.groups()?);
        let exact = |a: usize, b: usize| (b > 0 && a > 0 && a.is_multiple_of(b)).then(|| a / b);
        let (bits, group) = (exact(words.checked_mul(32)?, width)?, exact(width, groups)?);
        ["affine", "mxfp4", "mxfp8", "nvfp4"].iter().find_map(|mode| scheme(mode, bits as u64, group as u64, self))
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} with {} bits in groups of {}", self.mode, self.bits, self.group)
    }
}

impl fmt::Display for Packed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (weight, scales, dtype) = (self.weight, self.scales, self.scale_dtype);
        write!(f, "weight {weight:?} U32, scales {scales:?} {dtype:?}")?;
        f.write_str(if self.biases { ", biases" } else { ", no biases" })?;
        match self.width {
            Some(width) => write!(f, ", inputs of {width}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
