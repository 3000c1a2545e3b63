//! The header of a GGUF file: magic, version, counts, metadata, tensor infos; the data begins at the next multiple of
//! the alignment. All numbers are little-endian.
//!
//! Every length is compared with what is left of the file, and with [`Limits`], before anything of that size is made.

use super::metadata::{Metadata, Texts, Value};
use crate::limits::{Limits, MAX_DIMENSIONS};
use martlet_tensor::Float;
use martlet_tensor::scheme::ggml::BlockType;
use std::collections::{BTreeMap, HashSet};
use std::ops::Range;

/// Arrays inside arrays, at most.
const MAX_DEPTH: usize = 4;
/// Of the data and of each tensor in it, where the file names none.
const ALIGNMENT: u64 = 32;

/// What the elements of a tensor are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TensorType {
    Float(Float),
    Blocks(BlockType),
}

/// One tensor of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    pub name: String,
    pub kind: TensorType,
    /// Outermost dimension first, as everywhere else here (the file has the innermost first).
    pub shape: Vec<usize>,
    /// Where its bytes lie in the file.
    pub range: Range<usize>,
}

/// What the header of a file says.
#[derive(Clone, Debug, PartialEq)]
pub struct Header {
    pub metadata: Metadata,
    /// In the order of the file.
    pub tensors: Vec<TensorInfo>,
}

/// Why bytes are not a GGUF file that is read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GgufError {
    #[error("is no GGUF file: it does not begin with \"GGUF\"")]
    Magic,
    #[error("is a big-endian GGUF file; only little-endian ones are read")]
    BigEndian,
    #[error("is GGUF version {0}; versions 2 and 3 are read")]
    Version(u32),
    #[error("is truncated: {what} at byte {at} takes {need} bytes, {left} are left")]
    Truncated { what: String, at: u64, need: u64, left: u64 },
    #[error("{what}; at most {limit} are read")]
    Limit { what: String, limit: u64 },
    #[error("key {key}: {what}")]
    Key { key: String, what: String },
    #[error("tensor {tensor}: {what}")]
    Tensor { tensor: String, what: String },
}

/// Reads the header of a whole file.
pub fn read(file: &[u8], limits: &Limits) -> Result<Header, GgufError> {
    let mut cursor = Cursor { file, at: 0, limits, values: 0 };
    if file.get(..4) != Some(b"GGUF") {
        return Err(GgufError::Magic);
    }
    cursor.at = 4;
    let version = cursor.u32("the version")?;
    match version {
        2 | 3 => {}
        _ if matches!(version.swap_bytes(), 1..=3) => return Err(GgufError::BigEndian),
        _ => return Err(GgufError::Version(version)),
    }
    let (tensors, keys) = (cursor.u64("the number of tensors")?, cursor.u64("the number of keys")?);
    let mut metadata = BTreeMap::new();
    for i in 0..keys {
        let key = cursor.text(&format!("the name of key {i}"))?.to_string();
        let kind = cursor.u32(&format!("the type of key {key}"))?;
        let value = cursor.value(&key, kind, 0)?;
        if metadata.insert(key.clone(), value).is_some() {
            return Err(GgufError::Key { key, what: "is there twice".into() });
        }
    }
    let metadata = Metadata(metadata);
    let alignment = alignment(&metadata)?;
    let mut infos = Vec::new();
    for i in 0..tensors {
        infos.push(cursor.info(i)?);
    }
    let start = (cursor.at as u64).next_multiple_of(alignment);
    let mut found = Vec::new();
    let mut names = HashSet::new();
    for info in infos {
        if !names.insert(info.name.clone()) {
            return Err(tensor(&info.name, "is listed twice"));
        }
        found.push(info.place(start, alignment, file.len() as u64)?);
    }
    refuse_overlap(&found)?;
    Ok(Header { metadata, tensors: found })
}

fn alignment(metadata: &Metadata) -> Result<u64, GgufError> {
    const KEY: &str = "general.alignment";
    let error = |what| GgufError::Key { key: KEY.into(), what };
    match metadata.number(KEY).map_err(error)? {
        None => Ok(ALIGNMENT),
        Some(n) if n.is_power_of_two() && n <= 1 << 20 => Ok(n),
        Some(n) => Err(error(format!("is {n}, expected a power of two of at most 2^20"))),
    }
}

