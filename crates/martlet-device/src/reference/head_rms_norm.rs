//! Each head alone: h[i] = h[i] * rsqrt(mean(h^2) + eps) * weight[i].

use super::rms_norm::normalise;
use super::{Buffer, Heads};

pub(super) fn head_rms_norm(x: &mut Buffer, heads: Heads, weight: &[f32], eps: f32, rows: usize) {
    for r in 0..rows {
        for h in 0..heads.count {
            normalise(x.head_mut(r, heads, h), weight, eps);
        }
    }
}
