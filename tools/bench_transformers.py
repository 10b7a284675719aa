"""Measures a Kimi-Linear shape under transformers, for docs/benchmarks.md: random BF16 weights made on the GPU, one sequence.

Needs torch and transformers >= 5.17; flash-linear-attention's kernels are used where they are installed.

    python3 tools/bench_transformers.py bench/shapes/kimi-linear-48b --prompt 8192 --context 4096 --tokens 32
"""

import argparse
import json
import pathlib
import time

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM


def build(folder, layers):
    described = json.loads((pathlib.Path(folder) / "config.json").read_text())
    described.pop("architectures")
    described.pop("quantization_config", None)
    if layers:
        described["num_hidden_layers"] = layers
        kinds = described["linear_attn_config"]
        for name in ("full_attn_layers", "kda_layers"):
            kinds[name] = [layer for layer in kinds[name] if layer <= layers]
    config = AutoConfig.for_model(**described)
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    return model.eval()


def timed(work):
    torch.cuda.synchronize()
    start = time.perf_counter()
    result = work()
    torch.cuda.synchronize()
    return time.perf_counter() - start, result


def ids(count, vocab):
    return (torch.arange(count, device="cuda") * 7919 + 13).remainder(vocab)[None]


def read(model, tokens):
    return model(tokens, use_cache=True, logits_to_keep=1)


def write(model, cache, token, count):
    for _ in range(count):
        out = model(token, past_key_values=cache, use_cache=True)
        token = out.logits[:, -1].argmax(-1, keepdim=True)
    return token


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("folder", help="folder with a config.json")
    arguments.add_argument("--layers", type=int, default=0, help="first layers only")
    arguments.add_argument("--prompt", type=int, nargs="*", default=[8192])
    arguments.add_argument("--context", type=int, default=4096, help="tokens before the ones that are written")
    arguments.add_argument("--tokens", type=int, default=32)
    arguments.add_argument("--repetitions", type=int, default=3)
    options = arguments.parse_args()
    try:
        import fla
        kernels = f"flash-linear-attention {fla.__version__}"
    except ImportError:
        kernels = "no kernels beside torch's"
    print(f"transformers {transformers.__version__}, torch {torch.__version__}, {kernels}, {torch.cuda.get_device_name()}")
    with torch.inference_mode():
        seconds, model = timed(lambda: build(options.folder, options.layers))
        vocab = model.config.vocab_size
        print(f"{sum(p.numel() for p in model.parameters()) / 1e9:.2f} G parameters, made in {seconds:.1f} s", flush=True)
        for length in options.prompt:
            tokens = ids(length, vocab)
            if not read(model, tokens).logits.isfinite().all():
                raise SystemExit("logits are not finite: the routing, and so the time, would mean nothing")
            best = min(timed(lambda: read(model, tokens))[0] for _ in range(options.repetitions))
            print(f"prompt of {length}: {length / best:.0f} tokens/s, {best * 1e3:.1f} ms", flush=True)
        cache = read(model, ids(options.context, vocab)).past_key_values
        token = ids(1, vocab)
        token = write(model, cache, token, 4)
        best = min(timed(lambda: write(model, cache, token, options.tokens))[0] for _ in range(options.repetitions))
        print(f"one token after another behind {options.context}: {options.tokens / best:.1f} tokens/s, {best / options.tokens * 1e3:.2f} ms")


if __name__ == "__main__":
    main()
