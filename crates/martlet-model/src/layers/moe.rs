//! Mixture of experts: a router's choice of experts, and one shared expert behind a sigmoid gate.

use super::{Layer, Mlp, MlpOrMoe};
use crate::scratch::{Ahead, Place, Scratch};
use crate::{ExpertProvider, ModelError};
use martlet_device::{Device, RouteSpec, Rows};

pub struct Moe<D: Device> {
    pub route: RouteSpec,
    /// [experts, hidden], exact
    pub router: D::Matrix,
    /// [1, hidden], exact; its product lies behind the router's
    pub shared_gate: D::Matrix,
    pub shared: Mlp<D>,
}

impl<D: Device> Moe<D> {
    /// x += sum of weight_k * expert_k(norm(x)) + sigmoid(shared_gate(norm(x))) * shared(norm(x))
    pub fn forward(
        &self,
        d: &mut D,
        norm: &D::Vector,
        place: Place,
        x: &mut D::Buffer,
        b: &D::Batch,
        s: &mut Scratch<D>,
        next: Option<&Layer<D>>,
        provider: &mut dyn ExpertProvider<D>,
    ) -> Result<(), ModelError> {
        let gate_at = self.route.experts;
        let routing = [(&self.router, 0), (&self.shared_gate, gate_at)];
        d.norm_project(x, norm, place.eps, &routing, b, &mut s.normed, &mut s.router);
        d.route(&s.router, self.route, b, &mut s.routes);
        provider.begin(d, place.layer, &s.routes, b)?;

        let shared = &self.shared;
        d.project(&[(&shared.gate, 0), (&shared.up, shared.width)], &s.normed, b, &mut s.proj);
        d.silu_mul(&s.proj, shared.width, b, &mut s.mixed);
        d.matmul(&shared.down, &s.mixed, Rows::All, b, &mut s.tmp, 0);

        if let Some(Layer { mlp_norm, mlp: MlpOrMoe::Moe(next), .. }) = next
            && provider.looks_ahead()
        {
            next.look_ahead(d, mlp_norm, place, x, b, s, provider)?;
        }

        let Scratch { normed, routes, chosen, .. } = s;
        provider.provide(d, place.layer, &mut |d, experts, slots| {
            d.experts_forward(experts, slots, normed, routes, b, chosen);
        })?;
        d.combine(&s.chosen, &s.routes, &s.tmp, &s.router, gate_at, b, x);
        Ok(())
    }

    /// Tells `provider` what this layer's router chooses of x, the hidden state of the layer before, at `place`, which lacks
    /// that layer's experts and this one's mixer.
    fn look_ahead(
        &self,
        d: &mut D,
        norm: &D::Vector,
        place: Place,
        x: &D::Buffer,
        b: &D::Batch,
        s: &mut Scratch<D>,
        provider: &mut dyn ExpertProvider<D>,
    ) -> Result<(), ModelError> {
        let Ahead { normed, router, routes } = &mut s.ahead;
        d.norm_project(x, norm, place.eps, &[(&self.router, 0)], b, normed, router);
        d.route(router, self.route, b, routes);
        Ok(provider.ahead(d, place.layer + 1, routes, b)?)
    }
}
