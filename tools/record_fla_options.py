#!/usr/bin/env python3
"""Records small models of the four flash-linear-attention families with the options that no published fixture has: the truth of
tests/model/fla_options_test.cc.

    python3 -m venv VENV && VENV/bin/pip install numpy safetensors
    VENV/bin/python tools/record_fla_options.py

The layers are stated here once more, token by token and in float64, after the layers of flash-linear-attention 0.5.2 (whose kernels need a
GPU). Each case becomes a folder of tests/golden/fla_options: config.json, model.safetensors (F16) and golden.safetensors with input_ids, logits
and `error`, the largest difference between the float64 logits and those of the same code in float32.
"""

import json
import pathlib

import numpy as np
from safetensors.numpy import save_file

OUT = pathlib.Path(__file__).parent.parent / "tests/golden/fla_options"
HIDDEN, VOCAB, INTER, LAYERS, TOKENS = 8, 12, 8, 2, 37

COMMON = {"hidden_size": HIDDEN, "vocab_size": VOCAB, "intermediate_size": INTER, "num_hidden_layers": LAYERS, "hidden_act": "swish",
          "norm_eps": 1e-6, "max_position_embeddings": 256, "tie_word_embeddings": False, "attn": None, "attnres_block_size": None}

CASES = {
    "linear_normalized": {"model_type": "linear_attn", "num_heads": 2, "feature_map": "elu", "norm_feature_map": True, "expand_v": 0.5},
    "linear_t2r_sums": {"model_type": "linear_attn", "num_heads": 2, "feature_map": "t2r", "norm_q": True, "norm_k": True},
    "linear_hedgehog": {"model_type": "linear_attn", "num_heads": 2, "feature_map": "hedgehog", "norm_feature_map": True,
                        "elementwise_affine": False},
    "linear_dpfp": {"model_type": "linear_attn", "num_heads": 2, "feature_map": "dpfp", "norm_k": True, "expand_v": 2},
    "linear_grouped": {"model_type": "linear_attn", "num_heads": 4, "num_kv_heads": 2, "feature_map": "relu", "expand_k": 1.5},
    "delta_elu_sum": {"model_type": "delta_net", "num_heads": 2, "qk_activation": "elu", "qk_norm": "sum"},
    "delta_relu_no_conv": {"model_type": "delta_net", "num_heads": 2, "qk_activation": "relu", "use_short_conv": False, "use_gate": True,
                           "expand_k": 2, "expand_v": 0.5},
    "delta_identity_negative": {"model_type": "delta_net", "num_heads": 2, "qk_activation": "identity", "allow_neg_eigval": True, "use_gate": True},
    "delta_no_beta": {"model_type": "delta_net", "num_heads": 2, "use_beta": False, "conv_size": 2},
    "gated_grouped": {"model_type": "gated_deltanet", "num_heads": 2, "num_v_heads": 4, "head_dim": 4, "expand_v": 2, "allow_neg_eigval": True},
    "gated_plain": {"model_type": "gated_deltanet", "num_heads": 2, "head_dim": 6, "expand_v": 0.5, "use_gate": False, "use_short_conv": False},
    "kda_grouped": {"model_type": "kda", "num_heads": 2, "num_v_heads": 4, "head_dim": 4, "expand_v": 2, "allow_neg_eigval": True},
    "kda_safe_no_conv": {"model_type": "kda", "num_heads": 2, "head_dim": 6, "expand_v": 0.5, "use_short_conv": False, "safe_gate": True,
                         "lower_bound": -5.0},
}

sigmoid = lambda x: 1 / (1 + np.exp(-x))
silu = lambda x: x * sigmoid(x)
softplus = lambda x: np.log1p(np.exp(x))
relu = lambda x: np.maximum(x, 0)
elu_plus_one = lambda x: np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)))
ACTIVATIONS = {"silu": silu, "relu": relu, "elu": elu_plus_one, "identity": lambda x: x}


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


class Weights:
    """Draws each tensor at its first use, from the F16 grid, and hands it out in the type of the run."""

    def __init__(self, seed):
        self.rng, self.stored, self.dtype = np.random.default_rng(seed), {}, np.float64

    def __call__(self, name, *shape, mean=0.0, spread=None):
        if name not in self.stored:
            spread = spread if spread is not None else 1.3 / np.sqrt(shape[-1])
            self.stored[name] = (mean + spread * self.rng.standard_normal(shape)).astype(np.float16)
        assert self.stored[name].shape == shape, (name, shape)
        return self.stored[name].astype(self.dtype)


