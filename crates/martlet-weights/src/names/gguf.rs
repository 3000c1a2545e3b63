//! llama.cpp: `blk.N.` for layers, whose last are the draft heads' (`nextn`); experts are stacks already.

/// Tensors of a layer.
const LAYER: [(&str, &str); 31] = [
    ("attn_norm.weight", "input_layernorm.weight"),
    ("post_attention_norm.weight", "post_attention_layernorm.weight"),
    ("attn_q.weight", "self_attn.q_proj.weight"),
    ("attn_k.weight", "self_attn.k_proj.weight"),
    ("attn_v.weight", "self_attn.v_proj.weight"),
    ("attn_output.weight", "self_attn.o_proj.weight"),
    ("attn_q_norm.weight", "self_attn.q_norm.weight"),
    ("attn_k_norm.weight", "self_attn.k_norm.weight"),
    ("attn_qkv.weight", "linear_attn.in_proj_qkv.weight"),
    ("attn_gate.weight", "linear_attn.in_proj_z.weight"),
    // Older files of Qwen3-Next keep the joint projection.
    ("ssm_in.weight", "linear_attn.in_proj_qkvz.weight"),
    ("ssm_ba.weight", "linear_attn.in_proj_ba.weight"),
    ("ssm_alpha.weight", "linear_attn.in_proj_a.weight"),
    ("ssm_beta.weight", "linear_attn.in_proj_b.weight"),
    ("ssm_conv1d.weight", "linear_attn.conv1d.weight"),
    ("ssm_dt.bias", "linear_attn.dt_bias"),
    // Stored as -exp(A_log).
    ("ssm_a", "linear_attn.A_log"),
    ("ssm_norm.weight", "linear_attn.norm.weight"),
    ("ssm_out.weight", "linear_attn.out_proj.weight"),
    ("ffn_gate.weight", "mlp.gate_proj.weight"),
    ("ffn_up.weight", "mlp.up_proj.weight"),
    ("ffn_down.weight", "mlp.down_proj.weight"),
    ("ffn_gate_inp.weight", "mlp.gate.weight"),
    ("ffn_gate_inp_shexp.weight", "mlp.shared_expert_gate.weight"),
    ("ffn_gate_exps.weight", "mlp.experts.gate_proj.weight"),
    ("ffn_up_exps.weight", "mlp.experts.up_proj.weight"),
    ("ffn_down_exps.weight", "mlp.experts.down_proj.weight"),
    ("ffn_gate_up_exps.weight", "mlp.experts.gate_up_proj"),
    ("ffn_gate_shexp.weight", "mlp.shared_expert.gate_proj.weight"),
    ("ffn_up_shexp.weight", "mlp.shared_expert.up_proj.weight"),
    ("ffn_down_shexp.weight", "mlp.shared_expert.down_proj.weight"),
];

/// Tensors of a draft head beside those of its layer.
const DRAFT: [(&str, &str); 4] = [
    ("nextn.eh_proj.weight", "fc.weight"),
    ("nextn.enorm.weight", "pre_fc_norm_embedding.weight"),
    ("nextn.hnorm.weight", "pre_fc_norm_hidden.weight"),
    ("nextn.shared_head_norm.weight", "norm.weight"),
];

const WHOLE: [(&str, &str); 3] = [
    ("token_embd.weight", "embed_tokens.weight"),
    ("output_norm.weight", "norm.weight"),
    ("output.weight", "lm_head.weight"),
];

/// The name that the Hugging Face format gives the tensor, without prefix; unknown names stay. `layers`: of the
/// model, without draft heads.
pub(crate) fn to_hf(name: &str, layers: usize) -> String {
    let known = |table: &[(&str, &'static str)], part: &str| table.iter().find(|(g, _)| *g == part).map(|(_, hf)| *hf);
    if let Some(hf) = known(&WHOLE, name) {
        return hf.to_string();
    }
    let layer = || {
        let (number, part) = name.strip_prefix("blk.")?.split_once('.')?;
        let number: usize = number.parse().ok()?;
        match number.checked_sub(layers) {
            None => Some(format!("layers.{number}.{}", known(&LAYER, part)?)),
            Some(draft) => match known(&DRAFT, part) {
                Some(hf) => (draft == 0).then(|| format!("mtp.{hf}")),
                None => Some(format!("mtp.layers.{draft}.{}", known(&LAYER, part)?)),
            },
        }
    };
    layer().unwrap_or_else(|| name.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_drafts_and_the_rest() {
        for (gguf, hf) in [
            ("token_embd.weight", "embed_tokens.weight"),
            ("blk.0.ssm_a", "layers.0.linear_attn.A_log"),
            ("blk.7.ffn_gate_inp.weight", "layers.7.mlp.gate.weight"),
            ("blk.8.attn_q.weight", "mtp.layers.0.self_attn.q_proj.weight"),
            ("blk.8.nextn.enorm.weight", "mtp.pre_fc_norm_embedding.weight"),
            ("blk.7.nextn.enorm.weight", "blk.7.nextn.enorm.weight"),
            ("blk.9.nextn.enorm.weight", "blk.9.nextn.enorm.weight"),
            ("blk.x.attn_q.weight", "blk.x.attn_q.weight"),
            ("rope_freqs.weight", "rope_freqs.weight"),
        ] {
            assert_eq!(to_hf(gguf, 8), hf);
        }
    }
}
