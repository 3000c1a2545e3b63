//! Where the files of a checkpoint lie: in a folder, or in this process's memory.

use crate::error::WeightsError;
use crate::index::plain_name;
use martlet_io::Map;
use martlet_tensor::Shared;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

#[derive(Debug)]
pub(crate) enum Folder {
    Disk(PathBuf),
    /// Files embedded in the program.
    Memory(Vec<(String, &'static [u8])>),
}

/// The bytes of one opened file.
#[derive(Debug)]
pub(crate) enum Bytes {
    Mapped(Arc<Map>),
    Static(&'static [u8]),
    Owned(Arc<Vec<u8>>),
    /// So many bytes that no file holds: they are made as they are asked for.
    Made(usize),
}

impl Bytes {
    pub fn get(&self) -> &[u8] {
        match self {
            Bytes::Mapped(map) => map.bytes(),
            Bytes::Static(bytes) => bytes,
            Bytes::Owned(bytes) => bytes,
            Bytes::Made(_) => &[],
        }
    }

    pub fn len(&self) -> usize {
        match self {
            Bytes::Made(len) => *len,
            bytes => bytes.get().len(),
        }
    }

    /// The same, for those who go on using them when the checkpoint is closed.
    pub fn shared(&self) -> Shared {
        match self {
            Bytes::Mapped(map) => Shared::new(map.clone()),
            Bytes::Static(bytes) => Shared::new(Arc::new(*bytes)),
            Bytes::Owned(bytes) => Shared::new(bytes.clone()),
            Bytes::Made(_) => Shared::new(Arc::new([])),
        }
    }
}

impl Folder {
    /// How errors name a file of this folder.
    pub fn label(&self, name: &str) -> String {
        match self {
            Folder::Disk(dir) => dir.join(name).display().to_string(),
            Folder::Memory(_) => format!("{name} (built in)"),
        }
    }

    pub fn has(&self, name: &str) -> bool {
        match self {
            Folder::Disk(dir) => dir.join(name).is_file(),
            Folder::Memory(files) => files.iter().any(|(n, _)| n == name),
        }
    }

    /// Maps a file; a missing one is an error.
    pub fn open(&self, name: &str) -> Result<Bytes, WeightsError> {
        match self {
            Folder::Disk(dir) => Ok(Bytes::Mapped(Arc::new(Map::open(&dir.join(name))?))),
            Folder::Memory(files) => match files.iter().find(|(n, _)| n == name) {
                Some((_, bytes)) => Ok(Bytes::Static(bytes)),
                None => Err(WeightsError::file(self.label(name), "is missing")),
            },
        }
    }

    /// Reads a whole file of at most `limit` bytes; `None` when there is none of that name.
    pub fn read(&self, name: &str, limit: u64) -> Result<Option<Vec<u8>>, WeightsError> {
        if !plain_name(name) {
            return Err(WeightsError::file(name, "is not a plain file name"));
        }
        if !self.has(name) {
            return Ok(None);
        }
        let bytes = match self {
            Folder::Disk(dir) => {
                read_file(&dir.join(name), limit).map_err(|e| WeightsError::file(self.label(name), e))?
            }
            Folder::Memory(_) => self.open(name)?.get().to_vec(),
        };
        if bytes.len() as u64 > limit {
            let text = format!("is larger than {limit} bytes; it is not read");
            return Err(WeightsError::file(self.label(name), text));
        }
        Ok(Some(bytes))
    }

    /// Names of all files, sorted.
    pub fn names(&self) -> Result<Vec<String>, WeightsError> {
        let mut names: Vec<String> = match self {
            Folder::Disk(dir) => {
                let error = |e| WeightsError::file(dir.display().to_string(), e);
                let entries = std::fs::read_dir(dir).map_err(error)?;
                entries
                    .flatten()
                    .filter(|e| e.path().is_file())
                    .filter_map(|e| e.file_name().into_string().ok())
                    .collect()
            }
            Folder::Memory(files) => files.iter().map(|(name, _)| name.clone()).collect(),
        };
        names.sort();
        Ok(names)
    }
}

/// Reads at most one byte more than `limit`, whatever size the file claims.
fn read_file(path: &Path, limit: u64) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    std::fs::File::open(path)?.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    Ok(bytes)
}
