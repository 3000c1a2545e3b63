//! The safetensors container: 8 bytes of header length, a JSON header, then the tensors' bytes.
//!
//! The reader believes nothing: lengths are checked against the file before they are used, tensors must fill the
//! data exactly (no overlap, no hole, nothing left over) and have as many bytes as their shape says.

use crate::limits::{Limits, MAX_DIMENSIONS};
use martlet_tensor::Dtype;
use serde::Deserialize;
use serde::de::{Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use std::collections::HashSet;
use std::fmt;
use std::io::{self, Write};
use std::ops::Range;

/// One tensor of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    pub name: String,
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    /// Where its bytes lie in the file.
    pub range: Range<usize>,
}

/// Why bytes are not a safetensors file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SafetensorsError {
    #[error("has {0} bytes; a safetensors file has at least 8")]
    Short(u64),
    #[error("claims a header of {claimed} bytes, but the file has {file}: it is truncated or no safetensors file")]
    HeaderLength { claimed: u64, file: u64 },
    #[error("has a header of {claimed} bytes; at most {limit} are read")]
    HeaderLimit { claimed: u64, limit: u64 },
    #[error("header is not valid: {0}")]
    Json(String),
    #[error("tensor {tensor}: {what}")]
    Tensor { tensor: String, what: String },
    #[error("tensors {first} and {second} overlap: {second} begins at byte {start}, {first} ends at {end}")]
    Overlap { first: String, second: String, start: u64, end: u64 },
    #[error("bytes {start} to {end} of the data belong to no tensor (before {next})")]
    Hole { start: u64, end: u64, next: String },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    dtype: String,
    shape: Shape,
    data_offsets: (u64, u64),
}

/// Never longer than [`MAX_DIMENSIONS`], whatever the file lists.
struct Shape(Vec<u64>);

impl<'de> Deserialize<'de> for Shape {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Shape, D::Error> {
        struct V;
        impl<'de> Visitor<'de> for V {
            type Value = Shape;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of dimensions")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Shape, A::Error> {
                let mut shape = Vec::new();
                while let Some(dimension) = seq.next_element()? {
                    if shape.len() == MAX_DIMENSIONS {
                        return Err(A::Error::custom(format!("more than {MAX_DIMENSIONS} dimensions")));
                    }
                    shape.push(dimension);
                }
                Ok(Shape(shape))
            }
        }
        deserializer.deserialize_seq(V)
    }
}

/// The header's entries in order. A name given twice is an error: the last one must not win silently.
struct Header(Vec<(String, Entry)>);

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Header, D::Error> {
        struct V;
        impl<'de> Visitor<'de> for V {
            type Value = Header;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
                let (mut names, mut entries) = (HashSet::new(), Vec::new());
                while let Some(name) = map.next_key::<String>()? {
                    if !names.insert(name.clone()) {
                        return Err(A::Error::custom(format!("tensor {name} is listed twice")));
                    }
                    if name == "__metadata__" {
                        map.next_value::<IgnoredAny>()?;
                        continue;
                    }
                    match map.next_value::<Entry>() {
                        Ok(entry) => entries.push((name, entry)),
                        Err(e) => return Err(A::Error::custom(format!("tensor {name}: {e}"))),
                    }
                }
                Ok(Header(entries))
            }
        }
        deserializer.deserialize_map(V)
    }
}

/// Reads the header of a whole file. The tensors come sorted by their place in the file.
pub fn read(file: &[u8], limits: &Limits) -> Result<Vec<TensorInfo>, SafetensorsError> {
    let Some((length, rest)) = file.split_first_chunk::<8>() else {
        return Err(SafetensorsError::Short(file.len() as u64));
    };
    let claimed = u64::from_le_bytes(*length);
    if claimed > limits.header_bytes {
        let (limit, file) = (limits.header_bytes, file.len() as u64);
        return Err(match claimed > file - 8 {
            true => SafetensorsError::HeaderLength { claimed, file },
            false => SafetensorsError::HeaderLimit { claimed, limit },
        });
    }
    // Not above the limit, so it fits usize.
    let Some((header, data)) = rest.split_at_checked(claimed as usize) else {
        let file = file.len() as u64;
        return Err(SafetensorsError::HeaderLength { claimed, file });
    };
    parse_header(header, 8 + header.len(), data.len() as u64)
}

/// Parses the JSON `header` of a file whose data begins at byte `start` and has `data` bytes.
fn parse_header(header: &[u8], start: usize, data: u64) -> Result<Vec<TensorInfo>, SafetensorsError> {
    let Header(mut found) = serde_json::from_slice(header).map_err(|e| SafetensorsError::Json(e.to_string()))?;
    found.sort_by_key(|(_, e)| e.data_offsets);
    let mut tensors: Vec<TensorInfo> = Vec::with_capacity(found.len());
    let mut end = 0;
    for (name, entry) in found {
        let (a, b) = entry.data_offsets;
        let (dtype, shape) = check(&name, &entry, data)?;
        if a < end
            && let Some(first) = tensors.last()
        {
            let (first, second) = (first.name.clone(), name);
            return Err(SafetensorsError::Overlap { first, second, start: a, end });
        }
        if a > end {
            return Err(SafetensorsError::Hole { start: end, end: a, next: name });
        }
        end = b;
        // Both ends lie in the data, which is in memory: they fit usize.
        let range = start + a as usize..start + b as usize;
        tensors.push(TensorInfo { name, dtype, shape, range });
    }
    if end != data {
        return Err(SafetensorsError::Hole { start: end, end: data, next: "the end of the file".into() });
    }
    Ok(tensors)
}

