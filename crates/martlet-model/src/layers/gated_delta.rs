//! Gated DeltaNet: linear attention whose state forgets by a gate and learns by the delta rule.

use crate::scratch::Scratch;
use martlet_device::{DeltaSpec, Device, Heads};

/// Epsilon of the key and query normalisation; fixed in every implementation, in no config.
const L2_EPS: f32 = 1e-6;

/// Projections write side by side into one buffer: qkv (the convolution's channels), z, a, b.
pub struct GatedDelta<D: Device> {
    pub spec: DeltaSpec,
    pub qkv: D::Matrix,
    pub z: D::Matrix,
    pub a: D::Matrix,
    pub b: D::Matrix,
    /// [channels, taps]
    pub conv: D::Vector,
    pub a_log: D::Vector,
    pub dt_bias: D::Vector,
    pub norm: D::Vector,
    pub out: D::Matrix,
}

impl<D: Device> GatedDelta<D> {
    /// x += out(norm(gdn(conv(qkv), gates(a, b))) * silu(z))
    pub fn forward(
        &self,
        d: &mut D,
        norm: &D::Vector,
        eps: f32,
        x: &mut D::Buffer,
        batch: &D::Batch,
        state: &mut D::Delta,
        s: &mut Scratch<D>,
    ) {
        let g = self.spec;
        let z_at = g.channels();
        let a_at = z_at + g.value_heads * g.value_dim;
        let b_at = a_at + g.value_heads;
        let z = Heads::packed(z_at, g.value_heads, g.value_dim);
        let [q, k, _] = g.qkv(0);

        let projections = [(&self.qkv, 0), (&self.z, z_at), (&self.a, a_at), (&self.b, b_at)];
        d.norm_project(x, norm, eps, &projections, batch, &mut s.normed, &mut s.proj);
        d.conv_silu(&s.proj, 0, &self.conv, state, batch, &mut s.conv);
        d.head_l2_norm(&mut s.conv, q, L2_EPS, (1.0 / (g.key_dim as f64).sqrt()) as f32, batch);
        d.head_l2_norm(&mut s.conv, k, L2_EPS, 1.0, batch);
        d.gdn_gates(&s.proj, a_at, b_at, &self.a_log, &self.dt_bias, batch, &mut s.gates);
        d.gdn(&s.conv, &s.gates, state, batch, &mut s.mixed);
        d.gated_rms_norm(&s.proj, z, &self.norm, eps, batch, &mut s.mixed);
        d.project_add(&self.out, &s.mixed, batch, &mut s.tmp, x);
    }
}
