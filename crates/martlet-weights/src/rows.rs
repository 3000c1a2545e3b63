//! Rows of canonical tensors, for those who go through a checkpoint tensor by tensor: what they take of memory goes back
//! when they are done with it.

use crate::checkpoint::Checkpoint;
use crate::entries::Piece;
use crate::error::WeightsError;
use crate::gguf::Repack;
use crate::module::{Module, rows_cols};
use crate::source::Source;
use martlet_tensor::scheme::ggml::Planes;
use martlet_tensor::{Matrix, Part, Scheme, ShapeError};
use std::ops::Range;

/// Some rows of a canonical tensor. Where the file's form is no form that devices read (GGUF), the rewritten rows live as
/// long as this, and where the file is mapped, its pages leave memory with this.
#[derive(Debug)]
pub struct TensorRows<'a> {
    source: &'a Source,
    /// One below the other; at least one.
    runs: Vec<Run<'a>>,
    /// Bytes that were rewritten, counted in [`Source::rewritten`].
    bytes: usize,
}

/// Rows of one stored tensor.
#[derive(Debug)]
struct Run<'a> {
    form: Form<'a>,
    /// Which rows of it, in the order in which they are wanted.
    pieces: Vec<Range<usize>>,
}

#[derive(Debug)]
enum Form<'a> {
    Stored(Matrix<'a>),
    Rewritten { scheme: Scheme, rows: usize, cols: usize, planes: Planes, stored: &'a [u8] },
}

impl Checkpoint {
    /// Rows of a matrix, or of a stack [E, out, in] as a matrix of E * out rows; panics when they are out of bounds. Only
    /// what is asked for is read, as far as the stored tensor has its rows in the same order.
    pub fn rows(&self, name: &str, rows: Range<usize>) -> Result<TensorRows<'_>, WeightsError> {
        let entry = self.entry(name)?;
        if entry.vision_kernel_mlx {
            let text = "is stored as [O, T, P, P, C]; its values can be read, but not its rows";
            return Err(self.problem(name, text).into());
        }
        self.stored_rows(name, rows)
    }

    /// As [`Checkpoint::rows`], in the order in which the values are stored.
    pub(crate) fn stored_rows(&self, name: &str, rows: Range<usize>) -> Result<TensorRows<'_>, WeightsError> {
        let entry = self.entry(name)?;
        let wanted = cut(&entry.pieces, &rows);
        let mut held = TensorRows { source: &self.source, runs: Vec::new(), bytes: 0 };
        // Pieces of one module come one after the other.
        for pieces in wanted.chunk_by(|a, b| a.module == b.module) {
            let module = &self.modules[pieces[0].module];
            held.add(module, pieces.iter().map(|p| p.rows.clone()).collect())?;
        }
        match held.runs.is_empty() {
            true => Err(self.problem(name, "has no rows").into()),
            false => held.join().map(drop).map_err(|e| self.problem(name, e.to_string()).into()).map(|()| held),
        }
    }

    /// Rows of a canonical tensor; a vector is one.
    pub(crate) fn row_count(&self, name: &str) -> Result<usize, WeightsError> {
        Ok(self.entry(name)?.pieces.iter().map(|p| p.rows.len()).sum())
    }

    /// Most bytes of rewritten rows that were held at a time, since the checkpoint was opened.
    pub fn most_rewritten(&self) -> usize {
        self.source.rewritten.most()
    }
}

/// The pieces that make `rows` of all that `pieces` make; an empty one where there are no rows to take.
fn cut(pieces: &[Piece], rows: &Range<usize>) -> Vec<Piece> {
    let (mut first, mut found) = (0, Vec::new());
    for Piece { module, rows: of } in pieces {
        let (a, b) = (rows.start.max(first), rows.end.min(first + of.len()));
        if a < b {
            found.push(Piece { module: *module, rows: of.start + a - first..of.start + b - first });
        }
        first += of.len();
    }
    assert!(rows.start <= rows.end && rows.end <= first, "rows {rows:?} of {first}");
    if found.is_empty() {
        found.extend(pieces.first().map(|p| Piece { module: p.module, rows: p.rows.start..p.rows.start }));
    }
    found
}

impl<'a> TensorRows<'a> {
    fn add(&mut self, module: &'a Module, mut pieces: Vec<Range<usize>>) -> Result<(), WeightsError> {
        let form = match &module.repack {
            None => Form::Stored(module.matrix(self.source)?),
            Some(repack) => {
                let first = pieces.iter().map(|p| p.start).min().unwrap_or(0);
                let last = pieces.iter().map(|p| p.end).max().unwrap_or(0);
                pieces.iter_mut().for_each(|p| *p = p.start - first..p.end - first);
                self.rewrite(module, repack, first..last)?
            }
        };
        self.runs.push(Run { form, pieces });
        Ok(())
    }

    /// Rows `range` of a stored tensor.
    fn rewrite(&mut self, module: &Module, repack: &Repack, range: Range<usize>) -> Result<Form<'a>, WeightsError> {
        let (all, cols) = rows_cols(&module.shape);
        let bytes = self.source.bytes(module.weight);
        let row = bytes.len() / all.max(1);
        let stored = &bytes[range.start * row..range.end * row];
        let problem = |what: String| {
            let from = if range.start > 0 { format!("from row {} on, ", range.start) } else { String::new() };
            self.source.problem(&self.source.tensors[module.weight], format!("{from}{what}"))
        };
        let planes = repack.make(stored, range.len(), cols).map_err(problem)?;
        let taken = planes.codes.len() + planes.scales.len() + planes.biases.len();
        self.bytes += taken;
        self.source.rewritten.add(taken);
        Ok(Form::Rewritten { scheme: repack.scheme(), rows: range.len(), cols, planes, stored })
    }

    /// The rows as a matrix.
    pub fn matrix(&self) -> Matrix<'_> {
        self.join().expect("checked when they were read")
    }

    fn join(&self) -> Result<Matrix<'_>, ShapeError> {
        let mut slices = Vec::new();
        for run in &self.runs {
            let matrix = match &run.form {
                Form::Stored(matrix) => matrix.clone(),
                Form::Rewritten { scheme, rows, cols, planes, .. } => {
                    let part = Part::new(*rows, &planes.codes, &planes.scales, &planes.biases);
                    Matrix::new(*scheme, *cols, vec![part])?
                }
            };
            slices.extend(run.pieces.iter().map(|rows| matrix.slice(rows.clone())));
        }
        let first = slices.remove(0);
        first.stack(&slices)
    }
}

/// Gives back what was taken: rewritten rows, and pages of mapped files.
impl Drop for TensorRows<'_> {
    fn drop(&mut self) {
        self.source.rewritten.remove(self.bytes);
        for run in &self.runs {
            match &run.form {
                Form::Rewritten { stored, .. } => self.source.release(stored),
                Form::Stored(matrix) => {
                    run.pieces.iter().for_each(|rows| release(self.source, &matrix.slice(rows.clone())))
                }
            }
        }
    }
}

fn release(source: &Source, matrix: &Matrix<'_>) {
    for part in matrix.parts() {
        [part.codes, part.scales, part.biases].into_iter().for_each(|bytes| source.release(bytes));
    }
    for tiles in matrix.tiles().unwrap_or(&[]) {
        source.release(tiles.strips());
    }
}
