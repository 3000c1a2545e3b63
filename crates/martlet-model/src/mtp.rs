//! The multi-token-prediction head: from the hidden state at t and the token at t + 1, the logits of the token at
//! t + 2.
//!
//! u = fc([norm_e(embed(x_{t+1})), norm_h(h_t)]); one full-attention decoder layer with a KV cache of its own, entry at
//! position t; m = norm(layer(u)); logits = lm_head(m). A deeper draft feeds m back as the next h. h_t is the trunk's
//! hidden state after its final norm.

use crate::cache::Cache;
use crate::forward::{Model, Place, Scratch};
use crate::layers::Layer;
use crate::{ExpertProvider, ModelError};
use martlet_device::{Device, Rows};

/// Weights of the draft head.
pub struct Mtp<D: Device> {
    pub(crate) fc: D::Matrix,
    pub(crate) norm_embedding: D::Vector,
    pub(crate) norm_hidden: D::Vector,
    pub(crate) layer: Layer<D>,
    pub(crate) norm: D::Vector,
    pub convention: MtpConvention,
}

/// How a checkpoint's head wants its input. The family's own files are of the default; converters differ, so that it is
/// checked by the acceptance of drafts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MtpConvention {
    /// fc reads [embedding, hidden]; otherwise [hidden, embedding].
    pub embedding_first: bool,
    /// h is taken after the trunk's final norm; otherwise before it.
    pub hidden_after_norm: bool,
}

impl Default for MtpConvention {
    fn default() -> Self {
        MtpConvention { embedding_first: true, hidden_after_norm: true }
    }
}

impl<D: Device> Model<D> {
    /// Runs the draft head over rows whose tokens are x_{t+1} and whose index is t. `hidden` [rows, hidden] holds h_t
    /// and is overwritten by the head's own hidden state, which a deeper draft feeds back. Leaves the logits of the
    /// output rows in `s.logits`.
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
        let (eps, width) = (self.spec.eps, self.spec.hidden);
        let (e_at, h_at) = if mtp.convention.embedding_first { (0, width) } else { (width, 0) };
        d.embed(&self.embed, b, &mut s.tmp);
        d.rms_norm(&s.tmp, &mtp.norm_embedding, eps, Rows::All, b, &mut s.pair, e_at);
        d.rms_norm(hidden, &mtp.norm_hidden, eps, Rows::All, b, &mut s.pair, h_at);
        d.matmul(&mtp.fc, &s.pair, Rows::All, b, hidden, 0);

        let layer = self.layers.len();
        let place = Place { layer, eps };
        mtp.layer.forward(d, place, hidden, b, &mut cache.layers[layer], s, experts)?;

        d.rms_norm(hidden, &mtp.norm, eps, Rows::All, b, &mut s.tmp, 0);
        d.gather(&s.tmp, b, &mut s.output);
        self.logits(d, b, s);
        std::mem::swap(hidden, &mut s.tmp);
        Ok(())
    }
}
