//! Every tensor that a model of a given spec has, under its canonical name.

use crate::spec::{LayerSpec, MixerSpec, MlpSpec, ModelSpec};
use martlet_weights::{Expected, Kind, Read};

/// Tensors that this runtime knows and leaves alone: (prefix of the canonical name, reason).
pub fn ignored_tensors(spec: &ModelSpec) -> Vec<(&'static str, &'static str)> {
    let mut list = vec![("visual.", "the vision tower is not run yet: text only")];
    if spec.tied {
        list.push(("lm_head.weight", "the config ties the output head to the embedding"));
    }
    list
}

/// The tensors of the trunk, and with `mtp` those of the draft head.
pub fn expected_tensors(spec: &ModelSpec, mtp: bool) -> Vec<Expected> {
    let mut list = Vec::new();
    let (h, v) = (spec.hidden, spec.vocabulary);
    // A tied table is read in full by the head; otherwise one row of it is read for each token.
    let table = if spec.tied { Read::Every } else { Read::Row };
    list.push(tensor("embed_tokens.weight", &[v, h], Kind::Matrix, table));
    for (i, layer) in spec.layers.iter().enumerate() {
        layer_tensors(&mut list, &format!("layers.{i}."), h, layer, false);
    }
    list.push(tensor("norm.weight", &[h], Kind::Vector, Read::Every));
    if !spec.tied {
        list.push(tensor("lm_head.weight", &[v, h], Kind::Matrix, Read::Every));
    }
    if mtp {
        list.push(tensor("mtp.fc.weight", &[h, 2 * h], Kind::Matrix, Read::Draft));
        for name in ["mtp.pre_fc_norm_embedding.weight", "mtp.pre_fc_norm_hidden.weight", "mtp.norm.weight"] {
            list.push(tensor(name, &[h], Kind::Vector, Read::Draft));
        }
        layer_tensors(&mut list, "mtp.layers.0.", h, &spec.mtp, true);
    }
    list
}

fn tensor(name: &str, shape: &[usize], kind: Kind, read: Read) -> Expected {
    Expected { name: name.to_string(), shape: shape.to_vec(), kind, read }
}

fn layer_tensors(list: &mut Vec<Expected>, prefix: &str, hidden: usize, layer: &LayerSpec, draft: bool) {
    let every = if draft { Read::Draft } else { Read::Every };
    let mut add = |name: &str, shape: &[usize], kind, read| {
        list.push(tensor(&format!("{prefix}{name}"), shape, kind, if draft { Read::Draft } else { read }));
    };
    add("input_layernorm.weight", &[hidden], Kind::Vector, every);
    match layer.mixer {
        MixerSpec::Attention(a) => {
            add("self_attn.q_proj.weight", &[2 * a.heads * a.dim, hidden], Kind::Matrix, every);
            add("self_attn.k_proj.weight", &[a.kv_heads * a.dim, hidden], Kind::Matrix, every);
            add("self_attn.v_proj.weight", &[a.kv_heads * a.dim, hidden], Kind::Matrix, every);
            add("self_attn.o_proj.weight", &[hidden, a.heads * a.dim], Kind::Matrix, every);
            add("self_attn.q_norm.weight", &[a.dim], Kind::Vector, every);
            add("self_attn.k_norm.weight", &[a.dim], Kind::Vector, every);
        }
        MixerSpec::GatedDelta(g) => {
            let values = g.value_heads * g.value_dim;
            add("linear_attn.in_proj_qkv.weight", &[g.channels(), hidden], Kind::Matrix, every);
            add("linear_attn.in_proj_z.weight", &[values, hidden], Kind::Matrix, every);
            add("linear_attn.in_proj_b.weight", &[g.value_heads, hidden], Kind::Exact, every);
            add("linear_attn.in_proj_a.weight", &[g.value_heads, hidden], Kind::Exact, every);
            add("linear_attn.conv1d.weight", &[g.channels(), g.taps], Kind::Vector, every);
            add("linear_attn.A_log", &[g.value_heads], Kind::Vector, every);
            add("linear_attn.dt_bias", &[g.value_heads], Kind::Vector, every);
            add("linear_attn.norm.weight", &[g.value_dim], Kind::Vector, every);
            add("linear_attn.out_proj.weight", &[hidden, values], Kind::Matrix, every);
        }
    }
    add("post_attention_layernorm.weight", &[hidden], Kind::Vector, every);
    match layer.mlp {
        MlpSpec::Dense { width } => {
            add("mlp.gate_proj.weight", &[width, hidden], Kind::Matrix, every);
            add("mlp.up_proj.weight", &[width, hidden], Kind::Matrix, every);
            add("mlp.down_proj.weight", &[hidden, width], Kind::Matrix, every);
        }
        MlpSpec::Experts { route, width, shared } => {
            let (e, read) = (route.experts, Read::Chosen { k: route.chosen, of: route.experts });
            add("mlp.gate.weight", &[e, hidden], Kind::Exact, every);
            add("mlp.experts.gate_proj.weight", &[e, width, hidden], Kind::Experts, read);
            add("mlp.experts.up_proj.weight", &[e, width, hidden], Kind::Experts, read);
            add("mlp.experts.down_proj.weight", &[e, hidden, width], Kind::Experts, read);
            add("mlp.shared_expert.gate_proj.weight", &[shared, hidden], Kind::Matrix, every);
            add("mlp.shared_expert.up_proj.weight", &[shared, hidden], Kind::Matrix, every);
            add("mlp.shared_expert.down_proj.weight", &[hidden, shared], Kind::Matrix, every);
            add("mlp.shared_expert_gate.weight", &[1, hidden], Kind::Exact, every);
        }
    }
}