fn tensor(name: &str, what: impl Into<String>) -> SafetensorsError {
    SafetensorsError::Tensor { tensor: name.to_string(), what: what.into() }
}

/// Offsets inside the data, known dtype, and as many bytes as the shape says.
fn check(name: &str, entry: &Entry, data: u64) -> Result<(Dtype, Vec<usize>), SafetensorsError> {
    let (a, b) = entry.data_offsets;
    if a > b {
        return Err(tensor(name, format!("begins at byte {a} and ends before it, at {b}")));
    }
    if b > data {
        let text = format!("ends at byte {b} of the data, but the file holds {data}: it is truncated or damaged");
        return Err(tensor(name, text));
    }
    let dtype = dtype(&entry.dtype).ok_or_else(|| {
        let known = "F32, F16, BF16, F8_E4M3, U8, U32, I64";
        tensor(name, format!("has dtype {}; known are {known}", entry.dtype))
    })?;
    let shape = &entry.shape.0;
    let bytes = shape.iter().try_fold(dtype.size() as u64, |n, &d| n.checked_mul(d));
    if bytes != Some(b - a) {
        let need = bytes.map_or("more than 2^64".to_string(), |n| n.to_string());
        let found = b - a;
        let text = format!("of shape {shape:?} and dtype {dtype:?} takes {need} bytes, found {found}");
        return Err(tensor(name, text));
    }
    let dimensions = shape.iter().map(|&d| usize::try_from(d)).collect::<Result<_, _>>();
    dimensions
        .map(|shape| (dtype, shape))
        .map_err(|_| tensor(name, format!("has a dimension too large for this machine: {shape:?}")))
}

fn dtype(name: &str) -> Option<Dtype> {
    Some(match name {
        "F32" => Dtype::F32,
        "F16" => Dtype::F16,
        "BF16" => Dtype::Bf16,
        "F8_E4M3" => Dtype::F8E4m3,
        "U8" => Dtype::U8,
        "U32" => Dtype::U32,
        "I64" => Dtype::I64,
        _ => return None,
    })
}

fn dtype_name(dtype: Dtype) -> &'static str {
    match dtype {
        Dtype::F32 => "F32",
        Dtype::F16 => "F16",
        Dtype::Bf16 => "BF16",
        Dtype::F8E4m3 => "F8_E4M3",
        Dtype::U8 => "U8",
        Dtype::U32 => "U32",
        Dtype::I64 => "I64",
    }
}

/// A tensor to be written.
#[derive(Clone, Debug)]
pub struct Tensor {
    pub name: String,
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    /// Little-endian elements, row after row; as many as `shape` says.
    pub bytes: Vec<u8>,
}

impl Tensor {
    /// A float tensor, each value rounded to `float`.
    pub fn floats(name: impl Into<String>, float: martlet_tensor::Float, shape: &[usize], values: &[f32]) -> Tensor {
        let mut bytes = Vec::with_capacity(values.len() * float.size());
        values.iter().for_each(|&v| float.put(v, &mut bytes));
        Tensor { name: name.into(), dtype: Dtype::from(float), shape: shape.to_vec(), bytes }
    }
}

/// Header bytes (length field included) of a file that holds `tensors` (name, dtype, shape) in this order.
/// `format` is "pt" for the Hugging Face layout and "mlx" for MLX's: some loaders insist on one.
pub fn header<'a>(format: &str, tensors: impl IntoIterator<Item = (&'a str, Dtype, &'a [usize])>) -> Vec<u8> {
    let mut map = serde_json::Map::new();
    map.insert("__metadata__".into(), serde_json::json!({ "format": format }));
    let mut end = 0;
    for (name, dtype, shape) in tensors {
        let start = end;
        end += shape.iter().product::<usize>() * dtype.size();
        let entry = serde_json::json!({"dtype": dtype_name(dtype), "shape": shape, "data_offsets": [start, end]});
        map.insert(name.into(), entry);
    }
    let mut text = serde_json::Value::Object(map).to_string().into_bytes();
    text.resize(text.len().next_multiple_of(8), b' ');
    let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
    bytes.extend(text);
    bytes
}

/// Writes a whole file.
pub fn write(out: &mut dyn Write, format: &str, tensors: &[Tensor]) -> io::Result<()> {
    let list = tensors.iter().map(|t| (t.name.as_str(), t.dtype, t.shape.as_slice()));
    out.write_all(&header(format, list))?;
    tensors.iter().try_for_each(|t| out.write_all(&t.bytes))
}

/// A whole file in memory.
pub fn to_bytes(format: &str, tensors: &[Tensor]) -> Vec<u8> {
    let list = tensors.iter().map(|t| (t.name.as_str(), t.dtype, t.shape.as_slice()));
    let mut bytes = header(format, list);
    tensors.iter().for_each(|t| bytes.extend(&t.bytes));
    bytes
}

#[cfg(test)]
mod tests;
