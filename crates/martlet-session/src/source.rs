//! Where a model comes from.

use crate::{OpenError, SessionError};
use martlet_chat::{ChatModel, TEXT_FILES, TextFiles};
use martlet_device::reference::Reference;
use martlet_model::{Model, ModelSpec};
use martlet_weights::{Checkpoint, Report, synthetic};
use std::path::{Path, PathBuf};

/// A model, not yet opened.
#[derive(Clone, Debug)]
pub enum ModelSource {
    /// A checkpoint folder, a single .safetensors file with config.json (and tokenizer files) beside it, or a GGUF file
    /// (the first of its parts), which has all in it.
    Path(PathBuf),
    /// Files that are part of the program.
    Embedded(EmbeddedModel),
    /// Random weights in the shape of a released model, made in memory: for measuring.
    Synthetic(SyntheticModel),
}

/// Random weights.
#[derive(Clone, Debug)]
pub struct SyntheticModel {
    /// One of [`martlet_model::shape_names`].
    pub shape: String,
    /// How matrices are stored, and the seed.
    pub options: synthetic::Options,
}

/// A checkpoint inside the program.
#[derive(Clone, Copy, Debug)]
pub struct EmbeddedModel {
    /// Its name as people see it.
    pub name: &'static str,
    /// (name, bytes) of all files.
    pub files: &'static [(&'static str, &'static [u8])],
}

impl ModelSource {
    /// The name as people see it: of the embedded model, of the folder, or the file's path.
    pub fn name(&self) -> String {
        match self {
            ModelSource::Embedded(model) => model.name.to_string(),
            ModelSource::Synthetic(model) => format!("{} ({}, random weights)", model.shape, model.options.scheme),
            ModelSource::Path(path) => {
                // "." and ".." have no name of their own.
                let name = path
                    .file_name()
                    .or(path.canonicalize().ok().as_deref().and_then(Path::file_name))
                    .map(|n| n.to_owned());
                name.map_or_else(|| path.display().to_string(), |n| n.to_string_lossy().into_owned())
            }
        }
    }

    /// Maps the weights; nothing is read yet.
    pub(crate) fn checkpoint(&self) -> Result<Checkpoint, OpenError> {
        Ok(match self {
            ModelSource::Path(path) => Checkpoint::open(path)?,
            ModelSource::Synthetic(model) => martlet_model::synthetic(&model.shape, model.options)?.checkpoint()?,
            ModelSource::Embedded(model) => {
                Checkpoint::from_files(model.files.iter().map(|(name, bytes)| (name.to_string(), *bytes)).collect())?
            }
        })
    }

    /// The text side alone: tokenizer and template.
    pub fn text(&self) -> Result<ChatModel, SessionError> {
        let text = self.text_files().and_then(|files| Ok(ChatModel::load(&files)?));
        text.map_err(|e| e.of(&self.name()))
    }

    /// What the checkpoint holds, compared with what its config asks for. Nothing goes to a device.
    pub fn check(&self) -> Result<(ModelSpec, Report, Checkpoint), SessionError> {
        let check = || {
            let checkpoint = self.checkpoint()?;
            let (spec, report) = Model::<Reference>::check(&checkpoint)?;
            Ok((spec, report, checkpoint))
        };
        check().map_err(|e: OpenError| e.of(&self.name()))
    }

    /// The files of tokenizer, template and generation settings.
    pub(crate) fn text_files(&self) -> Result<TextFiles, OpenError> {
        Ok(match self {
            ModelSource::Embedded(model) => TextFiles::from_embedded(model.name, model.files.iter().copied()),
            ModelSource::Synthetic(_) => TextFiles::from_owned(self.name(), Vec::new()),
            ModelSource::Path(path) if Checkpoint::is_gguf(path)? => self.made_files()?,
            ModelSource::Path(path) if path.is_dir() => TextFiles::from_folder(path)?,
            ModelSource::Path(path) => TextFiles::from_folder(folder_of(path))?,
        })
    }

    /// The same, made from the metadata of a GGUF file.
    fn made_files(&self) -> Result<TextFiles, OpenError> {
        let (checkpoint, mut files) = (self.checkpoint()?, Vec::new());
        for name in TEXT_FILES {
            files.extend(checkpoint.text_file(name)?.map(|bytes| (name, bytes)));
        }
        Ok(TextFiles::from_owned(self.name(), files))
    }
}

fn folder_of(file: &Path) -> &Path {
    file.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_named_after_its_folder_or_file() {
        let name = |path: &str| ModelSource::Path(path.into()).name();
        assert_eq!(name("models/fledgling/"), "fledgling");
        assert_eq!(name("a/b.safetensors"), "b.safetensors");
        assert_ne!(name("."), ".");
        assert_eq!(folder_of(Path::new("b.safetensors")), Path::new("."));
    }
}
