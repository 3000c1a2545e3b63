//! Activations, and the one place where memory is taken.

use super::NAME;
use crate::{DeviceError, Heads};

/// Activations [rows, cols], row after row.
#[derive(Clone, Debug, PartialEq)]
pub struct Buffer {
    pub(super) cols: usize,
    pub(super) values: Vec<f32>,
}

impl Buffer {
    pub fn rows(&self) -> usize {
        self.values.len() / self.cols.max(1)
    }

    pub fn cols(&self) -> usize {
        self.cols
    }

    pub(super) fn row(&self, r: usize) -> &[f32] {
        &self.values[r * self.cols..(r + 1) * self.cols]
    }

    pub(super) fn row_mut(&mut self, r: usize) -> &mut [f32] {
        &mut self.values[r * self.cols..(r + 1) * self.cols]
    }

    /// Head `h` of row `r`.
    pub(super) fn head(&self, r: usize, heads: Heads, h: usize) -> &[f32] {
        &self.row(r)[heads.at(h)..heads.at(h) + heads.dim]
    }

    pub(super) fn head_mut(&mut self, r: usize, heads: Heads, h: usize) -> &mut [f32] {
        &mut self.row_mut(r)[heads.at(h)..heads.at(h) + heads.dim]
    }

    pub(super) fn read(&self, rows: usize) -> Result<Vec<f32>, DeviceError> {
        match self.values.get(..rows * self.cols) {
            Some(values) => Ok(values.to_vec()),
            None => Err(failed(format!("read {rows} rows of a buffer that has {}", self.rows()))),
        }
    }

    pub(super) fn write(&mut self, row: usize, values: &[f32]) -> Result<(), DeviceError> {
        let (rows, cols, start) = (self.rows(), self.cols, row * self.cols);
        match self.values.get_mut(start..start + values.len()) {
            Some(place) if values.len().is_multiple_of(cols.max(1)) => {
                place.copy_from_slice(values);
                Ok(())
            }
            _ => {
                Err(failed(format!("write {} values at row {row} of a buffer of {rows} rows of {cols}", values.len())))
            }
        }
    }
}

pub(super) fn failed(what: String) -> DeviceError {
    DeviceError::Failed { device: NAME, what }
}

/// Zeros for the product of `dims`; an error where there is no memory for them.
pub(super) fn zeros(what: &'static str, dims: &[usize]) -> Result<Vec<f32>, DeviceError> {
    let len = dims.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
    let mut values = Vec::new();
    match len {
        Some(n) if values.try_reserve_exact(n).is_ok() => {
            values.resize(n, 0.0);
            Ok(values)
        }
        _ => Err(DeviceError::Memory { device: NAME, what, bytes: len.unwrap_or(usize::MAX).saturating_mul(4) }),
    }
}
