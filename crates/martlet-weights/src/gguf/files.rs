//! The files of a GGUF checkpoint: one, or parts called NAME-00001-of-0000N.gguf.

use super::metadata::Metadata;
use super::reader::{TensorType, read};
use crate::error::WeightsError;
use crate::folder::Folder;
use crate::limits::Limits;
use crate::source::{Raw, Source, SourceFile};
use martlet_tensor::Dtype;

/// More parts than any checkpoint has.
const MAX_PARTS: u64 = 10_000;

/// The opened files: tensors of all parts, and their types in the same order.
pub(crate) struct Files {
    pub source: Source,
    pub types: Vec<TensorType>,
    /// Of the first part.
    pub metadata: Metadata,
}

pub(crate) fn is_gguf(name: &str) -> bool {
    name.ends_with(".gguf")
}

/// Stem, number and count of a part's name.
pub fn part(name: &str) -> Option<(&str, u64, u64)> {
    let (rest, count) = name.strip_suffix(".gguf")?.rsplit_once("-of-")?;
    let (stem, number) = rest.rsplit_once('-')?;
    let digits = |s: &str| (s.len() == 5 && s.bytes().all(|b| b.is_ascii_digit())).then(|| s.parse().ok()).flatten();
    Some((stem, digits(number)?, digits(count)?))
}

/// The name of a part: the reverse of [`part`].
pub fn part_name(stem: &str, number: u64, count: u64) -> String {
    format!("{stem}-{number:05}-of-{count:05}.gguf")
}

/// The GGUF model of a folder without safetensors files: its name, or that of its first part. `None` when there is
/// none; an error when there are several.
pub(crate) fn find(folder: &Folder) -> Result<Option<String>, WeightsError> {
    let mut names = folder.names()?;
    if names.iter().any(|n| n.ends_with(".safetensors")) {
        return Ok(None);
    }
    names.retain(|n| is_gguf(n) && !n.starts_with("mmproj") && part(n).is_none_or(|(_, number, _)| number == 1));
    match names.as_slice() {
        [] => Ok(None),
        [_] => Ok(names.pop()),
        _ => {
            let text = format!("holds {} GGUF models ({}): give the path of one", names.len(), names.join(", "));
            Err(WeightsError::file(folder.label(""), text))
        }
    }
}

impl Files {
    /// Opens the file called `first` with all that belongs to it.
    pub fn open(folder: &Folder, first: &str, limits: &Limits) -> Result<Files, WeightsError> {
        let error = |what: String| WeightsError::file(folder.label(first), what);
        let source = Source::default();
        let mut files = Files { source, types: Vec::new(), metadata: Metadata::default() };
        files.metadata = files.add(folder, first, limits)?;
        let count = files.metadata.number("split.count").map_err(error)?.unwrap_or(1).max(1);
        if count > 1 {
            let (stem, number, named) = part(first).ok_or_else(|| {
                error(format!("is one of {count} parts, but is not called NAME-00001-of-{count:05}.gguf"))
            })?;
            if named != count || count > MAX_PARTS {
                return Err(error(format!("is one of {named} parts by its name, of {count} by key split.count")));
            }
            if number != 1 {
                return Err(error(format!("is part {number}: give {stem}-00001-of-{count:05}.gguf instead")));
            }
            for number in 2..=count {
                let name = part_name(stem, number, count);
                if !folder.has(&name) {
                    return Err(error(format!("is the first of {count} parts, but {name} is missing beside it")));
                }
                let metadata = files.add(folder, &name, limits)?;
                let found = metadata.number("split.no").map_err(|e| WeightsError::file(folder.label(&name), e))?;
                if found != Some(number - 1) {
                    let text = format!("has split.no {found:?}, expected {}", number - 1);
                    return Err(WeightsError::file(folder.label(&name), text));
                }
            }
        }
        let (listed, found) = (files.metadata.number("split.tensors.count"), files.source.tensors.len() as u64);
        match listed.map_err(error)? {
            Some(listed) if listed != found => {
                Err(error(format!("says that all parts hold {listed} tensors, found {found}")))
            }
            _ => files.source.refuse_duplicates().map(|()| files),
        }
    }

    fn add(&mut self, folder: &Folder, name: &str, limits: &Limits) -> Result<Metadata, WeightsError> {
        let bytes = folder.open(name)?;
        let header =
            read(bytes.get(), limits).map_err(|source| WeightsError::Gguf { file: folder.label(name), source })?;
        let file = self.source.files.len();
        self.source.files.push(SourceFile { name: name.to_string(), bytes });
        for t in header.tensors {
            let dtype = match t.kind {
                TensorType::Float(float) => Dtype::from(float),
                TensorType::Blocks(_) => Dtype::U8,
            };
            self.source.tensors.push(Raw { name: t.name, dtype, shape: t.shape, file, range: t.range });
            self.types.push(t.kind);
        }
        Ok(header.metadata)
    }
}
