//! Each head alone: h[i] = h[i] * rsqrt(sum(h^2) + eps) * factor.

use super::{Buffer, Heads, dot};

pub(super) fn head_l2_norm(x: &mut Buffer, heads: Heads, eps: f32, factor: f32, rows: usize) {
    for r in 0..rows {
        for h in 0..heads.count {
            let x = x.head_mut(r, heads, h);
            let inverse = 1.0 / (dot(x, x) + eps).sqrt();
            for v in x {
                *v = *v * inverse * factor;
            }
        }
    }
}
