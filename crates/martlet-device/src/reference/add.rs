//! x[r, i] += y[r, i] for i below the width of x.

use super::Buffer;

pub(super) fn add(y: &Buffer, rows: usize, x: &mut Buffer) {
    for r in 0..rows {
        let width = x.cols();
        for (x, y) in x.row_mut(r).iter_mut().zip(&y.row(r)[..width]) {
            *x += y;
        }
    }
}
