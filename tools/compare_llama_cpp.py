#!/usr/bin/env python3
"""Compares the ids and the perplexity of a GGUF model with those of llama.cpp on the same file and windows.

  pip install llama-cpp-python==0.3.36 numpy
  tools/compare_llama_cpp.py --binary build/release/bin/palimpsest -m MODEL.gguf -f TEXT [--tokens 50000] [--ctx 512]

Windows of --ctx ids without overlap, each from an empty state, its first id not scored: what `palimpsest eval` measures.
Exit code 1 if the ids differ or the perplexities are more than 0.5% apart.
"""

import argparse
import json
import math
import subprocess
import sys

import llama_cpp
import numpy as np


def nll_of_window(model: llama_cpp.Llama, ids: list[int]) -> float:
    model.reset()
    model.eval(ids)
    logits = model.scores[: len(ids) - 1].astype(np.float64)
    top = logits.max(axis=1)
    log_sum = top + np.log(np.exp(logits - top[:, None]).sum(axis=1))
    return float((log_sum - logits[np.arange(len(ids) - 1), ids[1:]]).sum())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", required=True)
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("-f", "--file", required=True)
    parser.add_argument("--tokens", type=int, default=50000)
    parser.add_argument("--ctx", type=int, default=512)
    args = parser.parse_args()

    def ours(*command: str) -> dict:
        return json.loads(subprocess.run([args.binary, *command, "-m", args.model, "-f", args.file, "--json"], check=True, capture_output=True).stdout)

    model = llama_cpp.Llama(args.model, n_ctx=args.ctx, n_batch=args.ctx, logits_all=True, verbose=False)
    with open(args.file, "rb") as text:
        theirs = model.tokenize(text.read(), add_bos=False, special=False)
    ids = ours("tokenize")["ids"]
    differing = sum(a != b for a, b in zip(ids, theirs)) + abs(len(ids) - len(theirs))
    print(f"ids: {len(ids)} here, {len(theirs)} in llama.cpp, {differing} places differ")

    scored = theirs[: args.tokens]
    nll, count = 0.0, 0
    for begin in range(0, len(scored), args.ctx):
        window = scored[begin : begin + args.ctx]
        nll += nll_of_window(model, window) if len(window) > 1 else 0.0
        count += len(window) - 1
        if sys.stderr.isatty():
            print(f"\r{begin + len(window)} of {len(scored)} tokens", end="", file=sys.stderr)
    reference = math.exp(nll / count)
    measured = ours("eval", "--tokens", str(args.tokens), "--ctx", str(args.ctx))
    print(f"perplexity: {measured['perplexity']:.4f} here, {reference:.4f} in llama.cpp {llama_cpp.__version__}, "
          f"{100 * (measured['perplexity'] / reference - 1):+.3f}% over {count} scored tokens")
    return int(differing != 0 or abs(measured["perplexity"] / reference - 1) > 0.005)


if __name__ == "__main__":
    sys.exit(main())
