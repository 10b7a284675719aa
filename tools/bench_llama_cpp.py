#!/usr/bin/env python3
"""Measures how fast llama.cpp and palimpsest read and write with the same GGUF file, in turn, and prints the ratios.

  pip install cyllama==0.2.18        # llama.cpp b9190, compiled for AVX2: nothing to compile here
  tools/bench_llama_cpp.py --binary build/release/bin/palimpsest -m MODEL.gguf [-p 512] [-n 128] [-t 2] [--rounds 5] [--flags FLAGS]

--processor-time compares processor time instead of time, for one thread on a machine that is busy with other things.

A round is one counted repetition of each test in each program, after one that is not counted; rounds alternate, since other work on the
machine comes and goes. Tests are those of llama-bench: ppN reads N tokens in passes of 512 from an empty state, tgN writes N tokens one by
one from an empty state; nothing is sampled. The best of all rounds is compared, and the median of the rounds' ratios.
Exit code 1 when llama.cpp cannot read the file. The wheel has no kernels for AVX-512 and AMX, so --target AVX2 compares like with like.
"""

import argparse
import importlib.metadata
import json
import os
import statistics
import subprocess
import sys
import time

from cyllama.llama import llama_cpp


class Peer:
    """One llama.cpp context, driven as llama-bench does."""

    def __init__(self, path: str, threads: int, context: int, batch: int, clock=time.perf_counter):
        self.clock = clock
        llama_cpp.disable_logging()
        self.model = llama_cpp.LlamaModel(path)
        params = llama_cpp.LlamaContextParams()
        params.n_ctx, params.n_batch, params.n_ubatch = context, batch, batch
        params.n_threads = params.n_threads_batch = threads
        self.context = llama_cpp.LlamaContext(self.model, params)
        self.vocab = self.model.get_vocab().n_vocab

    def seconds(self, tokens: int, rows: int) -> float:
        """`tokens` tokens from an empty state in passes of `rows`."""
        self.context.kv_cache_clear()
        ids = [(i * 7919 + 13) % self.vocab for i in range(tokens)]
        passes = []
        for begin in range(0, tokens, rows):
            end = min(begin + rows, tokens)
            batch = llama_cpp.LlamaBatch(n_tokens=end - begin, embd=0, n_seq_max=1)
            for i in range(begin, end):
                batch.add(ids[i], i, [0], i == end - 1)  # logits of the last row, as `palimpsest bench`
            passes.append(batch)
        start = self.clock()
        for batch in passes:
            self.context.decode(batch)
        self.context.synchronize()
        return self.clock() - start

    def rate(self, tokens: int, rows: int) -> float:
        self.seconds(min(tokens, 4 * rows), rows)
        return tokens / self.seconds(tokens, rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", required=True)
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("-p", "--n-prompt", type=int, default=512)
    parser.add_argument("-n", "--n-gen", type=int, default=128)
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("-ub", "--ubatch-size", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--target", default="", help="instruction set of palimpsest's kernels: AVX3, AVX2 or SCALAR; empty: the best")
    parser.add_argument("--processor-time", action="store_true")
    parser.add_argument("--flags", default="", help="more flags of palimpsest bench, in one word: '--no-mmap'")
    args = parser.parse_args()
    if args.processor_time and args.threads != 1:
        parser.error("--processor-time needs -t 1: threads that wait for each other use it too")
    clock = time.process_time if args.processor_time else time.perf_counter
    try:
        peer = Peer(args.model, args.threads, max(args.n_prompt, args.n_gen) + 64, args.ubatch_size, clock)
    except Exception as error:  # the wheel raises several types
        print(f"llama.cpp does not read {args.model}: {error}", file=sys.stderr)
        return 1

    environment = os.environ | ({"PALIMPSEST_TARGET": args.target} if args.target else {})

    def ours() -> dict:
        command = [args.binary, "bench", "-m", args.model, "-p", str(args.n_prompt), "-n", str(args.n_gen), "-t", str(args.threads),
                   "-ub", str(args.ubatch_size), "-r", "1", "--json", *args.flags.split()]
        rows = json.loads(subprocess.run(command, check=True, capture_output=True, env=environment).stdout)["rows"]
        if args.processor_time:
            return {row["test"]: row["tokens"] / min(row["cpu_seconds"]) for row in rows}
        return {row["test"]: row["tokens_per_second"]["best"] for row in rows}

    tests = {f"pp{args.n_prompt}": (args.n_prompt, args.ubatch_size), f"tg{args.n_gen}": (args.n_gen, 1)}
    tests = {name: shape for name, shape in tests.items() if shape[0] > 0}
    here, there = {name: [] for name in tests}, {name: [] for name in tests}
    for number in range(args.rounds):
        measured = ours()
        for name, (tokens, rows) in tests.items():
            here[name].append(measured[name])
            there[name].append(peer.rate(tokens, rows))
            print(f"round {number + 1} {name}: {here[name][-1]:.1f} here, {there[name][-1]:.1f} in llama.cpp", file=sys.stderr)
    print(f"{args.model}, {args.threads} threads, best of {args.rounds} rounds{', processor time' if args.processor_time else ''}, cyllama {importlib.metadata.version('cyllama')}")
    print("test      palimpsest   llama.cpp   ratio   median ratio   (tokens a second)")
    for name in tests:
        median = statistics.median(a / b for a, b in zip(here[name], there[name]))
        best = max(here[name]), max(there[name])
        print(f"{name:<9} {best[0]:>10.1f}  {best[1]:>10.1f}  {best[0] / best[1]:>6.2f}  {median:>13.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
