//! A folder beside the destination that takes its name when all is written, and goes away when it is not.

use crate::error::WeightsError;
use std::fs::File;
use std::path::{Path, PathBuf};

pub(crate) struct Staging {
    path: PathBuf,
    dst: PathBuf,
}

impl Staging {
    pub fn new(dst: &Path) -> Result<Staging, WeightsError> {
        let error = |e: std::io::Error| WeightsError::file(dst.display().to_string(), e);
        if let Ok(mut entries) = std::fs::read_dir(dst) {
            if entries.next().is_some() {
                let text = "is there and not empty; name a new folder";
                return Err(WeightsError::file(dst.display().to_string(), text));
            }
        } else if dst.exists() {
            return Err(WeightsError::file(dst.display().to_string(), "is there and no folder"));
        }
        let Some(name) = dst.file_name() else {
            return Err(WeightsError::file(dst.display().to_string(), "is no name for a new folder"));
        };
        let parent = dst.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        std::fs::create_dir_all(parent).map_err(error)?;
        let hidden = format!(".{}.partial-{}", name.to_string_lossy(), std::process::id());
        let path = parent.join(hidden);
        std::fs::create_dir(&path).map_err(|e| WeightsError::file(path.display().to_string(), e))?;
        Ok(Staging { path, dst: dst.to_path_buf() })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn finish(self) -> Result<(), WeightsError> {
        // An empty folder of that name gives way; a full one makes the renaming fail.
        let _ = std::fs::remove_dir(&self.dst);
        sync(&self.path);
        std::fs::rename(&self.path, &self.dst).map_err(|e| WeightsError::file(self.dst.display().to_string(), e))?;
        sync(self.dst.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new(".")));
        Ok(())
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // Nothing is left of this name after a success; after a failure the error that is reported counts.
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// Writes a folder's list of names to the disk. Where the system refuses, a loss of power may undo the last renaming:
/// all or nothing is there even so.
fn sync(dir: &Path) {
    let _ = File::open(dir).and_then(|dir| dir.sync_all());
}
