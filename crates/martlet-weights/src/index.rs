//! model.safetensors.index.json: which shard holds which tensor.

use crate::limits::Limits;
use serde::Deserialize;
use serde::de::{Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Component, Path};

/// Name of the index file of a sharded checkpoint.
pub const INDEX_FILE: &str = "model.safetensors.index.json";

/// Why bytes are not an index.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IndexError {
    #[error("has {found} bytes; at most {limit} are read")]
    Limit { found: u64, limit: u64 },
    #[error("is not valid: {0}")]
    Json(String),
    #[error("lists no tensors")]
    Empty,
    #[error("says that tensor {tensor} is in {shard:?}: shards must be plain file names in the checkpoint's folder")]
    Shard { tensor: String, shard: String },
}

#[derive(Deserialize)]
struct Index {
    #[allow(dead_code)] // sizes and counts that nothing depends on
    metadata: Option<IgnoredAny>,
    weight_map: WeightMap,
}

struct WeightMap(BTreeMap<String, String>);

impl<'de> Deserialize<'de> for WeightMap {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<WeightMap, D::Error> {
        struct V;
        impl<'de> Visitor<'de> for V {
            type Value = WeightMap;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object from tensor names to file names")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<WeightMap, A::Error> {
                let mut names = BTreeMap::new();
                while let Some((name, shard)) = map.next_entry::<String, String>()? {
                    if names.insert(name.clone(), shard).is_some() {
                        return Err(A::Error::custom(format!("tensor {name} is listed twice")));
                    }
                }
                Ok(WeightMap(names))
            }
        }
        deserializer.deserialize_map(V)
    }
}

/// Parses an index: tensor name to shard name. Every shard name is a plain file name.
pub fn parse(bytes: &[u8], limits: &Limits) -> Result<BTreeMap<String, String>, IndexError> {
    if bytes.len() as u64 > limits.json_bytes {
        let (found, limit) = (bytes.len() as u64, limits.json_bytes);
        return Err(IndexError::Limit { found, limit });
    }
    let index: Index = serde_json::from_slice(bytes).map_err(|e| IndexError::Json(e.to_string()))?;
    let WeightMap(map) = index.weight_map;
    if map.is_empty() {
        return Err(IndexError::Empty);
    }
    match map.iter().find(|(_, shard)| !plain_name(shard)) {
        Some((tensor, shard)) => Err(IndexError::Shard { tensor: tensor.clone(), shard: shard.clone() }),
        None => Ok(map),
    }
}

/// Whether `name` is one file name, on every system: no separator, no drive, not "." or "..".
pub fn plain_name(name: &str) -> bool {
    let mut parts = Path::new(name).components();
    matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None)) && !name.contains(['/', '\\', ':', '\0'])
}

#[cfg(test)]
mod tests;
