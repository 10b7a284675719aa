#!/usr/bin/env python3
"""Records what PyPI gguf (0.19) makes of GGUF data, as the truth for tests/formats and tests/kernels:

  blocks.safetensors   for every block type "TYPE.blocks" U8 [n, bytes] (random bytes, random bytes with an ordinary scale, edge
                       blocks) and "TYPE.digests" I64 [n]: XXH3 of what its dequantiser makes of each, in F32, NaN as 0x7fc00000
  every_type.gguf      metadata of every type and tensors of several, written by its writer
  split-0000?-of-00003.gguf   three tensors, one a file

usage: record_gguf_blocks.py OUT_FOLDER   (needs: pip install gguf==0.19.0 safetensors xxhash)
"""

import sys
from pathlib import Path

import gguf
import numpy as np
import xxhash
from gguf.quants import dequantize
from safetensors.numpy import save_file

# Where the F16 scales of a block lie; MXFP4 has an E8M0 byte instead.
F16_FIELDS = {
    "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82], "Q3_K": [108],
    "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0], "MXFP4": [],
}
# Least subnormal, largest subnormal, least normal, one, its neighbour, the largest, both zeros, infinities, NaN.
EDGE_SCALES = [0x0001, 0x03FF, 0x0400, 0x3C00, 0xBC01, 0x7BFF, 0xFBFF, 0x0000, 0x8000, 0x7C00, 0xFC00, 0x7E01]


def record_blocks(rng):
    tensors = {}
    for name, fields in F16_FIELDS.items():
        kind = gguf.GGMLQuantizationType[name]
        columns, size = gguf.GGML_QUANT_SIZES[kind]
        wild = rng.integers(0, 256, (8, size), dtype=np.uint8)
        tame = rng.integers(0, 256, (8, size), dtype=np.uint8)
        for field in fields:
            scale = rng.normal(0, 0.05, len(tame)).astype(np.float16)
            tame[:, field:field + 2] = scale.view(np.uint8).reshape(-1, 2)
        edge = [np.full(size, byte, dtype=np.uint8) for byte in (0x00, 0xFF, 0x88, 0x77)]
        for i, scale in enumerate(EDGE_SCALES):
            block = rng.integers(0, 256, size, dtype=np.uint8)
            for field in fields:
                block[field:field + 2] = np.frombuffer(np.uint16(scale).tobytes(), np.uint8)
            if name == "MXFP4":
                block[0] = [0, 1, 2, 3, 126, 127, 128, 252, 253, 254, 255, 100][i]
                block[1:] = [16 * ((j + 8) % 16) + j for j in range(16)]
            edge.append(block)
        blocks = np.concatenate([wild, tame, np.stack(edge)])
        with np.errstate(all="ignore"):
            values = dequantize(blocks, kind).astype(np.float32)
        values[np.isnan(values)] = np.frombuffer(np.uint32(0x7FC00000).tobytes(), np.float32)[0]
        tensors[name + ".blocks"] = blocks
        tensors[name + ".digests"] = np.array([xxhash.xxh3_64_intdigest(row.tobytes()) for row in values], np.uint64).view(np.int64)
    return tensors


def quantized(rng, rows, columns, kind):
    return gguf.quants.quantize(rng.normal(0, 1, (rows, columns)).astype(np.float32), kind)


def write_every_type(path, rng):
    writer = gguf.GGUFWriter(path, "palimpsest-test")
    writer.add_custom_alignment(64)
    writer.add_uint8("u8", 200), writer.add_int8("i8", -100), writer.add_uint16("u16", 60000)
    writer.add_int16("i16", -30000), writer.add_uint32("u32", 4000000000), writer.add_int32("i32", -2000000000)
    writer.add_uint64("u64", 1 << 63), writer.add_int64("i64", -(1 << 62))
    writer.add_float32("f32", 0.5), writer.add_float64("f64", 0.1), writer.add_bool("yes", True), writer.add_bool("no", False)
    writer.add_string("text", "Grüße, 世界")
    writer.add_array("words", ["a", "", "ccc"]), writer.add_array("ints", [1, -2, 3]), writer.add_array("floats", [1.5, -2.5])
    writer.add_array("flags", [True, False])
    writer.add_tensor("f32", np.arange(6, dtype=np.float32).reshape(2, 3))
    writer.add_tensor("f16", np.arange(5, dtype=np.float16))
    writer.add_tensor("cube", np.arange(24, dtype=np.float32).reshape(2, 3, 4))
    for name in ("Q8_0", "Q4_0", "BF16"):
        kind = gguf.GGMLQuantizationType[name]
        writer.add_tensor(name.lower(), quantized(rng, 3, 64, kind), raw_dtype=kind)
    writer.write_header_to_file(), writer.write_kv_data_to_file(), writer.write_tensors_to_file(), writer.close()


def write_split(folder):
    writer = gguf.GGUFWriter(folder / "split.gguf", "palimpsest-test", split_max_tensors=1)
    for i in range(3):
        writer.add_tensor(f"t{i}", np.full((2, 2), i, dtype=np.float32))
    writer.write_header_to_file(), writer.write_kv_data_to_file(), writer.write_tensors_to_file(), writer.close()


def main():
    folder = Path(sys.argv[1])
    rng = np.random.default_rng(19)
    save_file(record_blocks(rng), folder / "blocks.safetensors")
    write_every_type(folder / "every_type.gguf", rng)
    write_split(folder)


if __name__ == "__main__":
    main()
