//! The dense MLP: down(silu(gate x) * up x).

use crate::scratch::Scratch;
use martlet_device::Device;

/// Gate and up write side by side into one buffer.
pub struct Mlp<D: Device> {
    pub width: usize,
    pub gate: D::Matrix,
    pub up: D::Matrix,
    pub down: D::Matrix,
}

impl<D: Device> Mlp<D> {
    /// x += down(silu(gate(norm(x))) * up(norm(x)))
    pub fn forward(&self, d: &mut D, norm: &D::Vector, eps: f32, x: &mut D::Buffer, b: &D::Batch, s: &mut Scratch<D>) {
        d.norm_project(x, norm, eps, &[(&self.gate, 0), (&self.up, self.width)], b, &mut s.normed, &mut s.proj);
        d.silu_mul(&s.proj, self.width, b, &mut s.mixed);
        d.project_add(&self.down, &s.mixed, b, &mut s.tmp, x);
    }
}
