//! Rows of tables in every scheme.

use super::rows::{RowOp, blank, plain_batch};
use super::{RandomMatrix, Suite, Tolerance, schemes};
use crate::{Device, DeviceError, MatrixSpec, ROW_STEP};
use martlet_tensor::Matrix;

struct Embed {
    table: RandomMatrix,
    magnitudes: Vec<f32>,
    cols: usize,
    vocabulary: usize,
    tokens: Vec<u32>,
    /// The table is loaded in pieces, not as a whole.
    pieces: bool,
}

/// What [`Device::matrix`] gives, from pieces of unlike lengths.
fn in_pieces<D: Device>(d: &D, m: &Matrix<'_>, exact: bool) -> Result<D::Matrix, DeviceError> {
    let (scheme, rows, cols) = (m.scheme(), m.rows(), m.cols());
    let mut matrix = d.blank_matrix(MatrixSpec { scheme, rows, cols, exact })?;
    let (mut first, mut steps) = (0, 1);
    while first < rows {
        let end = rows.min(first + steps * ROW_STEP);
        d.load_rows(&mut matrix, first, &m.slice(first..end))?;
        (first, steps) = (end, steps + 1);
    }
    Ok(matrix)
}

impl RowOp for Embed {
    fn rows(&self) -> usize {
        self.tokens.len()
    }

    fn run<D: Device>(&self, d: &mut D, rows: &[usize]) -> Result<Vec<f32>, DeviceError> {
        let table = match self.pieces {
            true => in_pieces(d, &self.table.view(), false)?,
            false => d.matrix(&self.table.view(), false)?,
        };
        let mut batch = plain_batch(rows.len());
        batch.tokens = rows.iter().map(|&r| self.tokens[r]).collect();
        let b = d.batch(&batch, self.vocabulary)?;
        let mut y = blank(d, rows.len(), self.cols)?;
        d.embed(&table, &b, &mut y);
        d.read(&y, rows.len())
    }

    /// An affine value is one fused multiply-add, or a product and a sum.
    fn allowed(&self, _: &[f32], t: Tolerance) -> Vec<f32> {
        let rows = self.tokens.iter().map(|&token| token as usize * self.cols);
        rows.flat_map(|at| &self.magnitudes[at..at + self.cols]).map(|m| t.relative * m).collect()
    }
}

pub(super) fn embed<D: Device, R: Device>(s: &mut Suite<'_, D, R>) {
    for (i, scheme) in schemes().into_iter().enumerate() {
        let mut random = s.random(i as u64);
        let (vocabulary, cols) = (random.pick(&[1, 31, 300]), 128 * (1 + random.below(3)));
        let table = RandomMatrix::new(scheme, vocabulary, cols, 1 + i % 3, &mut random);
        let mut tokens: Vec<u32> = (0..9).map(|_| random.below(vocabulary) as u32).collect();
        tokens.extend([0, vocabulary as u32 - 1]);
        let mut op = Embed { magnitudes: table.magnitudes(), table, cols, vocabulary, tokens, pieces: false };
        s.rows(&format!("{scheme}, {vocabulary} tokens, {cols} columns"), &op);
        op.pieces = true;
        s.rows(&format!("{scheme}, {vocabulary} tokens, {cols} columns, loaded in pieces"), &op);
    }
}
