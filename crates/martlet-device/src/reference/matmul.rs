//! y[r, col + n] = sum over k of w[n, k] * x[r, k].
//!
//! Order of the sum, for every output alike: a slice of 256 absolute k is summed from zero in index order, and the
//! slices are added in index order. Whether the matrix came as `exact` makes no difference here: activations stay f32.

use super::buffer::{failed, zeros};
use super::{Buffer, DeviceError, Stored};
use crate::MatrixSpec;
use std::sync::Arc;

/// Length of a slice along k.
const SLICE: usize = 256;

/// Outputs that lie side by side. It lets the compiler use vectors; each output's own sum is as above.
const LANES: usize = 16;

/// Weights [rows, cols] in f32, as panels of 16 rows: panel p holds, for each k, w[16 p .. 16 p + 16, k]. The last panel
/// is filled up with zeros.
#[derive(Clone, Debug)]
pub struct Matrix {
    rows: usize,
    cols: usize,
    /// Those of another matrix, which has more rows, where this is its beginning.
    panels: Arc<Vec<f32>>,
}

impl Matrix {
    pub(super) fn new(m: &Stored<'_>) -> Result<Matrix, DeviceError> {
        let mut matrix = Matrix::blank(m.rows(), m.cols())?;
        matrix.load(0, m)?;
        Ok(matrix)
    }

    pub(super) fn blank(rows: usize, cols: usize) -> Result<Matrix, DeviceError> {
        let panels = Arc::new(zeros("a matrix", &[rows.div_ceil(LANES), LANES, cols])?);
        Ok(Matrix { rows, cols, panels })
    }

    /// Rows from `first` on.
    pub(super) fn load(&mut self, first: usize, m: &Stored<'_>) -> Result<(), DeviceError> {
        let (rows, cols) = (self.rows, self.cols);
        let fits = m.cols() == cols && first.is_multiple_of(LANES) && first.saturating_add(m.rows()) <= rows;
        let Some(panels) = Arc::get_mut(&mut self.panels).filter(|_| fits) else {
            let (more, wide) = (m.rows(), m.cols());
            return Err(failed(format!("load {more} rows of {wide} at row {first} of a matrix [{rows}, {cols}]")));
        };
        let mut row = vec![0.0; cols];
        for r in 0..m.rows() {
            m.dequantise_row(r, &mut row);
            let first = (first + r) / LANES * LANES * cols + r % LANES;
            for (k, &w) in row.iter().enumerate() {
                panels[first + k * LANES] = w;
            }
        }
        Ok(())
    }

    pub(super) fn first_rows(&self, rows: usize) -> Result<Matrix, DeviceError> {
        if rows > self.rows || !rows.is_multiple_of(LANES) {
            return Err(failed(format!("take {rows} rows of a matrix of {} as one of their own", self.rows)));
        }
        Ok(Matrix { rows, ..self.clone() })
    }

    pub(super) fn bytes(spec: MatrixSpec) -> u64 {
        4 * spec.rows.next_multiple_of(LANES) as u64 * spec.cols as u64
    }

    /// The panels of its own rows.
    fn panels(&self) -> std::slice::Chunks<'_, f32> {
        let panel = LANES * self.cols;
        self.panels[..self.rows.div_ceil(LANES) * panel].chunks(panel)
    }

    pub fn rows(&self) -> usize {
        self.rows
    }

    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Row `r` as it was stored, widened.
    pub(super) fn read_row(&self, r: usize, out: &mut [f32]) {
        assert!(r < self.rows, "row {r} of {}", self.rows);
        let first = r / LANES * LANES * self.cols + r % LANES;
        for (k, w) in out.iter_mut().enumerate() {
            *w = self.panels[first + k * LANES];
        }
    }

    /// y = w x for one row.
    pub(super) fn times(&self, x: &[f32], y: &mut [f32]) {
        for (panel, y) in self.panels().zip(y[..self.rows].chunks_mut(LANES)) {
            y.copy_from_slice(&dot(panel, &x[..self.cols])[..y.len()]);
        }
    }
}

/// Panels outside and rows inside, so that a panel is read from memory once for all rows; no row's sum is touched.
pub(super) fn matmul(w: &Matrix, x: &Buffer, rows: usize, y: &mut Buffer, col: usize) {
    for (p, panel) in w.panels().enumerate() {
        let (first, len) = (col + p * LANES, LANES.min(w.rows - p * LANES));
        for r in 0..rows {
            let sums = dot(panel, &x.row(r)[..w.cols]);
            y.row_mut(r)[first..first + len].copy_from_slice(&sums[..len]);
        }
    }
}

/// 16 sums over k.
fn dot(panel: &[f32], x: &[f32]) -> [f32; LANES] {
    let mut sums = [0.0; LANES];
    for (w, x) in panel.chunks(SLICE * LANES).zip(x.chunks(SLICE)) {
        let mut slice = [0.0; LANES];
        for (w, x) in w.chunks_exact(LANES).zip(x) {
            for n in 0..LANES {
                slice[n] += w[n] * x;
            }
        }
        for n in 0..LANES {
            sums[n] += slice[n];
        }
    }
    sums
}
