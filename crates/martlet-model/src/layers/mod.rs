//! One decoder layer: x += mixer(norm(x)); x += mlp(norm(x)), in the order of the papers.

mod attention;
mod gated_delta;
mod mlp;
mod moe;

pub use attention::Attention;
pub use gated_delta::GatedDelta;
pub use mlp::Mlp;
pub use moe::Moe;

use crate::cache::LayerCache;
use crate::scratch::{Place, Scratch};
use crate::{ExpertProvider, ModelError};
use martlet_device::Device;

/// Weights of one layer.
pub struct Layer<D: Device> {
    pub mixer_norm: D::Vector,
    pub mixer: Mixer<D>,
    pub mlp_norm: D::Vector,
    pub mlp: MlpOrMoe<D>,
}

pub enum Mixer<D: Device> {
    Attention(Attention<D>),
    GatedDelta(GatedDelta<D>),
}

pub enum MlpOrMoe<D: Device> {
    Mlp(Mlp<D>),
    Moe(Moe<D>),
}

impl<D: Device> Layer<D> {
    /// x [rows, hidden], rows of any sequences. `next`: the layer after this one, whose choices may be guessed.
    pub(crate) fn forward(
        &self,
        d: &mut D,
        place: Place,
        x: &mut D::Buffer,
        b: &D::Batch,
        cache: &mut LayerCache<D>,
        s: &mut Scratch<D>,
        next: Option<&Layer<D>>,
        experts: &mut dyn ExpertProvider<D>,
    ) -> Result<(), ModelError> {
        match (&self.mixer, cache) {
            (Mixer::Attention(a), LayerCache::Kv(kv)) => a.forward(d, &self.mixer_norm, place.eps, x, b, kv, s),
            (Mixer::GatedDelta(g), LayerCache::Delta(state)) => {
                g.forward(d, &self.mixer_norm, place.eps, x, b, state, s);
            }
            // Cache::new makes the cache from the same spec as Model::load the layer.
            _ => unreachable!("the cache of layer {} was made for another model", place.layer),
        }
        match &self.mlp {
            MlpOrMoe::Mlp(m) => m.forward(d, &self.mlp_norm, place.eps, x, b, s),
            MlpOrMoe::Moe(m) => m.forward(d, &self.mlp_norm, place, x, b, s, next, experts)?,
        }
        Ok(())
    }
}
