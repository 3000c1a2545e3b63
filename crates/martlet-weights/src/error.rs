//! What can be wrong with a checkpoint.

use crate::gguf::GgufError;
use crate::index::IndexError;
use crate::pack::ManifestError;
use crate::safetensors::SafetensorsError;
use martlet_io::MapError;
use std::fmt;

/// A checkpoint that can not be opened, read or written.
#[derive(Debug, thiserror::Error)]
pub enum WeightsError {
    #[error(transparent)]
    Map(#[from] MapError),
    /// A file that is missing, can not be read, or does not say what is needed of it.
    #[error("{file}: {what}")]
    File { file: String, what: String },
    #[error("{file}: {source}")]
    Safetensors { file: String, source: SafetensorsError },
    #[error("{file}: {source}")]
    Index { file: String, source: IndexError },
    #[error("{file}: {source}")]
    Gguf { file: String, source: GgufError },
    #[error("{file}: {source}")]
    Manifest { file: String, source: ManifestError },
    /// Tensors that are missing, unknown, misshapen or hold no numbers.
    #[error("{}", Listed(.0))]
    Tensors(Vec<Problem>),
}

/// One thing that is wrong with one tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The tensor's name in its file; its canonical name when it is in none.
    pub tensor: String,
    /// The file that holds it, or the files searched.
    pub file: String,
    /// What was found and what was expected.
    pub what: String,
}

/// Problems shown in full; the rest is counted.
const SHOWN: usize = 5;

impl WeightsError {
    pub(crate) fn file(file: impl Into<String>, what: impl fmt::Display) -> WeightsError {
        WeightsError::File { file: file.into(), what: what.to_string() }
    }
}

impl From<Problem> for WeightsError {
    fn from(problem: Problem) -> WeightsError {
        WeightsError::Tensors(vec![problem])
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tensor {} ({}): {}", self.tensor, self.file, self.what)
    }
}

struct Listed<'a>(&'a [Problem]);

impl fmt::Display for Listed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, problem) in self.0.iter().take(SHOWN).enumerate() {
            let line = if i == 0 { "" } else { "\n" };
            write!(f, "{line}{problem}")?;
        }
        match self.0.len().saturating_sub(SHOWN) {
            0 => Ok(()),
            more => write!(f, "\nand {more} more"),
        }
    }
}
