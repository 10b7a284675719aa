#!/usr/bin/env python3
"""Records how PyPI tokenizers, tiktoken and sentencepiece encode 1 MB each of English, code, Chinese and random Unicode:
the truth of tests/text/tokenizer_samples_test.cc.

    python3 -m venv VENV && VENV/bin/pip install tokenizers==0.23.3 tiktoken==0.14.0 sentencepiece==0.2.1 protobuf gguf==0.19.0
    VENV/bin/python tools/record_tokenizer_samples.py SHARED [--compare build/release/bin/palimpsest]

SHARED is the folder of shared data: vocabularies in tokenizer/, English and code from text/ and api/; Chinese and random Unicode are
generated, from the same numbers as in the test. Writes tests/data/tokenizer_samples.json: for each tokenizer and text the number of ids and
their FNV-1a digest. With --compare, palimpsest encodes the same texts and the first difference is shown.
"""

import argparse
import json
import pathlib
import subprocess
import tempfile

import gguf
import tiktoken
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors

ROOT = pathlib.Path(__file__).parent.parent
SIZE = 1_000_000

SUFFIX = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
SPACES = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
KIMI_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
KIMI_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
KIMI = (rf"[\p{{Han}}]+|[^\r\n\p{{L}}\p{{N}}]?{KIMI_UPPER}*{KIMI_LOWER}+{SUFFIX}?|[^\r\n\p{{L}}\p{{N}}]?{KIMI_UPPER}+{KIMI_LOWER}*{SUFFIX}?"
        r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*" + SPACES)


def split(pattern, behavior="Isolated", invert=False):
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior, "invert": invert}


BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
GPT2 = BYTES | {"use_regex": True}
DIGITS = {"type": "Digits", "individual_digits": True}
# Chains of other models, each run over Qwen's vocabulary; "gguf" is the name of the same chain in GGUF files.
CHAINS = {
    "llama-3": {"gguf": "llama-bpe", "steps": [split(
        SUFFIX + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*" + SPACES)]},
    "o200k": {"gguf": "gpt-4o", "steps": [split(
        rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{SUFFIX}?|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{SUFFIX}?"
        r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + SPACES)]},
    "tekken": {"gguf": "tekken", "steps": [split(
        rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*"
        r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + SPACES)]},
    "qwen-3.5": {"gguf": "qwen35", "steps": [split(
        SUFFIX + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*" + SPACES)]},
    "smollm": {"gguf": "smollm", "steps": [DIGITS, GPT2]},
    "deepseek-v3": {"gguf": "deepseek-v3", "steps": [
        split(r"\p{N}{1,3}"), split("[一-龥\u3040-ゟ゠-ヿ]+"),
        split("[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*"
              "|\\s*[\r\n]+|\\s+(?!\\S)|\\s+")]},
    "whitespace": {"steps": [{"type": "Whitespace"}]},
    "punctuation": {"steps": [{"type": "Punctuation", "behavior": "MergedWithPrevious"}, {"type": "WhitespaceSplit"}]},
    "words": {"steps": [split(r"\s+", "Removed", False), split(r"[aeiou]+", "MergedWithNext"), split(r"[0-9]", "Contiguous")]},
    "prefix": {"steps": [GPT2 | {"add_prefix_space": True}]},
}


class Numbers:
    """splitmix64."""

    def __init__(self, seed):
        self.state = seed

    def next(self):
        mask = (1 << 64) - 1
        self.state = (self.state + 0x9E3779B97F4A7C15) & mask
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        return z ^ (z >> 31)


def chinese():
    numbers, out, size = Numbers(1), [], 0
    marks = "，。、「」：？！\n 　ab"
    while size < SIZE:
        r = numbers.next()
        c = chr(0x4E00 + (r >> 8) % 3000) if r % 10 < 8 else "0123456789"[(r >> 8) % 10] if r % 10 == 8 else marks[(r >> 8) % len(marks)]
        size += len(c.encode())
        out.append(c)
    return "".join(out)


# What kind r % 8 draws from: first code point and how many.
RANGES = [(0x20, 0x5F), (0x61, 26), (0x09, 5), (0xA1, 0x55F), (0x300, 0x70), (0x2000, 0x1100), (0x4E00, 0x5200), (0x10000, 0x20000)]


def random_unicode():
    numbers, out, size = Numbers(2), [], 0
    while size < SIZE:
        r = numbers.next()
        first, count = RANGES[r % 8]
        if r % 64 == 63:
            first, count = 0x600, 0xD800 - 0x600
        c = chr(first + (r >> 8) % count)
        size += len(c.encode())
        out.append(c)
    return "".join(out)


def cut(path):
    return path.read_bytes()[:SIZE].decode(errors="ignore")


def digest(data):
    h = 0xCBF29CE484222325
    for b in data:
        h = ((h ^ b) * 0x100000001B3) & ((1 << 64) - 1)
    return f"{h:016x}"


def gpt2(folder):
    merges = [tuple(line.split(" ")) for line in (folder / "vocab.bpe").read_text().split("\n")[1:] if line]
    t = tokenizers.Tokenizer(models.BPE(vocab=json.loads((folder / "encoder.json").read_text()), merges=merges))
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    t.post_processor = processors.ByteLevel()
    return t


def sentencepiece(path):
    """The SentencePiece model inside a GGUF file."""
    import sentencepiece as spm
    from sentencepiece import sentencepiece_model_pb2 as pb2

    fields = gguf.GGUFReader(path).fields
    model = pb2.ModelProto()
    model.trainer_spec.model_type = pb2.TrainerSpec.BPE
    model.trainer_spec.byte_fallback = True
    model.normalizer_spec.name = "identity"
    model.normalizer_spec.add_dummy_prefix = True
    model.normalizer_spec.remove_extra_whitespaces = False
    model.normalizer_spec.escape_whitespaces = True
    tokens = fields["tokenizer.ggml.tokens"].contents()
    for token, score, kind in zip(tokens, fields["tokenizer.ggml.scores"].contents(), fields["tokenizer.ggml.token_type"].contents()):
        model.pieces.add(piece=token, score=score, type=kind)
    processor = spm.SentencePieceProcessor()
    processor.LoadFromSerializedProto(model.SerializeToString())
    return processor


def references(shared):
    """(name, how the test gets the tokenizer, text -> ids)"""
    t = shared / "tokenizer"
    yield "gpt2", {"kind": "gpt2"}, lambda text, r=gpt2(t / "gpt2"): r.encode(text, add_special_tokens=False).ids
    qwen = json.loads((t / "qwen3/tokenizer.json").read_text())
    reference = tokenizers.Tokenizer.from_str(json.dumps(qwen))
    yield "qwen3", {"kind": "qwen3"}, lambda text, r=reference: r.encode(text, add_special_tokens=False).ids
    for name, chain in CHAINS.items():
        steps = chain["steps"] + ([] if chain["steps"][-1]["type"] == "ByteLevel" else [BYTES])
        pre_tokenizer = {"type": "Sequence", "pretokenizers": steps}
        # GGUF names that mean a chain also say whether a whole token comes before any merge.
        whole = chain.get("gguf") in ("llama-bpe", "gpt-4o", "tekken")
        reference = tokenizers.Tokenizer.from_str(json.dumps(
            qwen | {"normalizer": None, "pre_tokenizer": pre_tokenizer, "model": qwen["model"] | {"ignore_merges": whole}}))
        how = {"kind": "chain", "pre_tokenizer": pre_tokenizer, "ignore_merges": whole, "gguf": chain.get("gguf")}
        yield name, how, lambda text, r=reference: r.encode(text, add_special_tokens=False).ids
    import tiktoken.load
    ranks = tiktoken.load.load_tiktoken_bpe(str(t / "kimi/tiktoken.model"))
    kimi = tiktoken.Encoding("kimi", pat_str=KIMI, mergeable_ranks=ranks, special_tokens={})
    # In parts below the length at which the published tokenizer cuts by itself.
    yield "kimi", {"kind": "kimi"}, lambda text, r=kimi: [i for at in range(0, len(text), 400_000) for i in r.encode_ordinary(text[at:at + 400_000])]
    for name in ("tokenizer/vocab-gguf/ggml-vocab-llama-spm.gguf", "models/stories260K/stories260K.gguf"):
        yield name.split("/")[-1], {"kind": "file", "path": name}, lambda text, r=sentencepiece(shared / name): r.EncodeAsIds(text)


def compare(binary, shared, how, text, expected):
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        model = folder
        t = shared / "tokenizer"
        if how["kind"] == "gpt2":
            gpt2(t / "gpt2").save(str(folder / "tokenizer.json"))
        elif how["kind"] == "qwen3":
            model = t / "qwen3"
        elif how["kind"] == "chain":
            qwen = json.loads((t / "qwen3/tokenizer.json").read_text())
            qwen |= {"normalizer": None, "pre_tokenizer": how["pre_tokenizer"], "model": qwen["model"] | {"ignore_merges": how["ignore_merges"]}}
            (folder / "tokenizer.json").write_text(json.dumps(qwen))
        elif how["kind"] == "file":
            model = shared / how["path"]
        else:
            return "not compared"
        (folder / "text").write_bytes(text.encode())
        run = subprocess.run([binary, "tokenize", "-m", model, "-f", folder / "text", "--json"], capture_output=True, check=True)
        ids = json.loads(run.stdout)["ids"]
        if ids == expected:
            return "equal"
        at = next((i for i, (a, b) in enumerate(zip(ids, expected)) if a != b), min(len(ids), len(expected)))
        pieces = json.loads(run.stdout)["pieces"]
        return f"differs at {at}: {ids[at - 3:at + 6]} for {expected[at - 3:at + 6]}: {pieces[at - 5:at + 6]}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shared", type=pathlib.Path)
    parser.add_argument("--compare", metavar="BINARY")
    arguments = parser.parse_args()
    shared = arguments.shared
    texts = {"english": cut(shared / "text/wikitext2-valid.txt"), "code": cut(shared / "api/openapi.yaml"),
             "chinese": chinese(), "random": random_unicode()}
    out = {"texts": {name: digest(text.encode()) for name, text in texts.items()}, "tokenizers": []}
    for name, how, encode in references(shared):
        samples = {}
        for kind, text in texts.items():
            ids = encode(text)
            samples[kind] = {"count": len(ids), "digest": digest(b"".join(i.to_bytes(4, "little") for i in ids)), "first": ids[:16]}
            if arguments.compare:
                print(name, kind, compare(arguments.compare, shared, how, text, ids), flush=True)
        out["tokenizers"].append({"name": name} | how | {"samples": samples})
    lines = ",\n".join(json.dumps(t, ensure_ascii=False, separators=(",", ":")) for t in out["tokenizers"])
    text = f'{{"texts": {json.dumps(out["texts"], separators=(",", ":"))},\n"tokenizers": [\n{lines}\n]}}\n'
    (ROOT / "tests/data/tokenizer_samples.json").write_text(text)


if __name__ == "__main__":
    main()
