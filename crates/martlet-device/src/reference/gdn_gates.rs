//! Decay and strength of each value head h:
//!
//!   y[r, h] = exp(-exp(a_log[h]) * softplus(x[r, a + h] + dt_bias[h]))     y[r, heads + h] = sigmoid(x[r, beta + h])

use super::{Buffer, sigmoid};

pub(super) fn gdn_gates(
    x: &Buffer,
    a: usize,
    beta: usize,
    a_log: &[f32],
    dt_bias: &[f32],
    rows: usize,
    y: &mut Buffer,
) {
    let heads = a_log.len();
    for r in 0..rows {
        let (x, y) = (x.row(r), y.row_mut(r));
        for h in 0..heads {
            y[h] = (-a_log[h].exp() * softplus(x[a + h] + dt_bias[h])).exp();
            y[heads + h] = sigmoid(x[beta + h]);
        }
    }
}

/// ln(1 + e^x), without overflow: max(x, 0) + ln(1 + e^-|x|).
fn softplus(x: f32) -> f32 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}
