//! y[r, i] = silu(x[r, i]) * x[r, width + i] for i < width.

use super::{Buffer, silu};

pub(super) fn silu_mul(x: &Buffer, width: usize, rows: usize, y: &mut Buffer) {
    for r in 0..rows {
        let (gate, up) = x.row(r)[..2 * width].split_at(width);
        for (y, (&gate, up)) in y.row_mut(r).iter_mut().zip(gate.iter().zip(up)) {
            *y = silu(gate) * up;
        }
    }
}
