//! Where a layer's experts come from.

use martlet_device::{Device, DeviceError};

/// Computes the experts that have a slot: (device, experts, slot of each expert).
pub type Run<'a, D> = &'a mut dyn FnMut(&mut D, &<D as Device>::Experts, &[u32]);

/// Most rows of a step for which a router is asked ahead: steps of more choose nearly all experts.
pub const AHEAD_ROWS: usize = 8;

/// Makes the experts that a router chose available to the device. Layers are numbered as in the trunk; the draft head's
/// layer is the one after the last.
pub trait ExpertProvider<D: Device> {
    /// What `routes`, the choices of `b`'s rows, need of `layer` can be made ready from now on: reads begin. The same
    /// layer's [`Self::provide`] follows.
    fn begin(&mut self, _d: &mut D, _layer: usize, _routes: &D::Routes, _b: &D::Batch) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Whether it is of use to hear, between `begin` and `provide` of a layer, what the next layer may choose.
    fn looks_ahead(&self) -> bool {
        false
    }

    /// What the router of `layer` chooses of the hidden state of the layer before: likely choices of `b`'s rows, at most
    /// [`AHEAD_ROWS`] of them. They may be made ready early; no result depends on them.
    fn ahead(&mut self, _d: &mut D, _layer: usize, _routes: &D::Routes, _b: &D::Batch) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Calls `run(device, experts, slots)` until every chosen expert of `layer` was in some call: `slots[e]` is where
    /// expert e lies, [`martlet_device::NO_SLOT`] where it is not in this call. An expert is in one call at most, so
    /// that a provider can let the device compute what is there while it reads what is not.
    fn provide(&mut self, d: &mut D, layer: usize, run: Run<'_, D>) -> Result<(), DeviceError>;
}

/// All experts in memory: one call, no wait.
pub struct Resident<D: Device> {
    layers: Vec<Option<D::Experts>>,
    /// The identity table, as long as the largest layer.
    slots: Vec<u32>,
}

impl<D: Device> Resident<D> {
    /// `layers[i]` holds expert e of layer i in slot e; `None` for a layer without experts.
    pub fn new(layers: Vec<Option<D::Experts>>, experts: usize) -> Resident<D> {
        Resident { layers, slots: (0..experts as u32).collect() }
    }
}

impl<D: Device> ExpertProvider<D> for Resident<D> {
    fn provide(&mut self, d: &mut D, layer: usize, run: Run<'_, D>) -> Result<(), DeviceError> {
        let experts = self.layers.get(layer).and_then(Option::as_ref).ok_or_else(|| DeviceError::Failed {
            device: d.name(),
            what: format!("layer {layer} has no experts loaded"),
        })?;
        run(d, experts, &self.slots);
        Ok(())
    }
}
