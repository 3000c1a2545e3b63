//! What a config says, in the terms of the forward pass: the same for every architecture of the family.

use crate::rope::RopeSpec;
use martlet_device::{AttentionSpec, DeltaSpec, KvScheme, KvSpec, RouteSpec};

/// Most drafts that one sequence verifies in a step.
pub const MAX_DRAFTS: usize = 15;

/// Everything about a model that its config decides.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelSpec {
    pub model_type: &'static str,
    pub vocabulary: usize,
    pub hidden: usize,
    /// Epsilon of every RMSNorm.
    pub eps: f32,
    /// The output head is the embedding table.
    pub tied: bool,
    pub layers: Vec<LayerSpec>,
    pub rope: RopeSpec,
    /// Tokens that the model was made for.
    pub context: usize,
    /// The layer of the multi-token-prediction head; whether a checkpoint has its weights is another matter.
    pub mtp: LayerSpec,
    pub sampling: [SamplingDefaults; 2],
}

/// One decoder layer: x += mixer(norm(x)); x += mlp(norm(x)).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerSpec {
    pub mixer: MixerSpec,
    pub mlp: MlpSpec,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MixerSpec {
    Attention(AttentionSpec),
    GatedDelta(DeltaSpec),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MlpSpec {
    Dense {
        width: usize,
    },
    /// Routed experts of `width`, and one shared expert of `shared`.
    Experts {
        route: RouteSpec,
        width: usize,
        shared: usize,
    },
}

/// Recommended sampling, for checkpoints whose generation_config is silent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SamplingDefaults {
    pub temperature: f32,
    pub top_p: f32,
    pub top_k: u32,
    pub presence_penalty: f32,
}

impl ModelSpec {
    /// The family's recommendation with thinking on or off.
    pub fn sampling(&self, thinking: bool) -> SamplingDefaults {
        self.sampling[thinking as usize]
    }

    /// The trunk's layers, then the draft head's.
    pub fn all_layers(&self) -> impl Iterator<Item = &LayerSpec> {
        self.layers.iter().chain([&self.mtp])
    }

    /// Whether any layer routes tokens to experts.
    pub fn has_experts(&self) -> bool {
        self.layers.iter().any(|l| matches!(l.mlp, MlpSpec::Experts { .. }))
    }

    /// Experts of all layers of the trunk.
    pub fn experts(&self) -> usize {
        let of = |l: &LayerSpec| if let MlpSpec::Experts { route, .. } = l.mlp { route.experts } else { 0 };
        self.layers.iter().map(of).sum()
    }

    /// The layers that keep something of a sequence: the trunk's, then with `drafts` the draft head's.
    pub fn cached_layers(&self, drafts: bool) -> impl Iterator<Item = &LayerSpec> {
        self.layers.iter().chain(drafts.then_some(&self.mtp))
    }

    /// Bytes of one page of keys and values in each attention layer, with `drafts` that of the draft head included.
    pub fn page_bytes(&self, drafts: bool, scheme: KvScheme) -> Vec<usize> {
        let one = |l: &LayerSpec| match l.mixer {
            MixerSpec::Attention(a) => Some(KvSpec { kv_heads: a.kv_heads, dim: a.dim, scheme }.page_bytes()),
            MixerSpec::GatedDelta(_) => None,
        };
        self.cached_layers(drafts).filter_map(one).collect()
    }

    /// Bytes of the recurrent states and convolution inputs of one sequence in f32; a device may keep a little more.
    pub fn state_bytes(&self) -> usize {
        let one = |l: &LayerSpec| match l.mixer {
            MixerSpec::Attention(_) => 0,
            MixerSpec::GatedDelta(g) => 4 * (g.value_heads * g.key_dim * g.value_dim + (g.taps - 1) * g.channels()),
        };
        self.layers.iter().map(one).sum()
    }
}

impl MlpSpec {
    /// The router, where there is one.
    pub fn route(&self) -> Option<RouteSpec> {
        match self {
            MlpSpec::Dense { .. } => None,
            MlpSpec::Experts { route, .. } => Some(*route),
        }
    }
}