fn tensor(name: &str, what: impl Into<String>) -> GgufError {
    GgufError::Tensor { tensor: name.to_string(), what: what.into() }
}

struct Cursor<'a> {
    file: &'a [u8],
    at: usize,
    limits: &'a Limits,
    /// Values of the metadata so far, elements of arrays counted each.
    values: u64,
}

/// A tensor info as the file has it.
struct RawInfo {
    name: String,
    /// Innermost first.
    shape: Vec<u64>,
    kind: u32,
    offset: u64,
}

impl<'a> Cursor<'a> {
    fn take(&mut self, what: &str, need: u64) -> Result<&'a [u8], GgufError> {
        let left = (self.file.len() - self.at) as u64;
        if need > left {
            return Err(GgufError::Truncated { what: what.to_string(), at: self.at as u64, need, left });
        }
        // Not more than what is left of a slice: fits usize.
        let bytes = &self.file[self.at..self.at + need as usize];
        self.at += bytes.len();
        if self.at as u64 > self.limits.header_bytes {
            let (what, limit) = (format!("the header goes on after byte {}", self.at), self.limits.header_bytes);
            return Err(GgufError::Limit { what, limit });
        }
        Ok(bytes)
    }

    fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], GgufError> {
        let bytes = self.take(what, N as u64)?;
        Ok(bytes.try_into().expect("as many bytes as were asked for"))
    }

    fn u32(&mut self, what: &str) -> Result<u32, GgufError> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    fn u64(&mut self, what: &str) -> Result<u64, GgufError> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    fn text(&mut self, what: &str) -> Result<&'a str, GgufError> {
        let length = self.u64(what)?;
        let bytes = self.take(what, length)?;
        let invalid = |_| GgufError::Key { key: what.to_string(), what: "is not UTF-8".into() };
        std::str::from_utf8(bytes).map_err(invalid)
    }

    /// One value more of key `key`.
    fn count(&mut self, key: &str) -> Result<(), GgufError> {
        self.values += 1;
        if self.values > self.limits.metadata_values {
            let limit = self.limits.metadata_values;
            return Err(GgufError::Limit { what: format!("key {key} holds too many values"), limit });
        }
        Ok(())
    }

    fn value(&mut self, key: &str, kind: u32, depth: usize) -> Result<Value, GgufError> {
        self.count(key)?;
        Ok(match kind {
            0 => Value::Unsigned(u8::from_le_bytes(self.array(key)?).into()),
            1 => Value::Signed(i8::from_le_bytes(self.array(key)?).into()),
            2 => Value::Unsigned(u16::from_le_bytes(self.array(key)?).into()),
            3 => Value::Signed(i16::from_le_bytes(self.array(key)?).into()),
            4 => Value::Unsigned(self.u32(key)?.into()),
            5 => Value::Signed(i32::from_le_bytes(self.array(key)?).into()),
            6 => Value::Float(f32::from_le_bytes(self.array(key)?).into()),
            7 => Value::Bool(self.array::<1>(key)?[0] != 0),
            8 => Value::Text(self.text(key)?.to_string()),
            9 => self.list(key, depth)?,
            10 => Value::Unsigned(self.u64(key)?),
            11 => Value::Signed(i64::from_le_bytes(self.array(key)?)),
            12 => Value::Float(f64::from_le_bytes(self.array(key)?)),
            _ => {
                let what = format!("has type {kind}; known are 0 to 12");
                return Err(GgufError::Key { key: key.to_string(), what });
            }
        })
    }

    fn list(&mut self, key: &str, depth: usize) -> Result<Value, GgufError> {
        if depth == MAX_DEPTH {
            let what = format!("nests arrays more than {MAX_DEPTH} deep");
            return Err(GgufError::Key { key: key.to_string(), what });
        }
        let (kind, count) = (self.u32(key)?, self.u64(key)?);
        if kind == 8 {
            let mut texts = Texts::default();
            for _ in 0..count {
                self.count(key)?;
                texts.push(self.text(key)?);
            }
            return Ok(Value::Texts(texts));
        }
        let mut list = Vec::new();
        for _ in 0..count {
            list.push(self.value(key, kind, depth + 1)?);
        }
        Ok(Value::List(list))
    }

    fn info(&mut self, index: u64) -> Result<RawInfo, GgufError> {
        let name = self.text(&format!("the name of tensor {index}"))?.to_string();
        let dimensions = self.u32(&name)?;
        if dimensions as usize > MAX_DIMENSIONS {
            return Err(tensor(&name, format!("has {dimensions} dimensions; at most {MAX_DIMENSIONS} are read")));
        }
        let shape = (0..dimensions).map(|_| self.u64(&name)).collect::<Result<_, _>>()?;
        Ok(RawInfo { shape, kind: self.u32(&name)?, offset: self.u64(&name)?, name })
    }
}

