//! y[r, col + i] = x[r, i] * rsqrt(mean over i of x[r, i]^2 + eps) * weight[i], the mean over x's whole width.

use super::{Buffer, dot};

pub(super) fn rms_norm(x: &Buffer, weight: &[f32], eps: f32, rows: usize, y: &mut Buffer, col: usize) {
    for r in 0..rows {
        let x = x.row(r);
        let y = &mut y.row_mut(r)[col..col + x.len()];
        y.copy_from_slice(x);
        normalise(y, weight, eps);
    }
}

/// x[i] = x[i] * rsqrt(mean(x^2) + eps) * weight[i].
pub(super) fn normalise(x: &mut [f32], weight: &[f32], eps: f32) {
    assert_eq!(x.len(), weight.len(), "width and weights of a norm");
    let factor = 1.0 / (dot(x, x) / x.len() as f32 + eps).sqrt();
    for (v, w) in x.iter_mut().zip(weight) {
        *v = *v * factor * w;
    }
}
