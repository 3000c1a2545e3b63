//! Rows of tables in every scheme.

use super::rows::{RowOp, blank, plain_batch};
use super::{RandomMatrix, Suite, Tolerance, schemes};
use crate::{Device, DeviceError};

struct Embed {
    table: RandomMatrix,
    magnitudes: Vec<f32>,
    cols: usize,
    vocabulary: usize,
    tokens: Vec<u32>,
}

impl RowOp for Embed {
    fn rows(&self) -> usize {
        self.tokens.len()
    }

    fn run<D: Device>(&self, d: &mut D, rows: &[usize]) -> Result<Vec<f32>, DeviceError> {
        let table = d.matrix(&self.table.view(), false)?;
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
        let op = Embed { magnitudes: table.magnitudes(), table, cols, vocabulary, tokens };
        s.rows(&format!("{scheme}, {vocabulary} tokens, {cols} columns"), &op);
    }
}
