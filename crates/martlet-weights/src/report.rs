//! What a checkpoint holds against what a model needs: every tensor is used, or ignored with a reason, or an error.

use crate::checkpoint::{Checkpoint, Described, Layout};
use crate::error::{Problem, WeightsError};
use crate::module::rows_cols;
use crate::values;
use martlet_tensor::Scheme;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// A tensor that a model needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expected {
    /// Canonical name.
    pub name: String,
    pub shape: Vec<usize>,
    pub kind: Kind,
    pub read: Read,
}

/// What a tensor is used as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// [out, in], in any scheme.
    Matrix,
    /// The same, for products that never quantise the activations.
    Exact,
    /// Small and read in f32; never packed.
    Vector,
    /// [E, out, in], in any scheme.
    Experts,
}

/// How much of a tensor one decoded token reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Read {
    Every,
    /// One row.
    Row,
    /// `k` of `of` equal parts.
    Chosen {
        k: usize,
        of: usize,
    },
    /// Only for drafting.
    Draft,
    /// Not while decoding text.
    Never,
}

/// What [`Checkpoint::check`] found.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub layout: Layout,
    pub files: Vec<FileSummary>,
    /// Canonical tensors in use.
    pub tensors: usize,
    /// Weights in use, draft head included.
    pub parameters: u64,
    /// Weights that one decoded token reads, without drafting.
    pub active_parameters: u64,
    /// Weights of the draft head.
    pub draft_parameters: u64,
    /// Stored bytes in use, scales and biases included.
    pub bytes: u64,
    /// Stored bytes that one decoded token reads, without drafting.
    pub bytes_per_token: u64,
    /// What is stored how, largest first.
    pub schemes: Vec<SchemeSummary>,
    pub ignored: Vec<Ignored>,
    /// Weight files in the folder that are no part of the checkpoint.
    pub unread_files: Vec<String>,
}

#[derive(Clone, Debug, Serialize)]
pub struct FileSummary {
    pub name: String,
    pub bytes: u64,
    pub tensors: usize,
}

#[derive(Clone, Debug, Serialize)]
pub struct SchemeSummary {
    pub scheme: String,
    pub tensors: usize,
    pub weights: u64,
    pub bytes: u64,
}

/// Tensors that are there and not used, by the prefix of their canonical names.
#[derive(Clone, Debug, Serialize)]
pub struct Ignored {
    pub prefix: String,
    pub reason: String,
    pub names: Vec<String>,
    pub bytes: u64,
}

impl Checkpoint {
    /// Compares the checkpoint with the tensors that a model needs. `ignore` lists (prefix of canonical names, reason):
    /// tensors that may be there and are not used. Anything missing, unknown or misshapen is an error, and so is a
    /// scale, a bias or a value of a small tensor that is no finite number. All problems are collected.
    pub fn check(&self, expected: &[Expected], ignore: &[(&str, &str)]) -> Result<Report, WeightsError> {
        let mut problems: Vec<Problem> = expected.iter().filter_map(|e| self.compare(e)).collect();
        let known: BTreeSet<&str> = expected.iter().map(|e| e.name.as_str()).collect();
        let mut ignored: BTreeMap<usize, Ignored> = BTreeMap::new();
        for name in self.names().filter(|name| !known.contains(name)) {
            match ignore.iter().position(|(prefix, _)| name.starts_with(prefix)) {
                Some(i) => {
                    let group = ignored.entry(i).or_insert_with(|| Ignored {
                        prefix: ignore[i].0.to_string(),
                        reason: ignore[i].1.to_string(),
                        names: Vec::new(),
                        bytes: 0,
                    });
                    group.names.push(name.to_string());
                    group.bytes += self.stored_bytes(name);
                }
                None => problems.push(self.problem(name, "is not a tensor of this model")),
            }
        }
        problems.extend(values::not_finite(self));
        match problems.is_empty() {
            true => Ok(self.report(expected, ignored.into_values().collect())?),
            false => Err(WeightsError::Tensors(problems)),
        }
    }

    /// What is wrong with the tensor that should be `expected`.
    fn compare(&self, expected: &Expected) -> Option<Problem> {
        let Some(shape) = self.shape(&expected.name) else {
            return Some(self.missing(&expected.name));
        };
        if shape != expected.shape {
            let text = format!("has shape {shape:?}, expected {:?} by config.json", expected.shape);
            return Some(self.problem(&expected.name, text));
        }
        let scheme = match self.describe(&expected.name) {
            Ok(described) => described.scheme,
            Err(WeightsError::Tensors(problems)) => return problems.into_iter().next(),
            Err(other) => return Some(self.problem(&expected.name, other.to_string())),
        };
        let dense = matches!(scheme, Scheme::Dense(_));
        (expected.kind == Kind::Vector && !dense).then(|| {
            let text = format!("is stored as {scheme}, expected plain floats");
            self.problem(&expected.name, text)
        })
    }

    fn report(&self, expected: &[Expected], ignored: Vec<Ignored>) -> Result<Report, WeightsError> {
        let mut report = Report {
            layout: self.layout(),
            files: self.file_summaries(),
            tensors: expected.len(),
            parameters: 0,
            active_parameters: 0,
            draft_parameters: 0,
            bytes: 0,
            bytes_per_token: 0,
            schemes: Vec::new(),
            ignored,
            unread_files: self.unread_files()?,
        };
        let mut schemes: BTreeMap<String, SchemeSummary> = BTreeMap::new();
        for e in expected {
            let (Described { scheme, bytes }, shape) = (self.describe(&e.name)?, self.shape(&e.name).unwrap_or(&[]));
            let (rows, cols) = rows_cols(shape);
            let (rows, weights) = (rows as u64, rows as u64 * cols as u64);
            report.parameters += weights;
            report.bytes += bytes;
            let share = |n: u64| match e.read {
                Read::Every => n,
                Read::Row => n / rows.max(1),
                Read::Chosen { k, of } => (n as u128 * k as u128 / (of as u128).max(1)) as u64,
                Read::Draft | Read::Never => 0,
            };
            report.active_parameters += share(weights);
            report.bytes_per_token += share(bytes);
            if e.read == Read::Draft {
                report.draft_parameters += weights;
            }
            let name = scheme.to_string();
            let summary =
                schemes.entry(name.clone()).or_insert(SchemeSummary { scheme: name, tensors: 0, weights: 0, bytes: 0 });
            summary.tensors += 1;
            summary.weights += weights;
            summary.bytes += bytes;
        }
        report.schemes = schemes.into_values().collect();
        report.schemes.sort_by_key(|s| std::cmp::Reverse(s.bytes));
        Ok(report)
    }
}

#[cfg(test)]
mod tests;
