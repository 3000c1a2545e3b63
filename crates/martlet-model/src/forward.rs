//! The forward pass: embedding, any range of layers, head.

use crate::cache::Cache;
use crate::layers::Layer;
use crate::mtp::Mtp;
use crate::spec::{MixerSpec, MlpSpec, ModelSpec};
use crate::{ExpertProvider, ModelError};
use martlet_device::{Device, RouteSpec, Rows};
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

/// Where a layer stands, and the epsilon of its norms.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    pub layer: usize,
    pub eps: f32,
}

/// Buffers of one step, made once for the largest step and used by all layers.
pub struct Scratch<D: Device> {
    /// [rows, hidden] input of the mixer or MLP after its norm.
    pub(crate) normed: D::Buffer,
    /// Products of one input side by side: the widest of all layers.
    pub(crate) proj: D::Buffer,
    /// What the mixer or the MLP makes before its last projection.
    pub(crate) mixed: D::Buffer,
    /// [rows, hidden] output of the last projection.
    pub(crate) tmp: D::Buffer,
    /// [rows, channels] output of the convolution.
    pub(crate) conv: D::Buffer,
    /// [rows, 2 * value heads] decay and beta.
    pub(crate) gates: D::Buffer,
    /// [rows, experts + 1] logits of the router and of the shared expert's gate.
    pub(crate) router: D::Buffer,
    /// Choices of the latest sparse layer.
    pub routes: D::Routes,
    /// [rows * chosen, hidden] outputs of the chosen experts.
    pub(crate) chosen: D::Buffer,
    /// [rows, 2 * hidden] input of the draft head.
    pub(crate) pair: D::Buffer,
    /// [outputs, hidden] hidden states of the output rows after the final norm: what the head reads.
    pub output: D::Buffer,
    /// [outputs, vocabulary]
    pub logits: D::Buffer,
}

impl<D: Device> Scratch<D> {
    /// For steps of up to `rows` rows and `outputs` output rows.
    pub fn new(d: &D, spec: &ModelSpec, rows: usize, outputs: usize) -> Result<Scratch<D>, ModelError> {
        let none = RouteSpec { experts: 0, chosen: 0, renormalise: false };
        let mut widths = Widths { proj: 0, mixed: 0, channels: 0, value_heads: 0, route: none };
        spec.all_layers().for_each(|l| widths.include(&l.mixer, &l.mlp));
        let hidden = spec.hidden;
        Ok(Scratch {
            normed: d.buffer(rows, hidden)?,
            proj: d.buffer(rows, widths.proj)?,
            mixed: d.buffer(rows, widths.mixed)?,
            tmp: d.buffer(rows, hidden)?,
            conv: d.buffer(rows, widths.channels)?,
            gates: d.buffer(rows, 2 * widths.value_heads)?,
            router: d.buffer(rows, widths.route.experts + 1)?,
            routes: d.routes(rows, widths.route)?,
            chosen: d.buffer(rows * widths.route.chosen, hidden)?,
            pair: d.buffer(rows, 2 * hidden)?,
            output: d.buffer(outputs, hidden)?,
            logits: d.buffer(outputs, spec.vocabulary)?,
        })
    }
}

/// The widest of each buffer over all layers.
struct Widths {
    proj: usize,
    mixed: usize,
    channels: usize,
    value_heads: usize,
    route: RouteSpec,
}

impl Widths {
    fn include(&mut self, mixer: &MixerSpec, mlp: &MlpSpec) {
        let (proj, mixed) = match mixer {
            MixerSpec::Attention(a) => (2 * (a.heads + a.kv_heads) * a.dim, a.heads * a.dim),
            MixerSpec::GatedDelta(g) => {
                self.channels = self.channels.max(g.channels());
                self.value_heads = self.value_heads.max(g.value_heads);
                let values = g.value_heads * g.value_dim;
                (g.channels() + values + 2 * g.value_heads, values)
            }
        };
        let width = match mlp {
            MlpSpec::Dense { width } => *width,
            MlpSpec::Experts { route, shared, .. } => {
                self.route = *route;
                *shared
            }
        };
        self.proj = self.proj.max(proj).max(2 * width);
        self.mixed = self.mixed.max(mixed).max(width);
    }
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
        for layer in range {
            let place = Place { layer, eps: self.spec.eps };
            self.layers[layer].forward(d, place, x, b, &mut cache.layers[layer], s, experts)?;
        }
        Ok(())
    }

    /// y = x after the final norm, all rows: what the draft head reads.
    pub fn final_norm(&self, d: &mut D, x: &D::Buffer, b: &D::Batch, y: &mut D::Buffer) {
        d.rms_norm(x, &self.norm, self.spec.eps, Rows::All, b, y, 0);
    }

    /// Logits of the batch's output rows, from x as the last layer left it.
    pub fn head(&self, d: &mut D, x: &D::Buffer, b: &D::Batch, s: &mut Scratch<D>) {
        // `tmp` has room for the gathered rows: outputs are rows of the batch.
        d.gather(x, b, &mut s.tmp);
        d.rms_norm(&s.tmp, &self.norm, self.spec.eps, Rows::Outputs, b, &mut s.output, 0);
        self.logits(d, b, s);
    }

    /// Logits from hidden states that are normed already, in `s.output`.
    pub(crate) fn logits(&self, d: &mut D, b: &D::Batch, s: &mut Scratch<D>) {
        let head = self.head.as_ref().unwrap_or(&self.embed);
        d.matmul(head, &s.output, Rows::Outputs, b, &mut s.logits, 0);
    }
}
