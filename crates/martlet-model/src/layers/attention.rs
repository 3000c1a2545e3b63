//! Gated attention: softmax attention whose output is gated by a sigmoid, head by head.

use crate::scratch::Scratch;
use martlet_device::{AttentionSpec, Device, Heads};

/// Projections write side by side into one buffer: [q, gate] for each head, then k, then v.
pub struct Attention<D: Device> {
    pub spec: AttentionSpec,
    pub q: D::Matrix,
    pub k: D::Matrix,
    pub v: D::Matrix,
    pub o: D::Matrix,
    pub q_norm: D::Vector,
    pub k_norm: D::Vector,
}

impl<D: Device> Attention<D> {
    /// x += o(attention(rope(norm(q)), rope(norm(k)), v) * sigmoid(gate))
    pub fn forward(
        &self,
        d: &mut D,
        norm: &D::Vector,
        eps: f32,
        x: &mut D::Buffer,
        b: &D::Batch,
        kv: &mut D::Kv,
        s: &mut Scratch<D>,
    ) {
        let AttentionSpec { heads, kv_heads, dim, .. } = self.spec;
        let (k_at, v_at) = (2 * heads * dim, (2 * heads + kv_heads) * dim);
        let q = Heads { first: 0, stride: 2 * dim, count: heads, dim };
        let gate = Heads { first: dim, ..q };
        let (k, v) = (Heads::packed(k_at, kv_heads, dim), Heads::packed(v_at, kv_heads, dim));

        d.norm_project(x, norm, eps, &[(&self.q, 0), (&self.k, k_at), (&self.v, v_at)], b, &mut s.normed, &mut s.proj);
        d.qk_norm_rope_append(&mut s.proj, [q, k, v], [&self.q_norm, &self.k_norm], eps, kv, b);
        d.attention(&s.proj, q, kv, self.spec, b, &mut s.mixed);
        d.sigmoid_gate(&s.proj, gate, b, &mut s.mixed);
        d.project_add(&self.o, &s.mixed, b, &mut s.tmp, x);
    }

    /// Keys and values of x's rows into the cache, as [`Self::forward`] would leave them, and nothing else.
    pub fn append(
        &self,
        d: &mut D,
        norm: &D::Vector,
        eps: f32,
        x: &D::Buffer,
        b: &D::Batch,
        kv: &mut D::Kv,
        s: &mut Scratch<D>,
    ) {
        let AttentionSpec { heads, kv_heads, dim, .. } = self.spec;
        let (k_at, v_at) = (2 * heads * dim, (2 * heads + kv_heads) * dim);
        let (k, v) = (Heads::packed(k_at, kv_heads, dim), Heads::packed(v_at, kv_heads, dim));
        d.norm_project(x, norm, eps, &[(&self.k, k_at), (&self.v, v_at)], b, &mut s.normed, &mut s.proj);
        d.head_rms_norm(&mut s.proj, k, &self.k_norm, eps, b);
        d.rope(&mut s.proj, k, b);
        d.kv_append(&s.proj, k, v, kv, b);
    }
}