class Layer:
    def __init__(self, weights, config, index):
        self.w, self.c, self.stem = weights, config, f"model.layers.{index}."

    def weight(self, name, *shape, **draw):
        return self.w(self.stem + name, *shape, **draw)

    def linear(self, name, x, out):
        return x @ self.weight(name + ".weight", out, x.shape[-1]).T

    def rms_norm(self, name, x, affine=True):
        y = x / np.sqrt((x * x).mean(-1, keepdims=True) + self.w.dtype(self.c["norm_eps"]))
        return y * self.weight(name + ".weight", x.shape[-1], mean=1.0, spread=0.2) if affine else y

    def convolved(self, name, x, activate):
        """Causal depthwise convolution over time; the last tap meets the current token."""
        taps = self.c.get("conv_size", 4)
        w = self.weight(name + ".weight", x.shape[1], 1, taps, spread=0.6)[:, 0]
        past = np.concatenate([np.zeros((taps - 1, x.shape[1]), x.dtype), x])
        y = sum(past[i:i + len(x)] * w[:, i] for i in range(taps))
        return silu(y) if activate else y

    def recurrence(self, q, k, v, g=None, beta=None, delta=True):
        """q, k [T, H, K], v [T, HV, V], g broadcastable to [T, HV, K], beta [T, HV]; value head j reads q and k of head j // (HV / H)."""
        share = v.shape[1] // q.shape[1]
        q, k = (np.repeat(x, share, axis=1) for x in (q, k))
        q = q * self.w.dtype(q.shape[-1] ** -0.5)
        S = np.zeros((v.shape[1], k.shape[2], v.shape[2]), self.w.dtype)
        out = np.empty_like(v)
        for t in range(len(v)):
            if g is not None:
                S = S * np.exp(g[t])[..., None]
            e = v[t] - np.einsum("hkv,hk->hv", S, k[t]) if delta else v[t]
            if beta is not None:
                e = e * beta[t][:, None]
            S = S + np.einsum("hk,hv->hkv", k[t], e)
            out[t] = np.einsum("hkv,hk->hv", S, q[t])
        return out

    def heads(self, x, width):
        return x.reshape(len(x), -1, width)


