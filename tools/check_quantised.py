#!/usr/bin/env python3
"""Checks what `palimpsest convert` quantises against the formats as docs/formats.md writes them down, in numpy. Needs `pip install numpy`.

usage: check_quantised.py PALIMPSEST FOLDER

Converts the model in FOLDER, whose matrices are BF16, F16 or F32, to q8 and to mxfp4 and reads the files without the program: every code must be
the nearest one under its scale (ties as documented), every q8 scale the largest magnitude / 127 in BF16, every mxfp4 scale one of the two
documented powers of two and the better one, every other tensor unchanged. This is not PyPI's compressed-tensors, which has not read these files:
only its documented packing is checked. Exit code 1 when something differs.
"""

import json
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
GROUP = 32


def to_bf16(values):
    """Bits of the nearest BF16, ties to even."""
    bits = np.asarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def read_folder(folder):
    """name -> (dtype, array of the stored bits or numbers)"""
    kinds = {"BF16": np.uint16, "F16": np.float16, "F32": np.float32, "I8": np.int8, "U8": np.uint8}
    tensors = {}
    for path in sorted(folder.glob("*.safetensors")):
        data = path.read_bytes()
        size = struct.unpack("<Q", data[:8])[0]
        for name, entry in json.loads(data[8 : 8 + size]).items():
            if name == "__metadata__":
                continue
            begin, end = (8 + size + offset for offset in entry["data_offsets"])
            tensors[name] = (entry["dtype"], np.frombuffer(data[begin:end], kinds[entry["dtype"]]).reshape(entry["shape"]))
    return tensors


def numbers(tensor):
    dtype, values = tensor
    return (from_bf16(values) if dtype == "BF16" else values).astype(np.float64)


def nearest_e2m1(values):
    """Index of the nearest magnitude; between two, the even one."""
    distance = np.abs(np.abs(values)[..., None] - E2M1)
    best = distance.min(-1, keepdims=True)
    order = np.array([0, 2, 4, 6, 1, 3, 5, 7])  # even codes first
    return order[np.argmax((distance == best)[..., order], -1)]


def q8_problems(old, codes, scales):
    groups = old.reshape(len(old), -1, GROUP)
    want = to_bf16((np.abs(groups).max(-1).astype(np.float32) / np.float32(127)))
    if not np.array_equal(scales, want):
        return f"{int((scales != want).sum())} scales differ"
    step = from_bf16(scales).astype(np.float64)[..., None]
    exact = np.divide(groups, step, out=np.zeros_like(groups), where=step != 0)
    far = np.abs(codes.reshape(groups.shape) - np.clip(exact, -127, 127)) > 0.5 + 1e-6  # the program divides in F32
    return f"{int(far.sum())} codes are not the nearest" if far.any() else ""


def mxfp4_problems(old, packed, scales):
    groups = old.reshape(len(old), -1, GROUP)
    codes = np.stack([packed & 15, packed >> 4], -1).reshape(groups.shape)
    magnitude = np.abs(groups).max(-1)
    exponent = np.floor(np.log2(np.where(magnitude > 0, magnitude, 1)))
    errors = []
    for shift in (2, 1):
        scale = np.exp2(exponent - shift)[..., None]
        index = nearest_e2m1(groups / scale)
        errors.append(((np.abs(groups) - E2M1[index] * scale) ** 2).sum(-1))
    scale = np.exp2(scales.astype(np.float64) - 127)[..., None]
    written = np.where(codes & 8, -1, 1) * E2M1[codes & 7] * scale
    got = ((groups - written) ** 2).sum(-1)
    worse = (got > np.minimum(*errors) * (1 + 1e-5)) & (magnitude > 0)
    if worse.any():
        return f"{int(worse.sum())} groups of {worse.size} could be nearer"
    odd = (codes & 7) != nearest_e2m1(groups / scale)
    return f"{int(odd.sum())} codes differ" if odd.any() else ""


def check(old, folder):
    new = read_folder(folder)
    count, problems, copied = 0, [], 0
    for name, tensor in old.items():
        if name in new and new[name][0] == tensor[0]:
            copied += 1
            found = "" if np.array_equal(new[name][1], tensor[1]) else "changed"
        elif name in new and new[name][0] == "I8":
            found, count = q8_problems(numbers(tensor), new[name][1], new[name + "_scale"][1]), count + 1
        elif name + "_packed" in new:
            found, count = mxfp4_problems(numbers(tensor), new[name + "_packed"][1], new[name + "_scale"][1]), count + 1
        else:
            found = "missing"
        if found:
            problems.append(f"{name}: {found}")
    print(f"{folder.name}: {count} matrices quantised, {copied} tensors copied, {len(problems)} problems")
    for problem in problems:
        print(" ", problem)
    return count > 0 and not problems


def main():
    program, model = sys.argv[1:]
    old = read_folder(Path(model))
    good = True
    with tempfile.TemporaryDirectory() as folder:
        for form in ("q8", "mxfp4"):
            out = Path(folder) / form
            subprocess.run([program, "convert", "-m", model, "-o", out, "--weights", form], check=True, stdout=subprocess.DEVNULL)
            good = check(old, out) and good
    sys.exit(not good)


main()
