//! The folder of installed models: a pack for each, under its name.
//!
//! `NAME/` is a pack, and appears when it is whole. `.sources/NAME/` is what has arrived of its source, and
//! `.locks/NAME` is held by the process that is at work on it.

use crate::error::HubError;
use martlet_weights::pack::{MANIFEST_FILE, Manifest, read};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Store {
    dir: PathBuf,
}

/// A model of the store.
#[derive(Clone, Debug)]
pub struct Installed {
    pub name: String,
    pub path: PathBuf,
    /// On the disk.
    pub bytes: u64,
    /// What its manifest says, or why it can not be read.
    pub manifest: Result<Box<Manifest>, String>,
}

/// As long as it lives, no other process works on this name.
#[derive(Debug)]
pub struct Locked(#[allow(dead_code)] File);

impl Store {
    pub fn new(dir: impl Into<PathBuf>) -> Store {
        Store { dir: dir.into() }
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Where a model is, or will be. Fails where the name can not be a folder of its own.
    pub fn path(&self, name: &str) -> Result<PathBuf, HubError> {
        let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        match (1..=100).contains(&name.len()) && name.chars().all(plain) && !name.starts_with(['.', '-']) {
            true => Ok(self.dir.join(name)),
            false => {
                let what = "can not be the name of a model: letters, digits and ._- are allowed".to_string();
                Err(HubError::Name { text: name.to_string(), what })
            }
        }
    }

    /// Where an installed model is.
    pub fn find(&self, name: &str) -> Option<PathBuf> {
        self.path(name).ok().filter(|path| path.join(MANIFEST_FILE).is_file())
    }

    /// The installed model of a name.
    pub fn installed(&self, name: &str) -> Result<Installed, HubError> {
        match self.find(name) {
            Some(path) => Ok(describe(name, path)),
            None => {
                let what = "is not installed; `martlet list` shows what is".to_string();
                Err(HubError::Name { text: name.to_string(), what })
            }
        }
    }

    /// Where the source of a model arrives.
    pub fn source(&self, name: &str) -> Result<PathBuf, HubError> {
        self.path(name).map(|_| self.dir.join(".sources").join(name))
    }

    /// Keeps other processes off a name. Fails at once where one is at work on it.
    pub fn lock(&self, name: &str) -> Result<Locked, HubError> {
        self.path(name)?;
        let locks = self.dir.join(".locks");
        std::fs::create_dir_all(&locks).map_err(HubError::io(&locks))?;
        let path = locks.join(name);
        let open = OpenOptions::new().create(true).read(true).write(true).truncate(false).open(&path);
        let mut file = open.map_err(HubError::io(&path))?;
        match file.try_lock() {
            Ok(()) => {
                let note = |file: &mut File| {
                    file.set_len(0)?;
                    file.write_all(std::process::id().to_string().as_bytes())
                };
                note(&mut file).map_err(HubError::io(&path))?;
                Ok(Locked(file))
            }
            Err(TryLockError::WouldBlock) => {
                let holder = std::fs::read_to_string(&path).ok().filter(|id| !id.is_empty());
                Err(HubError::Busy { name: name.to_string(), holder })
            }
            Err(TryLockError::Error(e)) => Err(HubError::io(&path)(e)),
        }
    }

    /// All that is installed, by name.
    pub fn list(&self) -> Result<Vec<Installed>, HubError> {
        let names = self.names()?;
        Ok(names.iter().filter_map(|name| Some(describe(name, self.find(name)?))).collect())
    }

    /// The names of all that is installed, in their order.
    pub fn names(&self) -> Result<Vec<String>, HubError> {
        let entries = match std::fs::read_dir(&self.dir) {
            Ok(entries) => entries,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(HubError::io(&self.dir)(e)),
        };
        let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        let mut found: Vec<String> = names.filter(|name| self.find(name).is_some()).collect();
        found.sort();
        Ok(found)
    }

    /// Names of sources that have arrived in part, or were kept.
    pub fn sources(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.dir.join(".sources")).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        names
    }

    /// Deletes a model and what is left of its source. The manifest goes first, so that what a kill leaves is no model.
    /// Bytes that were freed; `None` where there was nothing.
    pub fn remove(&self, name: &str) -> Result<Option<u64>, HubError> {
        let _lock = self.lock(name)?;
        let mut freed = None;
        for dir in [self.path(name)?, self.source(name)?] {
            if dir.symlink_metadata().is_err() {
                continue;
            }
            freed = Some(freed.unwrap_or(0) + size(&dir));
            remove_folder(&dir)?;
        }
        Ok(freed)
    }
}

impl Store {
    /// Deletes a pack that can not be read. The caller holds the name's lock.
    pub fn remove_pack(&self, name: &str) -> Result<(), HubError> {
        remove_folder(&self.path(name)?)
    }
}

/// Deletes a folder that may be a pack, its manifest first.
fn remove_folder(dir: &Path) -> Result<(), HubError> {
    match std::fs::remove_file(dir.join(MANIFEST_FILE)) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(HubError::io(dir)(e)),
        _ => {}
    }
    match std::fs::remove_dir_all(dir) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(HubError::io(dir)(e)),
        _ => Ok(()),
    }
}

fn describe(name: &str, path: PathBuf) -> Installed {
    let bytes = std::fs::read(path.join(MANIFEST_FILE)).map_err(|e| e.to_string());
    let manifest = bytes.and_then(|bytes| read(&bytes, &Default::default()).map_err(|e| e.to_string())).map(Box::new);
    Installed { name: name.to_string(), bytes: size(&path), path, manifest }
}

/// Of the files in a folder.
fn size(dir: &Path) -> u64 {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.metadata().ok()).filter(|m| m.is_file()).map(|m| m.len()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_without_a_manifest_is_no_model() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::new(dir.path().join("models"));
        assert!(store.list().unwrap().is_empty());
        let path = store.path("a").unwrap();
        std::fs::create_dir_all(&path).unwrap();
        std::fs::write(path.join("weights.bin"), "1234").unwrap();
        assert_eq!(store.find("a"), None);
        std::fs::write(path.join(MANIFEST_FILE), "{}").unwrap();
        std::fs::create_dir_all(store.source("a").unwrap()).unwrap();
        std::fs::write(store.source("a").unwrap().join("x.part"), "12").unwrap();
        let list = store.list().unwrap();
        assert_eq!((list.len(), list[0].name.as_str(), list[0].bytes), (1, "a", 6));
        assert!(list[0].manifest.is_err(), "and a damaged one is told as such");
        assert_eq!(store.sources(), ["a"]);
        assert_eq!(store.remove("a").unwrap(), Some(8));
        assert_eq!(store.remove("a").unwrap(), None);
        assert!(store.list().unwrap().is_empty() && store.sources().is_empty());
    }

    #[test]
    fn one_process_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::new(dir.path());
        let first = store.lock("a").unwrap();
        let error = store.lock("a").unwrap_err().to_string();
        assert!(error.contains(&format!("(process {}) is at work on \"a\"", std::process::id())), "{error}");
        store.lock("b").unwrap();
        drop(first);
        store.lock("a").unwrap();
    }

    #[test]
    fn names_stay_in_their_folder() {
        let store = Store::new("models");
        for name in ["", ".", "..", ".sources", "a/b", "a\\b", "-rf", "\u{e9}", &"x".repeat(101)] {
            assert!(store.path(name).is_err() && store.find(name).is_none(), "{name}");
        }
        assert_eq!(store.path("qwen3.5-4b").unwrap(), Path::new("models/qwen3.5-4b"));
    }
}
