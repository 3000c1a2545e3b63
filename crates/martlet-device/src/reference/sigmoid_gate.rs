//! y[r, h * dim + d] *= sigmoid(gate head h, dimension d).

use super::{Buffer, Heads, sigmoid};

pub(super) fn sigmoid_gate(gate: &Buffer, heads: Heads, rows: usize, y: &mut Buffer) {
    for r in 0..rows {
        for h in 0..heads.count {
            let y = &mut y.row_mut(r)[h * heads.dim..][..heads.dim];
            for (y, &g) in y.iter_mut().zip(gate.head(r, heads, h)) {
                *y *= sigmoid(g);
            }
        }
    }
}
