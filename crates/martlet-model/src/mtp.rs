//! The multi-token-prediction head: from the hidden state at t and the token at t + 1, the logits of the token at
//! t + 2.
//!
//! u = fc([norm_e(embed(x_{t+1})), norm_h(h_t)]); one full-attention decoder layer with a KV cache of its own, entry at
//! position t; m = norm(layer(u)); logits = lm_head(m). A deeper draft feeds m back as the next h. h_t is the trunk's
//! hidden state after its final norm.

use crate::cache::{Cache, LayerCache};
use crate::layers::{Layer, Mixer};
use crate::scratch::{Place, Scratch};
use crate::{ExpertProvider, ModelError};
use martlet_device::{Device, Rows};

/// Weights of the draft head.
pub struct Mtp<D: Device> {
    /// Width of the residual stream.
    pub(crate) width: usize,
    pub(crate) fc: D::Matrix,
    pub(crate) norm_embedding: D::Vector,
    pub(crate) norm_hidden: D::Vector,
    pub(crate) layer: Layer<D>,
    pub(crate) norm: D::Vector,
    /// The first rows of a large output head: drafts are chosen among the [`DRAFT_VOCABULARY`] most frequent tokens.
    pub(crate) head: Option<D::Matrix>,
    pub convention: MtpConvention,
}

/// Tokens that drafts of a larger vocabulary are chosen among. Ids of byte-pair vocabularies ascend as tokens get rarer,
/// so that these are nearly all of a text in a European language, or code; and a pass of the draft head reads a quarter of
/// the output head, which is most of what it reads. A token beyond them is never drafted, and comes as without drafts.
pub const DRAFT_VOCABULARY: usize = 65_536;

/// How many tokens are drafted among.
pub(crate) fn draft_vocabulary(vocabulary: usize) -> usize {
    if vocabulary >= 2 * DRAFT_VOCABULARY { DRAFT_VOCABULARY } else { vocabulary }
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

impl<D: Device> Mtp<D> {
    /// From the tokens of `b` and `hidden` (h_t) to the head's own hidden state m: in `s.tmp` for all rows, in `s.output`
    /// for the output rows.
    pub(crate) fn forward(
        &self,
        d: &mut D,
        embed: &D::Matrix,
        place: Place,
        hidden: &mut D::Buffer,
        b: &D::Batch,
        cache: &mut Cache<D>,
        s: &mut Scratch<D>,
        experts: &mut dyn ExpertProvider<D>,
    ) -> Result<(), ModelError> {
        self.join(d, embed, place.eps, hidden, b, s);
        self.layer.forward(d, place, hidden, b, &mut cache.layers[place.layer], s, None, experts)?;

        d.rms_norm(hidden, &self.norm, place.eps, Rows::All, b, &mut s.tmp, 0);
        d.gather(&s.tmp, b, &mut s.output);
        Ok(())
    }

    /// Keys and values of the rows alone: what later drafts attend to. They depend on no other row of the head, so that
    /// rows which draft nothing cost two small products instead of a layer.
    pub(crate) fn append(
        &self,
        d: &mut D,
        embed: &D::Matrix,
        place: Place,
        hidden: &mut D::Buffer,
        b: &D::Batch,
        cache: &mut Cache<D>,
        s: &mut Scratch<D>,
    ) {
        // The draft head's layer attends in every architecture (`arch/`).
        let (Mixer::Attention(attention), LayerCache::Kv(kv)) = (&self.layer.mixer, &mut cache.layers[place.layer])
        else {
            unreachable!("the draft head has an attention layer and its pages")
        };
        self.join(d, embed, place.eps, hidden, b, s);
        attention.append(d, &self.layer.mixer_norm, place.eps, hidden, b, kv, s);
    }

    /// hidden = fc([norm(embedding), norm(hidden)]): what the head's layer reads.
    fn join(&self, d: &mut D, embed: &D::Matrix, eps: f32, hidden: &mut D::Buffer, b: &D::Batch, s: &mut Scratch<D>) {
        let (e_at, h_at) = if self.convention.embedding_first { (0, self.width) } else { (self.width, 0) };
        d.embed(embed, b, &mut s.tmp);
        d.rms_norm(&s.tmp, &self.norm_embedding, eps, Rows::All, b, &mut s.pair, e_at);
        d.rms_norm(hidden, &self.norm_hidden, eps, Rows::All, b, &mut s.pair, h_at);
        d.matmul(&self.fc, &s.pair, Rows::All, b, hidden, 0);
    }
}
