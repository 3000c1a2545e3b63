//! GGUF files: one file (or several, split) with the weights, the configuration and the tokenizer.
//!
//! [`read`] parses a header and believes nothing. What the files say is turned into what the other formats have: a
//! config.json and tokenizer files ([`config`], [`text`]) and modules under canonical names ([`modules`]). Blocks are
//! taken apart into planes when a tensor is first used ([`repack`]): memory then holds one copy of it, scales as f16 or
//! f32, until the checkpoint is dropped; plain floats stay in the mapped file.

mod config;
mod files;
mod metadata;
mod modules;
mod reader;
mod repack;
mod text;

pub use files::{part, part_name};
pub use metadata::{Metadata, Texts, Value};
pub use reader::{GgufError, Header, TensorInfo, TensorType, read};

pub(crate) use files::{Files, find, is_gguf};
pub(crate) use modules::{group_rows, modules};
pub(crate) use repack::Repack;

use crate::source::Source;

/// What only GGUF files say.
#[derive(Debug)]
pub(crate) struct Gguf {
    pub metadata: Metadata,
}

/// A text file of the kind that other formats have beside their weights, made from the metadata: tokenizer.json,
/// tokenizer_config.json, generation_config.json or chat_template.jinja. `None` when the metadata has nothing of it.
pub fn text_file(metadata: &Metadata, name: &str) -> Result<Option<Vec<u8>>, String> {
    text::file(metadata, name)
}

/// config.json as other formats have it. The error names the key.
pub(crate) fn config(metadata: &Metadata, source: &Source) -> Result<serde_json::Value, String> {
    config::config(metadata, source)
}

#[cfg(test)]
pub(crate) mod tests;
