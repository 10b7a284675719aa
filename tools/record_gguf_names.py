#!/usr/bin/env python3
"""Writes tests/data/gguf/tensor_names.txt: what PyPI gguf calls the tensors of Hugging Face checkpoints.

usage: python -m venv V && V/bin/pip install gguf==0.19.0 && V/bin/python tools/record_gguf_names.py > tests/data/gguf/tensor_names.txt

Lines "architecture hugging-face-name gguf-name". The second is a published name of layer 5; names that gguf's table does not hold itself, but
llama.cpp's converters write, are looked up under the name that the converter gives them first (RENAMED). Architectures that this version of
gguf does not know are left out.
"""

import gguf

LAYER = "model.layers.5."
COMMON = ["model.embed_tokens.weight", "model.norm.weight", "lm_head.weight", LAYER + "input_layernorm.weight", LAYER + "post_attention_layernorm.weight"]
ATTENTION = [LAYER + f"self_attn.{x}_proj.weight" for x in "qkvo"]
MLP = [LAYER + f"mlp.{x}_proj.weight" for x in ("gate", "up", "down")]

NAMES = {
    "llama": COMMON + ATTENTION + MLP,
    "gpt2": ["wte.weight", "wpe.weight", "ln_f.weight", "ln_f.bias"]
    + [f"h.5.{x}.{y}" for x in ("ln_1", "ln_2", "attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj") for y in ("weight", "bias")],
    "qwen3next": COMMON + ATTENTION
    + [LAYER + f"self_attn.{x}_norm.weight" for x in "qk"]
    + [LAYER + f"linear_attn.{x}" for x in ("in_proj_ba.weight", "conv1d.weight", "A_log", "dt_bias", "norm.weight", "out_proj.weight")]
    + [LAYER + f"mlp.{x}.weight" for x in ("gate", "shared_expert_gate")]
    + [LAYER + f"mlp.shared_expert.{x}_proj.weight" for x in ("gate", "up", "down")]
    + [LAYER + f"mlp.experts.{x}_proj.weight" for x in ("gate", "up", "down")],
    "kimi-linear": COMMON + ATTENTION + MLP
    + [LAYER + f"self_attn.{x}" for x in
       ("q_conv1d.weight", "k_conv1d.weight", "v_conv1d.weight", "A_log", "dt_bias", "f_a_proj.weight", "f_b_proj.weight", "b_proj.weight",
        "g_a_proj.weight", "g_b_proj.weight", "o_norm.weight", "q_a_proj.weight", "q_a_layernorm.weight", "q_b_proj.weight",
        "kv_a_proj_with_mqa.weight", "kv_a_layernorm.weight", "kv_b_proj.weight", "k_b_proj.weight", "v_b_proj.weight")]
    + [LAYER + f"block_sparse_moe.{x}" for x in
       ("gate.weight", "gate.e_score_correction_bias", "shared_experts.gate_proj.weight", "shared_experts.up_proj.weight",
        "shared_experts.down_proj.weight")]
    + [LAYER + f"block_sparse_moe.experts.{x}.weight" for x in ("w1", "w3", "w2")],
}

# What the converters' modify_tensors does before it asks the table.
RENAMED = {
    ".dt_bias": ".dt_proj.bias",
    "block_sparse_moe.experts.w1": "mlp.experts.gate_proj",
    "block_sparse_moe.experts.w2": "mlp.experts.down_proj",
    "block_sparse_moe.experts.w3": "mlp.experts.up_proj",
    "gate.e_score_correction_bias": "gate.e_score_correction.bias",
}


def main():
    for architecture, names in NAMES.items():
        arch = next(key for key, value in gguf.MODEL_ARCH_NAMES.items() if value == architecture)
        table = gguf.get_tensor_name_map(arch, 8)
        for name in names:
            asked = name
            for old, new in RENAMED.items():
                asked = asked.replace(old, new)
            found = table.get_name(asked, try_suffixes=(".weight", ".bias"))
            if found is None:
                raise SystemExit(f"{architecture}: gguf knows no {asked}")
            print(architecture, name, found)


main()
