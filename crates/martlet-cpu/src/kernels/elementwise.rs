//! Operations without a sum along their rows.
//! bytes: each operand once. order: none but that of the expert ranks in `combine`.

use martlet_tensor::math::{exp, sigmoid, silu, softplus};

/// x += y.
#[inline(always)]
pub fn add(y: &[f32], x: &mut [f32]) {
    for (x, y) in x.iter_mut().zip(y) {
        *x += *y;
    }
}

/// y *= sigmoid(gate).
#[inline(always)]
pub fn sigmoid_gate(gate: &[f32], y: &mut [f32]) {
    for (y, gate) in y.iter_mut().zip(gate) {
        *y *= sigmoid(*gate);
    }
}

/// y = silu(gate) * up.
#[inline(always)]
pub fn silu_mul(gate: &[f32], up: &[f32], y: &mut [f32]) {
    let len = y.len();
    let (gate, up) = (&gate[..len], &up[..len]);
    for i in 0..len {
        y[i] = silu(gate[i]) * up[i];
    }
}

/// gate = silu(gate) * up.
#[inline(always)]
pub fn silu_mul_in_place(gate: &mut [f32], up: &[f32]) {
    for (gate, up) in gate.iter_mut().zip(up) {
        *gate = silu(*gate) * *up;
    }
}

/// y[h] = exp(-exp(a_log[h]) * softplus(a[h] + dt_bias[h])), y[heads + h] = sigmoid(b[h]).
#[inline(always)]
pub fn gdn_gates(a: &[f32], b: &[f32], a_log: &[f32], dt_bias: &[f32], y: &mut [f32]) {
    let heads = a.len();
    let (b, a_log, dt_bias) = (&b[..heads], &a_log[..heads], &dt_bias[..heads]);
    let (decay, strength) = y[..2 * heads].split_at_mut(heads);
    for h in 0..heads {
        decay[h] = exp(-exp(a_log[h]) * softplus(a[h] + dt_bias[h]));
        strength[h] = sigmoid(b[h]);
    }
}

/// One row of `combine`.
pub struct Combine<'a> {
    /// Outputs of the row's experts in rank order, one after the other, `stride` apart.
    pub y: &'a [f32],
    pub stride: usize,
    /// Their weights.
    pub weights: &'a [f32],
    pub shared: &'a [f32],
    pub gate: f32,
}

/// x += acc, where acc = fma(weight, y, acc) over the ranks in order, from zero, then fma(sigmoid(gate), shared, acc).
#[inline(always)]
pub fn combine(c: &Combine<'_>, x: &mut [f32]) {
    let strength = sigmoid(c.gate);
    let shared = &c.shared[..x.len()];
    for (i, x) in x.iter_mut().enumerate() {
        let mut acc = 0.0f32;
        for (rank, weight) in c.weights.iter().enumerate() {
            acc = weight.mul_add(c.y[rank * c.stride + i], acc);
        }
        *x += strength.mul_add(shared[i], acc);
    }
}
