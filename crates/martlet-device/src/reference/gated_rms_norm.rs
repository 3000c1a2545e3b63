//! Each head, packed in y from column 0, gated by the same head of z:
//!
//!   y[i] = weight[i] * (y[i] * rsqrt(mean(y^2) + eps)) * silu(z[i])

use super::rms_norm::normalise;
use super::{Buffer, Heads, silu};

pub(super) fn gated_rms_norm(z: &Buffer, heads: Heads, weight: &[f32], eps: f32, rows: usize, y: &mut Buffer) {
    for r in 0..rows {
        for h in 0..heads.count {
            let y = &mut y.row_mut(r)[h * heads.dim..][..heads.dim];
            normalise(y, weight, eps);
            for (y, &z) in y.iter_mut().zip(z.head(r, heads, h)) {
                *y *= silu(z);
            }
        }
    }
}
