//! The forward pass: embedding, any range of layers, head.

use crate::cache::Cache;
use crate::layers::Layer;
use crate::mtp::Mtp;
use crate::scratch::{Place, Scratch};
use crate::spec::ModelSpec;
use crate::{ExpertProvider, ModelError};
use martlet_device::{Device, Rows};
use std::ops::Range;

/// A model's weights on a device, experts apart: those come from an [`ExpertProvider`].
pub struct Model<D: Device> {
    pub spec: ModelSpec,
    pub(crate) embed: D::Matrix,
    pub(crate) layers: Vec<Layer<D>>,
    pub(crate) norm: D::Vector,
    /// `None` when the embedding table is the head.
    pub(crate) head: Option<D::Matrix>,
    /// `None` when the checkpoint has no draft head.
    pub mtp: Option<Mtp<D>>,
}

impl<D: Device> Model<D> {
    /// x = embeddings of the batch's tokens.
    pub fn embed(&self, d: &mut D, b: &D::Batch, x: &mut D::Buffer) {
        d.embed(&self.embed, b, x);
    }

    /// Runs the layers of `range` over x [rows, hidden] in place. Prefill and decode are this one call: a batch may hold
    /// one row or a thousand, of one sequence or of many.
    pub fn layers(
        &self,
        d: &mut D,
        range: Range<usize>,
        x: &mut D::Buffer,
        b: &D::Batch,
        cache: &mut Cache<D>,
        s: &mut Scratch<D>,
        experts: &mut dyn ExpertProvider<D>,
    ) -> Result<(), ModelError> {
        for layer in range.clone() {
            let place = Place { layer, eps: self.spec.eps };
            let next = self.layers[..range.end].get(layer + 1);
            self.layers[layer].forward(d, place, x, b, &mut cache.layers[layer], s, next, experts)?;
        }
        Ok(())
    }

    /// y = what the draft head reads of the trunk: the rows of x that `picked` names as outputs, as many as `b` has.
    pub fn draft_input(
        &self,
        d: &mut D,
        x: &D::Buffer,
        picked: &D::Batch,
        b: &D::Batch,
        s: &mut Scratch<D>,
        y: &mut D::Buffer,
    ) {
        if self.mtp.as_ref().is_none_or(|m| m.convention.hidden_after_norm) {
            d.gather(x, picked, &mut s.tmp);
            d.rms_norm(&s.tmp, &self.norm, self.spec.eps, Rows::All, b, y, 0);
        } else {
            d.gather(x, picked, y);
        }
    }

    /// Logits of the batch's output rows, from x as the last layer left it.
    pub fn head(&self, d: &mut D, x: &D::Buffer, b: &D::Batch, s: &mut Scratch<D>) {
        // `tmp` has room for the gathered rows: outputs are rows of the batch.
        d.gather(x, b, &mut s.tmp);
        d.rms_norm(&s.tmp, &self.norm, self.spec.eps, Rows::Outputs, b, &mut s.output, 0);
        let head = self.head.as_ref().unwrap_or(&self.embed);
        d.matmul(head, &s.output, Rows::Outputs, b, &mut s.logits, 0);
    }

    /// Runs the draft head over rows whose tokens are x_{t+1} and whose index is t. `hidden` [rows, hidden] holds h_t and is
    /// overwritten by the head's own hidden state, which a deeper draft feeds back. Leaves the logits of the output rows
    /// in `s.draft_logits`.
    pub fn draft(
        &self,
        d: &mut D,
        hidden: &mut D::Buffer,
        b: &D::Batch,
        cache: &mut Cache<D>,
        s: &mut Scratch<D>,
        experts: &mut dyn ExpertProvider<D>,
    ) -> Result<(), ModelError> {
        let Some(mtp) = &self.mtp else {
            return Err(ModelError::config("mtp", "has no weights in this checkpoint: it can not draft"));
        };
        let place = Place { layer: self.layers.len(), eps: self.spec.eps };
        mtp.forward(d, &self.embed, place, hidden, b, cache, s, experts)?;
        let head = mtp.head.as_ref().or(self.head.as_ref()).unwrap_or(&self.embed);
        d.matmul(head, &s.output, Rows::Outputs, b, &mut s.draft_logits, 0);
        std::mem::swap(hidden, &mut s.tmp);
        Ok(())
    }

    /// Keys and values of the draft head for rows as in [`Self::draft`], without drafting. `hidden` is overwritten.
    pub fn draft_append(
        &self,
        d: &mut D,
        hidden: &mut D::Buffer,
        b: &D::Batch,
        cache: &mut Cache<D>,
        s: &mut Scratch<D>,
    ) {
        if let Some(mtp) = &self.mtp {
            let place = Place { layer: self.layers.len(), eps: self.spec.eps };
            mtp.append(d, &self.embed, place, hidden, b, cache, s);
        }
    }
}
