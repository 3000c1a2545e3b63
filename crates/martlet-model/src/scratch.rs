//! Buffers of a step.

use crate::ModelError;
use crate::spec::{MixerSpec, MlpSpec, ModelSpec};
use martlet_device::{Device, RouteSpec};

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
