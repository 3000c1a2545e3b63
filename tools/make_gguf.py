#!/usr/bin/env python3
"""A GGUF file of a checkpoint of this family, with the changes that llama.cpp's own converter makes.

    pip install gguf numpy
    python tools/make_gguf.py tests/fixtures/moe tests/fixtures/gguf/moe.gguf BF16

SRC is a Hugging Face folder (safetensors in F32, F16 or BF16; a tokenizer if it has one), TYPE one of F32, F16, BF16,
Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, MXFP4, in which the matrices are stored (in F16 where their rows do not fit its blocks).
With TYPE vocab only configuration and tokenizer are written. Vision towers are left out. A fourth argument is the most
tensors of one part: the file is then split into DST's stem-00001-of-0000N.gguf and so on.
"""

import json
import re
import sys
from pathlib import Path

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter, TokenType, quants

ARCHITECTURES = {"qwen3_next": "qwen3next", "qwen3_5": "qwen35", "qwen3_5_moe": "qwen35moe"}

LAYER = {
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "post_attention_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
    "linear_attn.in_proj_qkv.weight": "attn_qkv.weight",
    "linear_attn.in_proj_z.weight": "attn_gate.weight",
    "linear_attn.in_proj_ba.weight": "ssm_ba.weight",
    "linear_attn.in_proj_a.weight": "ssm_alpha.weight",
    "linear_attn.in_proj_b.weight": "ssm_beta.weight",
    "linear_attn.conv1d.weight": "ssm_conv1d.weight",
    "linear_attn.dt_bias": "ssm_dt.bias",
    "linear_attn.A_log": "ssm_a",
    "linear_attn.norm.weight": "ssm_norm.weight",
    "linear_attn.out_proj.weight": "ssm_out.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
    "mlp.gate.weight": "ffn_gate_inp.weight",
    "mlp.shared_expert_gate.weight": "ffn_gate_inp_shexp.weight",
    "mlp.shared_expert.gate_proj.weight": "ffn_gate_shexp.weight",
    "mlp.shared_expert.up_proj.weight": "ffn_up_shexp.weight",
    "mlp.shared_expert.down_proj.weight": "ffn_down_shexp.weight",
    "mlp.experts.gate_proj.weight": "ffn_gate_exps.weight",
    "mlp.experts.up_proj.weight": "ffn_up_exps.weight",
    "mlp.experts.down_proj.weight": "ffn_down_exps.weight",
}
WHOLE = {"embed_tokens.weight": "token_embd.weight", "norm.weight": "output_norm.weight", "lm_head.weight": "output.weight"}
DRAFT = {
    "mtp.fc.weight": "nextn.eh_proj.weight",
    "mtp.pre_fc_norm_embedding.weight": "nextn.enorm.weight",
    "mtp.pre_fc_norm_hidden.weight": "nextn.hnorm.weight",
    "mtp.norm.weight": "nextn.shared_head_norm.weight",
}


def safetensors(path):
    """All tensors of a file, in f32."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + size])
    header.pop("__metadata__", None)
    for name, info in header.items():
        start, end = info["data_offsets"]
        raw = data[8 + size + start:8 + size + end]
        if info["dtype"] == "BF16":
            values = (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32)
        else:
            values = np.frombuffer(raw, {"F32": "<f4", "F16": "<f2"}[info["dtype"]]).astype(np.float32)
        yield name, values.reshape(info["shape"])


def load(folder):
    tensors = {}
    for path in sorted(folder.glob("model*.safetensors")):
        for name, values in safetensors(path):
            if ".visual." in name:
                continue
            for prefix in ("model.language_model.", "model."):
                if name.startswith(prefix):
                    name = name[len(prefix):]
                    break
            tensors[name] = values
    return tensors


def stack_experts(tensors):
    """One tensor for each projection of a layer's experts: [experts, out, in]."""
    out, lists = {}, {}
    for name, values in tensors.items():
        one = re.fullmatch(r"(.*\.mlp\.experts)\.(\d+)\.(\w+_proj)\.weight", name)
        if one:
            lists.setdefault(f"{one[1]}.{one[3]}.weight", {})[int(one[2])] = values
        elif name.endswith(".mlp.experts.gate_up_proj"):
            base, half = name.removesuffix("gate_up_proj"), values.shape[1] // 2
            out[base + "gate_proj.weight"] = values[:, :half]
            out[base + "up_proj.weight"] = values[:, half:]
        elif name.endswith(".mlp.experts.down_proj"):
            out[name + ".weight"] = values
        else:
            out[name] = values
    for name, experts in lists.items():
        out[name] = np.stack([experts[i] for i in range(len(experts))])
    return out


