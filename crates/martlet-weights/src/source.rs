//! The tensors of all files of a checkpoint, under the names that the files give them.

use crate::error::{Problem, WeightsError};
use crate::folder::{Bytes, Folder};
use crate::index::{self, INDEX_FILE};
use crate::limits::Limits;
use crate::safetensors;
use crate::synthetic::Pool;
use martlet_tensor::{Dtype, Shared};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};

/// A sharded checkpoint may have its MTP head in a file of its own that the index does not list.
pub(crate) const MTP_FILE: &str = "mtp.safetensors";
const SINGLE_FILE: &str = "model.safetensors";

/// One opened file.
#[derive(Debug)]
pub(crate) struct SourceFile {
    pub name: String,
    pub bytes: Bytes,
}

/// One stored tensor.
#[derive(Debug)]
pub(crate) struct Raw {
    pub name: String,
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    /// Index of its file.
    pub file: usize,
    /// Its bytes in that file.
    pub range: std::ops::Range<usize>,
}

/// All files and tensors of a checkpoint.
#[derive(Debug, Default)]
pub(crate) struct Source {
    pub files: Vec<SourceFile>,
    pub tensors: Vec<Raw>,
    /// What matrices of random weights are made of.
    pub pool: Option<Pool>,
    /// Bytes of rewritten tensors.
    pub rewritten: Meter,
}

/// Bytes that are held now, and the most that were.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    now: AtomicUsize,
    most: AtomicUsize,
}

impl Meter {
    pub fn add(&self, bytes: usize) {
        let now = self.now.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.most.fetch_max(now, Ordering::Relaxed);
    }

    pub fn remove(&self, bytes: usize) {
        self.now.fetch_sub(bytes, Ordering::Relaxed);
    }

    pub fn most(&self) -> usize {
        self.most.load(Ordering::Relaxed)
    }
}

impl Source {
    /// Opens the weight files of `folder`; `only` names the one to take instead of looking.
    pub fn open(folder: &Folder, only: Option<&str>, limits: &Limits) -> Result<Source, WeightsError> {
        let mut source = Source::default();
        if let Some(name) = only {
            source.add(folder, name, limits)?;
        } else if let Some(bytes) = folder.read(INDEX_FILE, limits.json_bytes)? {
            let file = folder.label(INDEX_FILE);
            let map = index::parse(&bytes, limits).map_err(|source| WeightsError::Index { file, source })?;
            source.add_shards(folder, &map, limits)?;
        } else if folder.has(SINGLE_FILE) {
            source.add(folder, SINGLE_FILE, limits)?;
        } else {
            let text = format!("there is neither {SINGLE_FILE} nor {INDEX_FILE}");
            return Err(WeightsError::file(folder.label(""), text));
        }
        if only.is_none() && folder.has(MTP_FILE) && source.files.iter().all(|f| f.name != MTP_FILE) {
            source.add(folder, MTP_FILE, limits)?;
        }
        source.refuse_duplicates()?;
        Ok(source)
    }

    /// Opens the shards that the index names. Index and shards must agree on every tensor.
    fn add_shards(
        &mut self,
        folder: &Folder,
        map: &BTreeMap<String, String>,
        limits: &Limits,
    ) -> Result<(), WeightsError> {
        for shard in map.values().collect::<BTreeSet<_>>() {
            if !folder.has(shard) {
                let listed = map.iter().find(|(_, s)| *s == shard);
                let tensor = listed.map_or("", |(t, _)| t);
                let text = format!("shard {shard} is missing; it should hold {tensor}. Fetch the checkpoint again");
                return Err(WeightsError::file(folder.label(INDEX_FILE), text));
            }
            self.add(folder, shard, limits)?;
        }
        let mut problems = Vec::new();
        let mut found = BTreeSet::new();
        for t in &self.tensors {
            let file = &self.files[t.file].name;
            found.insert(t.name.as_str());
            match map.get(&t.name) {
                Some(shard) if shard == file => {}
                Some(shard) => problems.push(self.problem(t, format!("the index says that it is in {shard}"))),
                None => problems.push(self.problem(t, "is not listed in the index")),
            }
        }
        for (tensor, shard) in map.iter().filter(|(t, _)| !found.contains(t.as_str())) {
            problems.push(Problem {
                tensor: tensor.clone(),
                file: shard.clone(),
                what: "is listed in the index, but the shard does not hold it".into(),
            });
        }
        match problems.is_empty() {
            true => Ok(()),
            false => Err(WeightsError::Tensors(problems)),
        }
    }

    fn add(&mut self, folder: &Folder, name: &str, limits: &Limits) -> Result<(), WeightsError> {
        let bytes = folder.open(name)?;
        let infos = safetensors::read(bytes.get(), limits)
            .map_err(|source| WeightsError::Safetensors { file: folder.label(name), source })?;
        let file = self.files.len();
        self.files.push(SourceFile { name: name.to_string(), bytes });
        self.tensors.extend(infos.into_iter().map(|t| Raw {
            name: t.name,
            dtype: t.dtype,
            shape: t.shape,
            file,
            range: t.range,
        }));
        Ok(())
    }

    pub(crate) fn refuse_duplicates(&self) -> Result<(), WeightsError> {
        let mut seen = BTreeMap::new();
        for t in &self.tensors {
            if let Some(other) = seen.insert(t.name.as_str(), t.file) {
                let text = format!("is also in {}", self.files[other].name);
                return Err(self.problem(t, text).into());
            }
        }
        Ok(())
    }

    pub fn problem(&self, t: &Raw, what: impl Into<String>) -> Problem {
        Problem { tensor: t.name.clone(), file: self.files[t.file].name.clone(), what: what.into() }
    }

    /// Bytes of tensor `t`, for those who go on using them when the checkpoint is closed; `None` out of bounds.
    pub fn shared(&self, t: usize) -> Option<Shared> {
        let t = &self.tensors[t];
        self.files[t.file].bytes.shared().part(t.range.clone())
    }

    /// What tensor `t` is made of, where no file holds it.
    pub fn pool_of(&self, t: usize) -> Option<&Pool> {
        self.pool.as_ref().filter(|_| matches!(self.files[self.tensors[t].file].bytes, Bytes::Made(_)))
    }

    /// `part` of a file is done with: its pages need not stay in memory.
    pub fn release(&self, part: &[u8]) {
        for file in &self.files {
            if let Bytes::Mapped(map) = &file.bytes {
                map.release(part);
            }
        }
    }

    /// Bytes of tensor `t`; none of one that no file holds.
    pub fn bytes(&self, t: usize) -> &[u8] {
        let t = &self.tensors[t];
        match &self.files[t.file].bytes {
            Bytes::Made(_) => &[],
            // In bounds: the header's parser has compared every range with the file's length, and maps do not change size.
            bytes => &bytes.get()[t.range.clone()],
        }
    }
}

#[cfg(test)]
mod tests;
