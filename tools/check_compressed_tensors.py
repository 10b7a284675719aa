#!/usr/bin/env python3
"""Checks that PyPI's compressed-tensors reads what `palimpsest convert` quantised, and reads the same numbers. Needs `pip install compressed-tensors`.

usage: check_compressed_tensors.py PALIMPSEST FOLDER

Converts the model in FOLDER to q8 and to mxfp4. Their configuration class has to take the quantization_config, its targets and its list of what
is left alone have to tell the quantised matrices from the dense ones, and their decompressor has to give, for every quantised matrix, the numbers of
docs/formats.md to the bit (of q8 rounded to BF16, the type they decompress to). Exit code 1 otherwise.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import compressed_tensors
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationConfig
from compressed_tensors.utils.match import match_name
from safetensors.torch import load_file

E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def spread(scales):
    """One number for 32 columns as one for each."""
    return scales.repeat_interleave(32, dim=1)


def own_decoding(weights):
    """docs/formats.md, in F32."""
    if "weight_packed" in weights:
        codes = weights["weight_packed"].to(torch.int64)
        values = torch.stack([E2M1[codes & 15], E2M1[codes >> 4]], dim=-1).flatten(1)
        return values * spread(torch.exp2(weights["weight_scale"].to(torch.float32) - 127))
    return weights["weight"].to(torch.float32) * spread(weights["weight_scale"].to(torch.float32))


def modules_of(folder):
    """Quantised matrices by the name of their module, and the names of dense ones."""
    tensors = {name: value for file in sorted(folder.glob("*.safetensors")) for name, value in load_file(file).items()}
    quantised, dense = {}, []
    for name, scale in tensors.items():
        if name.endswith("weight_scale"):
            module = name.removesuffix(".weight_scale")
            quantised[module] = {leaf: tensors[f"{module}.{leaf}"] for leaf in ("weight", "weight_packed", "weight_scale") if f"{module}.{leaf}" in tensors}
    for name, value in tensors.items():
        module = name.removesuffix(".weight")
        if name.endswith(".weight") and value.dim() == 2 and module not in quantised:
            dense.append(module)
    return quantised, dense


def check(folder):
    config = json.loads((folder / "config.json").read_text())
    text = config.get("text_config", config)
    quantization = QuantizationConfig.model_validate(text.get("quantization_config", config.get("quantization_config")))
    quantised, dense = modules_of(folder)
    problems = [f"{name}: dense, but not in the list of what is left alone" for name in dense if not any(match_name(name, p) for p in quantization.ignore)]
    for name, weights in quantised.items():
        if any(match_name(name, p) for p in quantization.ignore):
            problems.append(f"{name}: quantised, but in the list of what is left alone")
        bits = 4 if "weight_packed" in weights else 8
        groups = [g for g in quantization.config_groups.values() if g.weights.num_bits == bits]
        if len(groups) != 1:
            problems.append(f"{name}: {len(groups)} groups of {bits} bits")
            continue
        if groups[0].targets != ["Linear"] and not any(match_name(name, p) for p in groups[0].targets):
            problems.append(f"{name}: no target of its group matches")
        compressor = BaseCompressor.get_value_from_registry(groups[0].format)
        theirs = compressor.decompress(weights, groups[0])["weight"]
        ours = own_decoding(weights)
        if not torch.equal(theirs.to(torch.float32), ours.to(theirs.dtype).to(torch.float32)):
            problems.append(f"{name}: {int((theirs.float() != ours.to(theirs.dtype).float()).sum())} of {ours.numel()} numbers differ")
    print(f"{folder.name}: {len(quantised)} quantised and {len(dense)} dense matrices, {len(problems)} problems")
    for problem in problems:
        print(" ", problem)
    return not problems and bool(quantised)


def main():
    program, model = sys.argv[1:]
    print(f"compressed-tensors {compressed_tensors.__version__}")
    good = True
    with tempfile.TemporaryDirectory() as folder:
        for form in ("q8", "mxfp4"):
            out = Path(folder) / form
            subprocess.run([program, "convert", "-m", model, "-o", out, "--weights", form], check=True, stdout=subprocess.DEVNULL)
            good = check(out) and good
    sys.exit(not good)


main()
