//! x[r] += (sum over ranks of weight * y[r * chosen + rank]) + sigmoid(gate[r, col]) * shared[r].
//!
//! The sum runs over the ranks in order from zero; the shared expert is added to it, and the whole to x.

use super::{Buffer, RouteTable, sigmoid};

pub(super) fn combine(
    y: &Buffer,
    routes: &RouteTable,
    shared: &Buffer,
    gate: &Buffer,
    col: usize,
    rows: usize,
    x: &mut Buffer,
) {
    for r in 0..rows {
        let strength = sigmoid(gate.row(r)[col]);
        let pairs = r * routes.chosen..(r + 1) * routes.chosen;
        for (i, x) in x.row_mut(r).iter_mut().enumerate() {
            let mut sum = 0.0;
            for pair in pairs.clone() {
                sum += routes.weights[pair] * y.row(pair)[i];
            }
            *x += sum + strength * shared.row(r)[i];
        }
    }
}