def to_tiled(values, axis, keys, heads):
    """Value heads of `axis` from grouped order (by key head) to tiled order."""
    shape = values.shape
    split = shape[:axis] + (keys, heads // keys, shape[axis] // heads) + shape[axis + 1:]
    return values.reshape(split).swapaxes(axis, axis + 1).reshape(shape)


def convert(tensors, config, architecture):
    keys, heads = config["linear_num_key_heads"], config["linear_num_value_heads"]
    key_dim, value_dim = config["linear_key_head_dim"], config["linear_value_head_dim"]
    rows = 2 * keys * key_dim
    for name, values in stack_experts(tensors).items():
        part = name.rpartition("linear_attn.")[2]
        if part == "in_proj_qkvz.weight":
            each = heads // keys * value_dim
            cut = np.split(values.reshape(keys, -1, values.shape[1]), [key_dim, 2 * key_dim, 2 * key_dim + each], axis=1)
            q, k, v, z = (x.reshape(-1, values.shape[1]) for x in cut)
            yield name.replace("qkvz", "qkv"), np.concatenate([q, k, v])
            yield name.replace("qkvz", "z"), z
            continue
        if part == "conv1d.weight":
            values = values.reshape(values.shape[0], -1)
        if architecture != "qwen3next" and keys != heads:
            if part in ("in_proj_qkv.weight", "conv1d.weight"):
                values = np.concatenate([values[:rows], to_tiled(values[rows:], 0, keys, heads)])
            elif part in ("in_proj_z.weight", "in_proj_a.weight", "in_proj_b.weight", "A_log", "dt_bias"):
                values = to_tiled(values, 0, keys, heads)
            elif part == "out_proj.weight":
                values = to_tiled(values, 1, keys, heads)
        if part == "A_log":
            values = -np.exp(values)
        elif "norm" in name and part != "norm.weight" or name in ("norm.weight", "mtp.norm.weight"):
            values = values + np.float32(1)
        elif name.endswith("shared_expert_gate.weight"):
            values = values.reshape(-1)
        yield name, values


def gguf_name(name, layers):
    if name in WHOLE:
        return WHOLE[name]
    if name in DRAFT:
        return f"blk.{layers}.{DRAFT[name]}"
    draft, number, part = re.fullmatch(r"(mtp\.)?layers\.(\d+)\.(.*)", name).groups()
    return f"blk.{int(number) + (layers if draft else 0)}.{LAYER[part]}"


def add_tensor(writer, name, values, kind):
    vector = values.ndim == 1 or "norm" in name or "conv1d" in name or "ffn_gate_inp" in name
    if vector or kind == "F32":
        return writer.add_tensor(name, np.ascontiguousarray(values, dtype=np.float32))
    kind = GGMLQuantizationType[kind]
    if values.shape[-1] % GGML_QUANT_SIZES[kind][0]:
        kind = GGMLQuantizationType.F16
    if kind == GGMLQuantizationType.F16:
        return writer.add_tensor(name, values.astype(np.float16))
    writer.add_tensor(name, quants.quantize(np.ascontiguousarray(values), kind), raw_dtype=kind)


def add_config(writer, config, drafts):
    rope = config.get("rope_parameters") or config
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"] + drafts)
    if drafts:
        writer.add_nextn_predict_layers(drafts)
    if "intermediate_size" in config:
        writer.add_feed_forward_length(config["intermediate_size"])
    if "num_experts" in config:
        writer.add_expert_count(config["num_experts"])
        writer.add_expert_used_count(config["num_experts_per_tok"])
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
        writer.add_expert_shared_feed_forward_length(config["shared_expert_intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_rope_dimension_count(int(config["head_dim"] * rope.get("partial_rotary_factor", 0.25)))
    if "mrope_section" in rope:
        writer.add_rope_dimension_sections((rope["mrope_section"] + [0])[:4])
    writer.add_ssm_conv_kernel(config["linear_conv_kernel_dim"])
    writer.add_ssm_state_size(config["linear_key_head_dim"])
    writer.add_ssm_group_count(config["linear_num_key_heads"])
    writer.add_ssm_time_step_rank(config["linear_num_value_heads"])
    writer.add_ssm_inner_size(config["linear_value_head_dim"] * config["linear_num_value_heads"])
    writer.add_full_attention_interval(config.get("full_attention_interval", 4))


def add_tokenizer(writer, folder, rows):
    path = folder / "tokenizer.json"
    if not path.exists():
        return
    tokenizer = json.loads(path.read_text())
    tokens, types = [f"[PAD{i}]" for i in range(rows)], [TokenType.UNUSED] * rows
    for token, i in tokenizer["model"]["vocab"].items():
        tokens[i], types[i] = token, TokenType.NORMAL
    for token in tokenizer["added_tokens"]:
        i, special = token["id"], token["special"]
        tokens[i], types[i] = token["content"], TokenType.CONTROL if special else TokenType.USER_DEFINED
    marks = r"\p{M}" in json.dumps(tokenizer["pre_tokenizer"]).replace("\\\\", "\\")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen35" if marks else "qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in tokenizer["model"]["merges"]])
    names = json.loads((folder / "tokenizer_config.json").read_text())
    writer.add_eos_token_id(tokens.index(names["eos_token"]))
    writer.add_pad_token_id(tokens.index(names["pad_token"]))
    writer.add_add_bos_token(False)
    writer.add_chat_template((folder / "chat_template.jinja").read_text())


def main():
    source, target, kind = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    config = json.loads((source / "config.json").read_text())
    architecture = ARCHITECTURES[config["model_type"]]
    config = {**config, **config.get("text_config", {})}
    tensors = load(source)
    if config.get("tie_word_embeddings"):
        tensors.pop("lm_head.weight", None)
    layers = config["num_hidden_layers"]
    parts = {"split_max_tensors": int(sys.argv[4])} if len(sys.argv) > 4 else {}
    writer = GGUFWriter(target, architecture, **parts)
    add_config(writer, config, 1 if "mtp.fc.weight" in tensors else 0)
    add_tokenizer(writer, source, config["vocab_size"])
    for name, values in convert(tensors, config, architecture) if kind != "vocab" else ():
        add_tensor(writer, gguf_name(name, layers), values, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


main()
