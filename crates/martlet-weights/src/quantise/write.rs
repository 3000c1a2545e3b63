//! Planned tensors into files: a folder that appears when it is whole, or memory.

use super::plan::{How, Item, Plan, Shard};
use super::{Progress, Summary};
use crate::checkpoint::Checkpoint;
use crate::error::WeightsError;
use crate::index::INDEX_FILE;
use crate::safetensors;
use serde_json::{Map, Value, json};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

/// Where files go.
pub(crate) enum Output<'a> {
    Folder(&'a Path),
    Memory(&'a mut Vec<(String, Vec<u8>)>),
}

/// A file being written.
enum Writer {
    File(BufWriter<File>, PathBuf),
    Memory(String, Vec<u8>),
}

impl Output<'_> {
    fn create(&self, name: &str) -> Result<Writer, WeightsError> {
        match self {
            Output::Folder(dir) => {
                let path = dir.join(name);
                let file = File::create(&path).map_err(|e| WeightsError::file(path.display().to_string(), e))?;
                Ok(Writer::File(BufWriter::with_capacity(1 << 20, file), path))
            }
            Output::Memory(_) => Ok(Writer::Memory(name.to_string(), Vec::new())),
        }
    }

    fn finish(&mut self, writer: Writer) -> Result<(), WeightsError> {
        match (writer, self) {
            (Writer::File(buffer, path), _) => {
                let flushed = buffer.into_inner().map_err(|e| e.into_error());
                let synced = flushed.and_then(|file| file.sync_all());
                synced.map_err(|e| WeightsError::file(path.display().to_string(), e))
            }
            (Writer::Memory(name, bytes), Output::Memory(files)) => {
                files.push((name, bytes));
                Ok(())
            }
            (Writer::Memory(name, _), Output::Folder(_)) => {
                Err(WeightsError::file(name, "was written to memory, but a folder was asked for"))
            }
        }
    }

    fn file(&mut self, name: &str, bytes: &[u8]) -> Result<(), WeightsError> {
        let mut writer = self.create(name)?;
        writer.put(bytes)?;
        self.finish(writer)
    }
}

impl Writer {
    fn put(&mut self, bytes: &[u8]) -> Result<(), WeightsError> {
        match self {
            Writer::File(file, path) => {
                file.write_all(bytes).map_err(|e| WeightsError::file(path.display().to_string(), e))
            }
            Writer::Memory(_, buffer) => {
                buffer.extend(bytes);
                Ok(())
            }
        }
    }
}

/// Takes the next bytes of a file.
pub(crate) type Put<'a> = &'a mut dyn FnMut(&[u8]) -> Result<(), WeightsError>;

/// Gives the bytes of an item's tensors, in their order.
pub(crate) type Encode<'a> = &'a mut dyn FnMut(&Item, Put<'_>) -> Result<(), WeightsError>;

/// Writes all files of the plan, and the files `beside` it.
pub(crate) fn write(
    plan: &Plan,
    beside: Vec<(String, Vec<u8>)>,
    output: &mut Output<'_>,
    encode: Encode<'_>,
    progress: Progress<'_>,
) -> Result<Summary, WeightsError> {
    let mut summary = Summary { unfit: plan.unfit.clone(), ..Summary::default() };
    let total = plan.weights();
    for shard in &plan.shards {
        write_shard(shard, output, encode, &mut summary, total, progress)?;
        summary.files.push(shard.name.clone());
    }
    let mut texts = vec![(INDEX_FILE.to_string(), pretty(&index(plan))), config(plan)];
    texts.extend(beside);
    for (name, bytes) in texts {
        output.file(&name, &bytes)?;
        summary.files.push(name);
    }
    Ok(summary)
}

fn write_shard(
    shard: &Shard,
    output: &mut Output<'_>,
    encode: Encode<'_>,
    summary: &mut Summary,
    total: u64,
    progress: Progress<'_>,
) -> Result<(), WeightsError> {
    let tensors: Vec<_> = shard.items.iter().flat_map(|item| item.tensors()).collect();
    let list = tensors.iter().map(|(name, dtype, shape)| (name.as_str(), *dtype, shape.as_slice()));
    let header = safetensors::header("mlx", list);
    let mut writer = output.create(&shard.name)?;
    writer.put(&header)?;
    summary.bytes += header.len() as u64;
    for item in &shard.items {
        encode(item, &mut |bytes| {
            summary.bytes += bytes.len() as u64;
            writer.put(bytes)
        })?;
        match item.how {
            How::Packed(_) => summary.packed_weights += item.weights(),
            How::Plain(_) | How::ChannelsLast(_) => summary.plain_weights += item.weights(),
        }
        progress(summary.packed_weights + summary.plain_weights, total);
    }
    output.finish(writer)
}

/// The index of the model's shards. mtp.safetensors is not in it: mlx-lm would look for its tensors.
fn index(plan: &Plan) -> Value {
    let (mut map, mut bytes) = (Map::new(), 0);
    for shard in plan.shards.iter().filter(|s| s.name != crate::source::MTP_FILE) {
        for item in &shard.items {
            bytes += item.bytes();
            map.extend(item.tensors().into_iter().map(|(name, ..)| (name, shard.name.clone().into())));
        }
    }
    json!({"metadata": {"total_size": bytes}, "weight_map": map})
}

fn config(plan: &Plan) -> (String, Vec<u8>) {
    ("config.json".to_string(), pretty(&plan.config))
}

fn pretty(value: &Value) -> Vec<u8> {
    format!("{value:#}\n").into_bytes()
}

/// Files to be copied: tokenizer, templates, generation and image settings, licences.
pub(super) fn beside(src: &Checkpoint) -> Result<Vec<(String, Vec<u8>)>, WeightsError> {
    let mut files = Vec::new();
    for name in src.text_names()?.into_iter().filter(|name| name != "config.json") {
        if let Some(bytes) = src.text_file(&name)? {
            files.push((name, bytes));
        }
    }
    Ok(files)
}