class LinearAttention(Layer):
    def feature_map(self, side, x):
        kind, n = self.c["feature_map"], x.shape[-1]
        name = f"attn.feature_map_{side}.layer"
        if kind == "t2r":
            return relu(self.linear(name, x, n))
        if kind == "hedgehog":
            y = 2 * (self.linear(name, x, n) + self.weight(name + ".bias", n, spread=0.3))
            return softmax(np.concatenate([y, -y], -1))
        if kind == "dpfp":
            r = np.concatenate([relu(x), relu(-x)], -1)
            return np.concatenate([r * np.roll(r, j, -1) for j in (1, 2, 3, 4)], -1)
        return ACTIVATIONS[kind](x)

    def mix(self, x):
        c, H = self.c, self.c["num_heads"]
        keys, values = int(HIDDEN * c.get("expand_k", 1)), int(HIDDEN * c.get("expand_v", 1))
        share = H // (c.get("num_kv_heads") or H)
        q = self.heads(self.linear("attn.q_proj", x, keys), keys // H)
        k = np.repeat(self.heads(self.linear("attn.k_proj", x, keys // share), keys // H), share, axis=1)
        v = np.repeat(self.heads(self.linear("attn.v_proj", x, values // share), values // H), share, axis=1)
        q, k = self.feature_map("q", q), self.feature_map("k", k)
        if c.get("norm_q"):
            q = q / (q.sum(-1, keepdims=True) + self.w.dtype(1e-4))
        if c.get("norm_k"):
            k = k / (k.sum(-1, keepdims=True) + self.w.dtype(1e-4))
        o = self.recurrence(q, k, v, delta=False)
        if c.get("norm_feature_map"):
            z = np.cumsum(k, axis=0)
            o = o / ((q * self.w.dtype(q.shape[-1] ** -0.5) * z).sum(-1, keepdims=True) + self.w.dtype(1e-10))
        o = self.rms_norm("attn.norm", o, c.get("elementwise_affine", True))
        return self.linear("attn.o_proj", o.reshape(len(x), values), HIDDEN)


class DeltaLayer(Layer):
    def qkv(self, x, keys, values, activation="silu"):
        def one(name, width, act):
            y = self.linear(f"attn.{name}_proj", x, width)
            if self.c.get("use_short_conv", True):
                y = self.convolved(f"attn.{name}_conv1d", y, act == "silu")
                return y if act == "silu" else ACTIVATIONS[act](y)
            return ACTIVATIONS[act](y)
        return one("q", keys, activation), one("k", keys, activation), one("v", values, "silu")

    def l2(self, x):
        return x / np.sqrt((x * x).sum(-1, keepdims=True) + self.w.dtype(1e-6))

    def beta(self, x, heads):
        return sigmoid(self.linear("attn.b_proj", x, heads)) * self.w.dtype(2 if self.c.get("allow_neg_eigval") else 1)

    def gated_output(self, x, o, use_gate):
        width = o.shape[1] * o.shape[2]
        y = self.rms_norm("attn.o_norm", o)
        if use_gate:
            y = y * silu(self.linear("attn.g_proj", x, width)).reshape(o.shape)
        return self.linear("attn.o_proj", y.reshape(len(x), width), HIDDEN)


class DeltaNet(DeltaLayer):
    def mix(self, x):
        c, H = self.c, self.c["num_heads"]
        keys, values = int(HIDDEN * c.get("expand_k", 1)), int(HIDDEN * c.get("expand_v", 1))
        q, k, v = self.qkv(x, keys, values, c.get("qk_activation", "silu"))
        q, k, v = self.heads(q, keys // H), self.heads(k, keys // H), self.heads(v, values // H)
        norm = (lambda t: t / t.sum(-1, keepdims=True)) if c.get("qk_norm", "l2") == "sum" else self.l2
        beta = self.beta(x, H) if c.get("use_beta", True) else None
        return self.gated_output(x, self.recurrence(norm(q), norm(k), v, beta=beta), c.get("use_gate", False))


class GatedDeltaNet(DeltaLayer):
    def mix(self, x):
        c, H, K = self.c, self.c["num_heads"], self.c["head_dim"]
        HV, V = c.get("num_v_heads") or H, int(K * c.get("expand_v", 2))
        q, k, v = self.qkv(x, H * K, HV * V)
        A_log = self.weight("attn.A_log", HV, mean=0.3, spread=0.5)
        dt_bias = self.weight("attn.dt_bias", HV, mean=-2.0, spread=0.7)
        g = -np.exp(A_log) * softplus(self.linear("attn.a_proj", x, HV) + dt_bias)
        o = self.recurrence(self.l2(self.heads(q, K)), self.l2(self.heads(k, K)), self.heads(v, V), g[..., None], self.beta(x, HV))
        return self.gated_output(x, o, c.get("use_gate", True))


class Kda(DeltaLayer):
    def mix(self, x):
        c, H, K = self.c, self.c["num_heads"], self.c["head_dim"]
        HV, V = c.get("num_v_heads") or H, int(K * c.get("expand_v", 1))
        q, k, v = self.qkv(x, H * K, HV * V)
        f = self.linear("attn.f_proj.1", self.linear("attn.f_proj.0", x, V), HV * K)
        z = self.heads(f + self.weight("attn.dt_bias", HV * K, mean=-2.0, spread=0.7), K)
        A = np.exp(self.weight("attn.A_log", HV, mean=0.3, spread=0.5))[:, None]
        g = self.w.dtype(c["lower_bound"]) * sigmoid(A * z) if c.get("safe_gate") else -A * softplus(z)
        o = self.recurrence(self.l2(self.heads(q, K)), self.l2(self.heads(k, K)), self.heads(v, V), g, self.beta(x, HV))
        gate = self.linear("attn.g_proj.1", self.linear("attn.g_proj.0", x, V), HV * V) + self.weight("attn.g_proj.1.bias", HV * V, spread=0.3)
        y = self.rms_norm("attn.o_norm", o) * sigmoid(gate).reshape(o.shape)
        return self.linear("attn.o_proj", y.reshape(len(x), HV * V), HIDDEN)


LAYER = {"linear_attn": LinearAttention, "delta_net": DeltaNet, "gated_deltanet": GatedDeltaNet, "kda": Kda}


def logits(weights, config, ids):
    h = weights("model.embeddings.weight", VOCAB, HIDDEN, spread=1.0)[ids]
    for index in range(LAYERS):
        layer = LAYER[config["model_type"]](weights, config, index)
        h = h + layer.mix(layer.rms_norm("attn_norm", h))
        x = layer.rms_norm("mlp_norm", h)
        h = h + layer.linear("mlp.down_proj", silu(layer.linear("mlp.gate_proj", x, INTER)) * layer.linear("mlp.up_proj", x, INTER), HIDDEN)
    h = h / np.sqrt((h * h).mean(-1, keepdims=True) + weights.dtype(config["norm_eps"])) * weights("model.norm.weight", HIDDEN, mean=1.0, spread=0.2)
    return h @ weights("lm_head.weight", VOCAB, HIDDEN).T


def main():
    for number, (name, options) in enumerate(CASES.items()):
        config, weights = COMMON | options, Weights(100 + number)
        ids = np.random.default_rng(number).integers(0, VOCAB, TOKENS)
        exact = logits(weights, config, ids)
        weights.dtype = np.float32
        error = np.abs(logits(weights, config, ids) - exact).max()
        folder = OUT / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
        save_file(weights.stored, folder / "model.safetensors")
        save_file({"input_ids": ids[None], "logits": exact.astype(np.float32), "error": np.float32([error])}, folder / "golden.safetensors")
        print(f"{name:24} largest {np.abs(exact).max():7.3f}   float32 off by {error:.1e}")


if __name__ == "__main__":
    main()
