//! What sequences leave behind in every layer.

use crate::ModelError;
use crate::spec::{MixerSpec, ModelSpec};
use martlet_device::{Device, KvScheme, KvSpec};

/// KV pages and recurrent states of all layers. A page number and a slot number mean the same in every layer.
pub struct Cache<D: Device> {
    /// One entry for each layer of the trunk, and one for the draft head where there is one.
    pub layers: Vec<LayerCache<D>>,
}

pub enum LayerCache<D: Device> {
    Kv(D::Kv),
    Delta(D::Delta),
}

impl<D: Device> Cache<D> {
    /// Room for `pages` pages in every attention layer and `slots` states in every recurrent one, with `drafts` in the
    /// draft head too.
    pub fn new(
        d: &D,
        spec: &ModelSpec,
        drafts: bool,
        scheme: KvScheme,
        pages: usize,
        slots: usize,
    ) -> Result<Cache<D>, ModelError> {
        let layer = |mixer: MixerSpec| -> Result<LayerCache<D>, ModelError> {
            Ok(match mixer {
                MixerSpec::Attention(a) => {
                    LayerCache::Kv(d.kv(KvSpec { kv_heads: a.kv_heads, dim: a.dim, scheme }, pages)?)
                }
                MixerSpec::GatedDelta(g) => LayerCache::Delta(d.delta(g, slots)?),
            })
        };
        Ok(Cache { layers: spec.cached_layers(drafts).map(|l| layer(l.mixer)).collect::<Result<_, _>>()? })
    }

    /// Makes `slot` the empty sequence in every layer.
    pub fn clear(&mut self, d: &mut D, slot: u32) {
        for layer in &mut self.layers {
            if let LayerCache::Delta(state) = layer {
                d.delta_clear(state, slot);
            }
        }
    }

    /// Keeps the first `accepted` tentative rows of `slot` in every layer, and drops the others.
    pub fn commit(&mut self, d: &mut D, slot: u32, accepted: usize) {
        for layer in &mut self.layers {
            if let LayerCache::Delta(state) = layer {
                d.gdn_commit(state, slot, accepted);
            }
        }
    }
}