impl RawInfo {
    /// Checks type, shape and place against each other and the file, whose data begins at `start`.
    fn place(self, start: u64, alignment: u64, file: u64) -> Result<TensorInfo, GgufError> {
        let error = |what: String| tensor(&self.name, what);
        let kind = tensor_type(self.kind).map_err(error)?;
        let (weights, bytes) = match kind {
            TensorType::Float(float) => (1, float.size() as u64),
            TensorType::Blocks(block) => (block.weights() as u64, block.bytes() as u64),
        };
        if self.shape.contains(&0) {
            return Err(error(format!("has shape {:?} and no values", self.shape)));
        }
        let row = self.shape.first().copied().unwrap_or(1);
        if !row.is_multiple_of(weights) {
            return Err(error(format!("has rows of {row}, which is no multiple of its blocks' {weights}")));
        }
        let elements = self.shape.iter().try_fold(1u64, |n, &d| n.checked_mul(d));
        let need = elements.and_then(|n| (n / weights).checked_mul(bytes));
        let from = start.checked_add(self.offset);
        let end = from.zip(need).and_then(|(from, need)| from.checked_add(need));
        let (Some(from), Some(end)) = (from, end.filter(|&end| end <= file)) else {
            let need = need.map_or("more than 2^64".to_string(), |n| n.to_string());
            let text = format!(
                "takes {need} bytes at {} of the data, which begins at byte {start}, but the file has {file}: it is \
                 truncated or damaged",
                self.offset
            );
            return Err(error(text));
        };
        if !self.offset.is_multiple_of(alignment) {
            return Err(error(format!("begins at {}, which is no multiple of {alignment}", self.offset)));
        }
        let shape: Option<Vec<usize>> = self.shape.iter().rev().map(|&d| usize::try_from(d).ok()).collect();
        let shape = shape.ok_or_else(|| error(format!("has a dimension too large: {:?}", self.shape)))?;
        // Both ends lie in the file, which is in memory: they fit usize.
        Ok(TensorInfo { name: self.name, kind, shape, range: from as usize..end as usize })
    }
}

fn tensor_type(number: u32) -> Result<TensorType, String> {
    let refused = [
        (9, "Q8_1"),
        (15, "Q8_K"),
        (24, "I8"),
        (25, "I16"),
        (26, "I32"),
        (27, "I64"),
        (28, "F64"),
        (40, "NVFP4"),
        (41, "Q1_0"),
    ];
    match number {
        0 => return Ok(TensorType::Float(Float::F32)),
        1 => return Ok(TensorType::Float(Float::F16)),
        30 => return Ok(TensorType::Float(Float::Bf16)),
        _ => {}
    }
    if let Some(block) = BlockType::from_number(number) {
        return Ok(TensorType::Blocks(block));
    }
    let known: Vec<&str> = ["F32", "F16", "BF16"].into_iter().chain(BlockType::all().map(BlockType::name)).collect();
    let name = refused.iter().find(|(n, _)| *n == number).map_or(format!("number {number}"), |(_, n)| n.to_string());
    Err(format!("has type {name}, which is not supported; supported are {}", known.join(", ")))
}

fn refuse_overlap(tensors: &[TensorInfo]) -> Result<(), GgufError> {
    let mut order: Vec<&TensorInfo> = tensors.iter().collect();
    order.sort_by_key(|t| t.range.start);
    match order.windows(2).find(|pair| pair[1].range.start < pair[0].range.end) {
        Some([a, b]) => Err(tensor(&b.name, format!("begins at byte {} inside of {}", b.range.start, a.name))),
        _ => Ok(()),
    }
}
