//! Norms of one row or head.
//! bytes: x read twice (the second time from L1), y written once.
//! order: the sum of squares is `lanes::dot`: 16 lanes, then a tree. Mean = sum / n; 1 / sqrt(mean + eps) by the two
//! IEEE operations; products from left to right as the formulas write them.

use crate::lanes::dot;
use martlet_tensor::math::silu;

/// y = x * rsqrt(mean(x^2) + eps) * weight.
#[inline(always)]
pub fn rms_norm(x: &[f32], weight: &[f32], eps: f32, y: &mut [f32]) {
    let len = x.len();
    let (weight, y) = (&weight[..len], &mut y[..len]);
    let scale = 1.0 / (dot(x, x) / len as f32 + eps).sqrt();
    for i in 0..len {
        y[i] = x[i] * scale * weight[i];
    }
}

/// h = h * rsqrt(mean(h^2) + eps) * weight.
#[inline(always)]
pub fn head_rms_norm(h: &mut [f32], weight: &[f32], eps: f32) {
    let len = h.len();
    let weight = &weight[..len];
    let scale = 1.0 / (dot(h, h) / len as f32 + eps).sqrt();
    for i in 0..len {
        h[i] = h[i] * scale * weight[i];
    }
}

/// h = h * rsqrt(sum(h^2) + eps) * factor.
#[inline(always)]
pub fn head_l2_norm(h: &mut [f32], eps: f32, factor: f32) {
    let scale = 1.0 / (dot(h, h) + eps).sqrt();
    for v in h.iter_mut() {
        *v = *v * scale * factor;
    }
}

/// h = weight * (h * rsqrt(mean(h^2) + eps)) * silu(z).
#[inline(always)]
pub fn gated_rms_norm(z: &[f32], weight: &[f32], eps: f32, h: &mut [f32]) {
    let len = h.len();
    let (z, weight) = (&z[..len], &weight[..len]);
    let scale = 1.0 / (dot(h, h) / len as f32 + eps).sqrt();
    for i in 0..len {
        h[i] = weight[i] * (h[i] * scale) * silu(z[i]);
    }
}
