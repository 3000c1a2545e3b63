//! Comparing a pack with its digests.

use super::manifest::{Manifest, Remake};
use super::{CHUNK, EXPERTS_FILE, Progress, WEIGHTS_FILE, open};
use crate::error::WeightsError;
use crate::folder::Folder;
use crate::limits::Limits;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

/// Reads all files of the pack `dir` and compares them with the manifest. The error names file and offset of the first
/// difference, and what lies there.
pub fn verify(dir: &Path, progress: Progress<'_>) -> Result<(), WeightsError> {
    let folder = Folder::Disk(dir.to_path_buf());
    let limits = Limits::default();
    open::open(&folder, &limits)?;
    let (manifest, _) = open::manifest(&folder, &limits)?;
    for text in &manifest.texts {
        let bytes = folder.read(&text.name, limits.text_bytes)?.unwrap_or_default();
        if bytes.len() as u64 != text.bytes || blake3::hash(&bytes) != text.blake3.0 {
            return Err(differs(&folder, &manifest, &text.name, 0, "the file"));
        }
    }
    let mut check = Check { folder: &folder, manifest: &manifest, buffer: Vec::new(), done: 0, progress };
    check.weights(dir)?;
    if manifest.experts.is_empty() { Ok(()) } else { check.experts(dir) }
}

fn differs(folder: &Folder, manifest: &Manifest, name: &str, offset: u64, what: &str) -> WeightsError {
    let place = manifest.source.place();
    let again = Remake(Some(&place));
    let text = format!("{what} at byte {offset} is not what was written; make the pack again: {again}");
    WeightsError::file(folder.label(name), text)
}

struct Check<'a> {
    folder: &'a Folder,
    manifest: &'a Manifest,
    buffer: Vec<u8>,
    done: u64,
    progress: Progress<'a>,
}

impl Check<'_> {
    fn weights(&mut self, dir: &Path) -> Result<(), WeightsError> {
        let (mut file, weights) = (self.open(dir, WEIGHTS_FILE)?, &self.manifest.weights);
        for (i, digest) in weights.blake3.iter().enumerate() {
            let offset = i as u64 * CHUNK;
            self.read(&mut file, WEIGHTS_FILE, offset, CHUNK.min(weights.bytes - offset))?;
            if blake3::hash(&self.buffer) != digest.0 {
                // The first tensor that reaches into it.
                let inside = self.manifest.tensors.iter().find(|t| t.offset + t.bytes > offset);
                let what = inside.map_or("padding".to_string(), |t| format!("{} or what follows it", t.name));
                return Err(differs(self.folder, self.manifest, WEIGHTS_FILE, offset, &what));
            }
        }
        Ok(())
    }

    fn experts(&mut self, dir: &Path) -> Result<(), WeightsError> {
        let mut file = self.open(dir, EXPERTS_FILE)?;
        for stack in &self.manifest.experts {
            for (e, (digest, sum)) in stack.blake3.iter().zip(&stack.xxh3).enumerate() {
                let offset = stack.offset + e as u64 * stack.stride;
                self.read(&mut file, EXPERTS_FILE, offset, stack.bytes)?;
                if blake3::hash(&self.buffer) != digest.0 || xxhash_rust::xxh3::xxh3_64(&self.buffer) != sum.0 {
                    let what = format!("expert {e} of {}", stack.name);
                    return Err(differs(self.folder, self.manifest, EXPERTS_FILE, offset, &what));
                }
            }
        }
        Ok(())
    }

    fn open(&self, dir: &Path, name: &str) -> Result<File, WeightsError> {
        File::open(dir.join(name)).map_err(|e| WeightsError::file(self.folder.label(name), e))
    }

    /// `len` bytes from `offset` into the buffer. Both are within the file, by `open::open`.
    fn read(&mut self, file: &mut File, name: &str, offset: u64, len: u64) -> Result<(), WeightsError> {
        self.buffer.resize(len as usize, 0);
        let read = file.seek(SeekFrom::Start(offset)).and_then(|_| file.read_exact(&mut self.buffer));
        read.map_err(|e| WeightsError::file(self.folder.label(name), e))?;
        self.done += len;
        (self.progress)(self.done, self.manifest.weights.bytes + self.manifest.experts_bytes);
        Ok(())
    }
}
