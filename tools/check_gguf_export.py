#!/usr/bin/env python3
"""Compares a GGUF file that palimpsest wrote with the safetensors folder it came from, tensor by tensor, through PyPI gguf and numpy: what
llama.cpp's converters do to each tensor is done here once more, independently of the C++ code.

usage: V/bin/python tools/check_gguf_export.py FOLDER FILE.gguf     (V: a virtual environment with gguf==0.19.0 and safetensors)

Values must agree to the bit, those of ssm_a (an exponential) to one part in 2^23. Exit code 1 otherwise.
"""

import json
import sys
from pathlib import Path

import gguf
import numpy as np


def read_safetensors(folder):
    tensors = {}
    for file in sorted(folder.glob("model*.safetensors")):
        data = file.read_bytes()
        size = int.from_bytes(data[:8], "little")
        for name, entry in json.loads(data[8 : 8 + size]).items():
            if name == "__metadata__":
                continue
            begin, end = (8 + size + x for x in entry["data_offsets"])
            raw = np.frombuffer(data[begin:end], dtype={"F32": "<f4", "F16": "<f2", "BF16": "<u2", "U8": "u1"}[entry["dtype"]])
            if entry["dtype"] == "BF16":
                raw = (raw.astype(np.uint32) << 16).view(np.float32)
            tensors[name.removeprefix("language_model.").removeprefix("transformer.")] = raw.reshape(entry["shape"])
    return tensors


def mxfp4(codes, scales):
    """compressed-tensors' order: byte b holds columns 2b (low) and 2b + 1."""
    table = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=np.float32)
    values = np.stack([table[codes & 15], table[codes >> 4]], axis=-1).reshape(codes.shape[0], -1)
    return values * np.repeat(np.exp2(scales.astype(np.float32) - 127), 32, axis=1)


def expected(config, hf):
    """GGUF names and values, as the converters of llama.cpp make them."""
    kind = config["model_type"]
    arch = {"llama": "llama", "gpt2": "gpt2", "qwen3_next": "qwen3next", "kimi_linear": "kimi-linear", "kimi_k3": "kimi-linear"}[kind]
    text = config.get("text_config", config)
    layers = text.get("num_hidden_layers", text.get("n_layer"))
    table = gguf.get_tensor_name_map(next(k for k, v in gguf.MODEL_ARCH_NAMES.items() if v == arch), layers)
    out, stacks, parts = {}, {}, {}

    def put(name, value):
        found = table.get_name(name, try_suffixes=(".weight", ".bias"))
        if found is None:
            raise SystemExit(f"gguf knows no {name}")
        out[found] = value

    for name, value in hf.items():
        layer = name.split(".")[2] if name.startswith("model.layers.") else None
        leaf = name.split(".", 3)[3] if layer else name
        if name.endswith("_scale") or (kind == "gpt2" and name.endswith((".attn.bias", ".attn.masked_bias"))):
            continue
        if name.endswith("_packed"):
            name, value = name.removesuffix("_packed"), mxfp4(value, hf[name.removesuffix("_packed") + "_scale"])
        if ".experts." in name:
            prefix, rest = name.split(".experts.")
            number, matrix, _ = rest.split(".")
            matrix = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}.get(matrix, matrix)
            stacks.setdefault(f"model.layers.{layer}.mlp.experts.{matrix}.weight", {})[int(number)] = value
        elif name.endswith(("_res_norm.weight", "_res_proj.weight")):
            gguf_name = {"self": f"blk.{layer}.attn_res_score.weight", "mlp": f"blk.{layer}.ffn_res_score.weight",
                         "output": "output_res_score.weight"}[name.split(".")[-2].split("_")[0]]
            parts.setdefault(gguf_name, []).append(value.reshape(-1))
        elif kind == "gpt2" and name.endswith((".c_attn.weight", ".c_proj.weight", ".c_fc.weight")):
            put(name, value.T)
        elif kind == "llama" and leaf in ("self_attn.q_proj.weight", "self_attn.k_proj.weight"):
            heads = text["num_attention_heads" if "q_proj" in leaf else "num_key_value_heads"]
            put(name, value.reshape(heads, 2, value.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(value.shape))
        elif name.endswith("A_log"):
            heads = text["linear_num_value_heads"] if kind == "qwen3_next" else text["linear_attn_config"]["num_heads"]
            put(name, -np.exp(value.reshape(-1)[:heads].astype(np.float64)))
        elif name.endswith("dt_bias"):
            put(name.replace("dt_bias", "dt_proj.bias"), value)
        elif "in_proj_qkvz" in name:
            k_heads, per = text["linear_num_key_heads"], text["linear_num_value_heads"] // text["linear_num_key_heads"]
            dk, dv = text["linear_key_head_dim"], text["linear_value_head_dim"] * per
            q, k, v, z = np.split(value.reshape(k_heads, 2 * dk + 2 * dv, -1), [dk, 2 * dk, 2 * dk + dv], axis=1)
            flat = [x.reshape(-1, value.shape[1]) for x in (q, k, v, z)]
            out[f"blk.{layer}.attn_qkv.weight"], out[f"blk.{layer}.attn_gate.weight"] = np.concatenate(flat[:3]), flat[3]
        elif kind == "qwen3_next" and name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight"):
            put(name, value + np.float32(1))
        elif name.endswith("kv_b_proj.weight"):
            heads, nope, dv = text["num_attention_heads"], text["qk_nope_head_dim"], text["v_head_dim"]
            k_b, v_b = np.split(value.reshape(heads, nope + dv, -1), [nope], axis=1)
            put(name.replace("kv_b", "k_b"), k_b.swapaxes(1, 2))
            put(name.replace("kv_b", "v_b"), v_b)
        elif kind == "kimi_k3" and leaf == "self_attn.g_proj.weight":
            full = int(layer) + 1 in text["linear_attn_config"]["full_attn_layers"]
            out[f"blk.{layer}.{'attn_gate' if full else 'ssm_g'}.weight"] = value
        elif leaf.startswith("block_sparse_moe.routed_expert_"):
            out[f"blk.{layer}.ffn_routed_{leaf.split('_')[4].split('.')[0]}.weight"] = value
        elif name.endswith("e_score_correction_bias"):
            put(name.replace("correction_bias", "correction.bias"), value)
        else:
            put(name, value)
    for name, stack in stacks.items():
        put(name, np.stack([stack[i] for i in range(len(stack))]))
    for name, (a, b) in parts.items():
        out[name] = a * b
    return out


def main():
    folder, file = Path(sys.argv[1]), Path(sys.argv[2])
    want = expected(json.loads((folder / "config.json").read_text()), read_safetensors(folder))
    have = {t.name: t for t in gguf.GGUFReader(file).tensors}
    extra = set(have) - set(want) - {"rope_freqs.weight"}
    problems = [f"missing: {name}" for name in set(want) - set(have)] + [f"extra: {name}" for name in extra]
    for name in sorted(set(want) & set(have)):
        tensor = have[name]
        got = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float64)
        a, b = np.squeeze(got), np.squeeze(want[name]).astype(np.float64)
        if a.shape != b.shape:
            problems.append(f"{name}: shape {a.shape}, expected {b.shape}")
        elif not np.allclose(a, b, rtol=2.0**-23 if name.endswith("ssm_a") else 0, atol=0):
            problems.append(f"{name}: {np.count_nonzero(a != b)} of {a.size} values differ")
    print(f"{file.name}: {len(have)} tensors, {len(problems)} problems")
    for problem in problems:
        print(" ", problem)
    sys.exit(bool(problems))


main()
