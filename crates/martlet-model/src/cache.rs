//! What sequences leave behind in every layer.

use crate::ModelError;
use crate::spec::{MixerSpec, ModelSpec};
use martlet_device::{Device, DeviceError, KvScheme, KvSpec};

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

    /// The recurrent states of `slot` in all layers, as bytes for [`Self::import_states`]: for each recurrent layer their
    /// length (u64, little-endian), then the device's own form.
    pub fn export_states(&self, d: &mut D, slot: u32) -> Result<Vec<u8>, ModelError> {
        let mut bytes = Vec::new();
        for layer in &self.layers {
            if let LayerCache::Delta(state) = layer {
                let part = d.delta_export(state, slot)?;
                bytes.extend((part.len() as u64).to_le_bytes());
                bytes.extend(part);
            }
        }
        Ok(bytes)
    }

    /// The reverse of [`Self::export_states`]. After an error the slot's states are of no use until it is cleared.
    pub fn import_states(&mut self, d: &mut D, slot: u32, bytes: &[u8]) -> Result<(), ModelError> {
        let short = |rest: &[u8]| DeviceError::State(format!("the states end early: {} bytes are left", rest.len()));
        let mut rest = bytes;
        for layer in &mut self.layers {
            if let LayerCache::Delta(state) = layer {
                let (len, tail) = rest.split_first_chunk::<8>().ok_or_else(|| short(rest))?;
                let len = usize::try_from(u64::from_le_bytes(*len)).unwrap_or(usize::MAX);
                let part = tail.get(..len).ok_or_else(|| short(tail))?;
                d.delta_import(state, slot, part)?;
                rest = &tail[len..];
            }
        }
        match rest {
            [] => Ok(()),
            rest => Err(DeviceError::State(format!("{} bytes follow the states", rest.len())).into()),
        }
    }

    /// A page's bytes in all layers, one layer after another.
    pub fn export_page(&self, d: &mut D, page: u32) -> Result<Vec<u8>, ModelError> {
        let mut bytes = Vec::new();
        for layer in &self.layers {
            if let LayerCache::Kv(kv) = layer {
                bytes.extend(d.kv_export(kv, page)?);
            }
        }
        Ok(bytes)
    }

    /// The reverse of [`Self::export_page`]; `sizes` are those of [`ModelSpec::page_bytes`].
    pub fn import_page(&mut self, d: &mut D, page: u32, bytes: &[u8], sizes: &[usize]) -> Result<(), ModelError> {
        let expected: usize = sizes.iter().sum();
        if bytes.len() != expected {
            let found = bytes.len();
            return Err(
                DeviceError::State(format!("a page takes {expected} bytes in all layers, found {found}")).into()
            );
        }
        let attention = self.layers.iter_mut().filter_map(|layer| match layer {
            LayerCache::Kv(kv) => Some(kv),
            LayerCache::Delta(_) => None,
        });
        let mut rest = bytes;
        for (kv, &size) in attention.zip(sizes) {
            d.kv_import(kv, page, &rest[..size])?;
            rest = &rest[size..];
        }
        Ok(())
    }

    /// Copies a page in all layers.
    pub fn copy_page(&mut self, d: &mut D, from: u32, to: u32) {
        for layer in &mut self.layers {
            if let LayerCache::Kv(kv) = layer {
                d.kv_copy(kv, from, to);
            }
        }
    }

    /// The page holds nothing any more in any layer.
    pub fn release_page(&mut self, d: &mut D, page: u32) {
        for layer in &mut self.layers {
            if let LayerCache::Kv(kv) = layer {
                d.kv_release(kv, page);
            }
        }
    }
}
