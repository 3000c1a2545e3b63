//! Buffers of a step.

use crate::ModelError;
use crate::experts::AHEAD_ROWS;
use crate::mtp::draft_vocabulary;
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
    pub(crate) ahead: Ahead<D>,
    /// [rows, 2 * hidden] input of the draft head.
    pub(crate) pair: D::Buffer,
    /// [outputs, hidden] hidden states of the output rows after the final norm: what the head reads.
    pub output: D::Buffer,
    /// [outputs, vocabulary]
    pub logits: D::Buffer,
    /// [outputs, tokens that are drafted among], of the draft head.
    pub draft_logits: D::Buffer,
}

/// For a router that is asked ahead, of a few rows.
pub(crate) struct Ahead<D: Device> {
    /// [rows, hidden]
    pub normed: D::Buffer,
    /// [rows, experts]
    pub router: D::Buffer,
    pub routes: D::Routes,
}

impl<D: Device> Ahead<D> {
    fn new(d: &D, hidden: usize, route: RouteSpec, rows: usize) -> Result<Ahead<D>, ModelError> {
        let rows = ahead_rows(route, rows);
        let (normed, router) = (d.buffer(rows, hidden)?, d.buffer(rows, route.experts)?);
        Ok(Ahead { normed, router, routes: d.routes(rows, route)? })
    }
}

/// Rows for which routers are asked ahead, of steps of up to `rows`.
fn ahead_rows(route: RouteSpec, rows: usize) -> usize {
    if route.experts > 0 { rows.min(AHEAD_ROWS) } else { 0 }
}

impl<D: Device> Scratch<D> {
    /// For steps of up to `rows` rows and `outputs` output rows.
    pub fn new(d: &D, spec: &ModelSpec, rows: usize, outputs: usize) -> Result<Scratch<D>, ModelError> {
        let (widths, hidden) = (Widths::of(spec), spec.hidden);
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
            ahead: Ahead::new(d, hidden, widths.route, rows)?,
            pair: d.buffer(rows, 2 * hidden)?,
            output: d.buffer(outputs, hidden)?,
            logits: d.buffer(outputs, spec.vocabulary)?,
            draft_logits: d.buffer(outputs, draft_vocabulary(spec.vocabulary))?,
        })
    }
}

/// Bytes of a [`Scratch`] for `rows` rows and `outputs` output rows.
pub fn scratch_bytes(spec: &ModelSpec, rows: usize, outputs: usize) -> u64 {
    let (w, hidden) = (Widths::of(spec), spec.hidden);
    let narrow = w.proj + w.mixed + w.channels + 2 * w.value_heads + w.route.experts + 1;
    // normed, tmp, pair (two wide), the outputs of the chosen experts; a choice is a number and a weight.
    let row = narrow + (4 + w.route.chosen) * hidden + 2 * w.route.chosen;
    let values = |rows: usize, width: usize| (rows as u64).saturating_mul(width as u64);
    let output = hidden + spec.vocabulary + draft_vocabulary(spec.vocabulary);
    let ahead = values(ahead_rows(w.route, rows), hidden + w.route.experts + 2 * w.route.chosen);
    values(rows, row).saturating_add(values(outputs, output)).saturating_add(ahead).saturating_mul(4)
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
    fn of(spec: &ModelSpec) -> Widths {
        let none = RouteSpec { experts: 0, chosen: 0, renormalise: false };
        let mut widths = Widths { proj: 0, mixed: 0, channels: 0, value_heads: 0, route: none };
        spec.all_layers().for_each(|l| widths.include(&l.mixer, &l.mlp));
        widths
    }

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read_config;
    use martlet_device::reference::{Buffer, Reference};

    #[test]
    fn the_bytes_are_those_that_a_device_takes() {
        let common = serde_json::json!({
            "vocab_size": 40, "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 2,
            "num_key_value_heads": 1, "head_dim": 64, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
            "linear_key_head_dim": 32, "linear_value_head_dim": 32, "linear_conv_kernel_dim": 4
        });
        let dense = serde_json::json!({"model_type": "qwen3_5", "intermediate_size": 96});
        let sparse = serde_json::json!({
            "model_type": "qwen3_5_moe", "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
            "shared_expert_intermediate_size": 32
        });
        for own in [dense, sparse] {
            let mut config = common.clone();
            config.as_object_mut().unwrap().extend(own.as_object().unwrap().clone());
            let spec = read_config(&config).unwrap();
            let s = Scratch::new(&Reference::new(), &spec, 5, 3).unwrap();
            let buffers = [&s.normed, &s.proj, &s.mixed, &s.tmp, &s.conv, &s.gates, &s.router, &s.chosen, &s.pair];
            let ahead = [&s.ahead.normed, &s.ahead.router];
            let all = buffers.into_iter().chain([&s.output, &s.logits, &s.draft_logits]).chain(ahead);
            let values: usize = all.map(|b: &Buffer| b.rows() * b.cols()).sum();
            let chosen = spec.layers[0].mlp.route().map_or(0, |r| r.chosen);
            // Choices of 5 rows, and as many ahead.
            assert_eq!(scratch_bytes(&spec, 5, 3), 4 * (values + 2 * 2 * 5 * chosen) as u64);
        }
    }
}
