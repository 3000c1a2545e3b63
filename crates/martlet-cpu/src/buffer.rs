//! Activations, and the helpers that every operation uses to find its rows.

use crate::floats::Floats;
use martlet_device::{Batch, DeviceError, Heads, Rows};

/// Activations [rows, cols], row after row.
pub struct Buffer {
    pub(crate) cols: usize,
    pub(crate) values: Floats,
}

impl Buffer {
    pub(crate) fn new(rows: usize, cols: usize) -> Result<Buffer, DeviceError> {
        Ok(Buffer { cols, values: Floats::new("activations", rows.saturating_mul(cols))? })
    }

    pub fn rows(&self) -> usize {
        self.values.len() / self.cols.max(1)
    }

    pub fn cols(&self) -> usize {
        self.cols
    }

    #[inline]
    pub(crate) fn row(&self, r: usize) -> &[f32] {
        &self.values[r * self.cols..(r + 1) * self.cols]
    }

    /// The first `rows` rows, to be written.
    #[inline]
    pub(crate) fn first(&mut self, rows: usize) -> &mut [f32] {
        let (cols, held) = (self.cols, self.rows());
        assert!(rows <= held, "{rows} rows of a buffer that has {held}");
        &mut self.values[..rows * cols]
    }

    /// Head `h` of row `r`.
    #[inline]
    pub(crate) fn head(&self, r: usize, heads: Heads, h: usize) -> &[f32] {
        &self.row(r)[heads.at(h)..heads.at(h) + heads.dim]
    }

    pub(crate) fn read(&self, rows: usize) -> Result<Vec<f32>, DeviceError> {
        match rows.checked_mul(self.cols).and_then(|len| self.values.get(..len)) {
            Some(values) => Ok(values.to_vec()),
            None => Err(failed(format!("read {rows} rows of a buffer that has {}", self.rows()))),
        }
    }

    pub(crate) fn write(&mut self, row: usize, values: &[f32]) -> Result<(), DeviceError> {
        let (rows, cols) = (self.rows(), self.cols);
        let whole = values.len().is_multiple_of(cols.max(1));
        let start = row.saturating_mul(cols);
        match self.values.get_mut(start..start.saturating_add(values.len())) {
            Some(place) if whole => place.copy_from_slice(values),
            _ => {
                let len = values.len();
                return Err(failed(format!("write {len} values at row {row} of a buffer of {rows} rows of {cols}")));
            }
        }
        Ok(())
    }
}

pub(crate) fn failed(what: String) -> DeviceError {
    DeviceError::Failed { device: crate::NAME, what }
}

pub(crate) fn unsupported(what: String) -> DeviceError {
    DeviceError::Unsupported { device: crate::NAME, what }
}

/// How many rows of a buffer an operation works on.
pub(crate) fn count(rows: Rows, b: &Batch) -> usize {
    match rows {
        Rows::All => b.rows(),
        Rows::Outputs => b.outputs.len(),
    }
}
