#!/usr/bin/env python3
"""Holds JSON schema constraints against PyPI's jsonschema. Needs `pip install jsonschema==4.26.0`.

usage: check_constraints.py PALIMPSEST_CONSTRAINT_WALKS MODEL [--schemas 200] [--walks 20] [--seed 1]

Makes random schemas of the supported keywords and random values for them. Every text that the masks lead to has to be valid by
jsonschema; every value that jsonschema finds valid, written compactly and in Python's usual layout with its members in the order of
the schema, has to be accepted, and every value that it finds invalid refused. Exit code 1 if something differs.
"""

import argparse
import json
import random
import subprocess
import sys

import jsonschema

WORDS = ["a", "ab", "name", "size", "ü", "key two", 'q"uote']


def scalar_schema(rng):
    kind = rng.randrange(7)
    if kind == 0:
        low = rng.randrange(-30, 30)
        schema = {"type": "integer"}
        if rng.random() < 0.7:
            schema[rng.choice(["minimum", "exclusiveMinimum"])] = low
        if rng.random() < 0.7:
            schema[rng.choice(["maximum", "exclusiveMaximum"])] = low + rng.randrange(3, 60)
        return schema
    if kind == 1:
        low = rng.randrange(-300, 300) / rng.choice([1, 10, 100])
        schema = {"type": "number"}
        if rng.random() < 0.7:
            schema[rng.choice(["minimum", "exclusiveMinimum"])] = low
        if rng.random() < 0.7:
            schema[rng.choice(["maximum", "exclusiveMaximum"])] = low + rng.randrange(1, 60)
        return schema
    if kind == 2:
        low = rng.randrange(0, 3)
        return {"type": "string", "minLength": low, "maxLength": low + rng.randrange(0, 6)}
    if kind == 3:
        return {"type": "string", "pattern": rng.choice(["^[a-c]{2,4}$", "^x|y$", "b+", "^(ab|c)*$", "^\\d{2}-[^a-z]$", '^["\\\\/]?z', "^[^\\s@]+@[^\\s]{1,3}$", "^\\W\\D[^\\w]\\S$"])}
    if kind == 4:
        return {"enum": rng.sample(["a", "ab", "b", 1, 2.5, None, True, [1], {"k": "v"}], 4)}
    if kind == 5:
        return {"type": rng.choice(["boolean", "null", "string", ["null", "integer"]])}
    return {"const": rng.choice(["x", 7, False, None, [1, "a"]])}


def schema_of(rng, depth):
    schema = plain_schema(rng, depth)
    if rng.random() < 0.4:
        schema.update(rng.sample([("title", "T"), ("description", "d"), ("default", None), ("examples", [1]), ("$comment", "c")], 2))
    return schema


def plain_schema(rng, depth):
    kind = rng.randrange(7) if depth > 0 else 0
    if kind <= 1:
        return scalar_schema(rng)
    if kind == 2:
        low = rng.randrange(0, 3)
        schema = {"type": "array", "items": schema_of(rng, depth - 1), "minItems": low, "maxItems": low + rng.randrange(0, 3)}
        if rng.random() < 0.3:
            schema["prefixItems"] = [schema_of(rng, depth - 1) for _ in range(rng.randrange(1, 3))]
        return schema
    if kind == 3:
        return {"anyOf": [schema_of(rng, depth - 1) for _ in range(rng.randrange(1, 4))]}
    if kind == 4:
        return {"allOf": [{"type": "integer", "minimum": rng.randrange(-9, 3)}, {"maximum": rng.randrange(3, 20)}]}
    if kind == 5:
        return {"allOf": [{"anyOf": [schema_of(rng, 0), {"type": "integer", "minimum": 0}]}, {"anyOf": [{"type": ["integer", "string"]}, {"type": "null"}]}]}
    names = rng.sample(WORDS, rng.randrange(1, 5))
    schema = {
        "type": "object",
        "properties": {name: schema_of(rng, depth - 1) for name in names},
        "required": [name for name in names if rng.random() < 0.5],
    }
    if rng.random() < 0.7:
        schema["additionalProperties"] = False if rng.random() < 0.7 else {"type": "boolean"}
    return schema


def value_of(rng, schema, depth=4):
    """A value that may well fit."""
    if rng.random() < 0.08 or depth == 0 or not isinstance(schema, dict):
        return rng.choice([None, 1, "a", True, [], {}, -3.5, "ab"])
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return rng.choice(schema["enum"])
    if "anyOf" in schema:
        return value_of(rng, rng.choice(schema["anyOf"]), depth - 1)
    if "allOf" in schema:
        return rng.randrange(-10, 22)
    kind = schema.get("type")
    kind = rng.choice(kind) if isinstance(kind, list) else kind
    if kind == "integer":
        return rng.randrange(-35, 95)
    if kind == "number":
        return rng.choice([rng.randrange(-300, 360), rng.randrange(-3000, 3600) / 10, rng.randrange(-30000, 36000) / 1000])
    if kind == "string":
        return "".join(rng.choice('abcxyz9 "\\\nü中-') for _ in range(rng.randrange(0, 7))).rstrip("\n")  # Python's $ also matches before a last line end
    if kind == "boolean":
        return rng.random() < 0.5
    if kind == "array":
        count = rng.randrange(schema.get("minItems", 0), schema.get("maxItems", 2) + 2)
        prefix = schema.get("prefixItems", [])
        return [value_of(rng, prefix[i] if i < len(prefix) else schema["items"], depth - 1) for i in range(count)]
    if kind == "object":
        out = {}
        for name, of in schema["properties"].items():
            if name in schema["required"] or rng.random() < 0.5:
                out[name] = value_of(rng, of, depth - 1)
        if schema.get("additionalProperties") and rng.random() < 0.5:
            out["other"] = rng.random() < 0.8 or 1
        return out
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("walks_binary")
    parser.add_argument("model")
    parser.add_argument("--schemas", type=int, default=200)
    parser.add_argument("--walks", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    rng = random.Random(args.seed)
    cases = []
    for _ in range(args.schemas):
        schema = schema_of(rng, 3)
        values = [value_of(rng, schema) for _ in range(30)]
        samples = []
        for value in values:
            samples.append(json.dumps(value, ensure_ascii=False, separators=(",", ":")))
            samples.append(json.dumps(value, ensure_ascii=False))
            samples.append(json.dumps(value, ensure_ascii=False, indent=2))
        cases.append({"source": json.dumps(schema), "samples": samples})
    out = subprocess.run([args.walks_binary, args.model, str(args.walks)], input=json.dumps(cases), capture_output=True, text=True, check=True)
    wrong = texts = accepted = refused = impossible = cut = 0
    for case, result in zip(cases, json.loads(out.stdout)):
        schema = json.loads(case["source"])
        validator = jsonschema.Draft202012Validator(schema)
        narrow = jsonschema.Draft202012Validator(closed(schema))
        if "error" in result:
            impossible += 1
            if "no text that matches" not in result["error"]:
                wrong += 1
                print(f"refused: {case['source']}: {result['error']}")
            elif any(validator.is_valid(json.loads(sample)) for sample in case["samples"]):
                wrong += 1
                print(f"said to match nothing: {case['source']}")
            continue
        cut += result["cut"]
        for text in result["texts"]:
            texts += 1
            try:
                valid = validator.is_valid(json.loads(text))
            except json.JSONDecodeError:
                valid = False
            if not valid:
                wrong += 1
                print(f"led to what is not valid: {case['source']}: {text!r}")
        for sample, taken in zip(case["samples"], result["accepted"]):
            valid = validator.is_valid(json.loads(sample))
            accepted += valid
            refused += not valid
            wanted = narrow.is_valid(json.loads(sample))
            if wanted != taken and not (wanted and is_other_form(case["source"], sample)):
                wrong += 1
                print(f"{'refused what is valid' if wanted else 'accepted what is not'}: {case['source']}: {sample}")
    print(f"{args.schemas} schemas ({impossible} match nothing), {texts} texts ({cut} came to no end), {accepted} valid and {refused} other samples: {wrong} differ")
    return 1 if wrong else 0


def closed(schema):
    """The schema without the other members that nothing is said about: they are valid, and not written by design."""
    if isinstance(schema, list):
        return [closed(one) for one in schema]
    if not isinstance(schema, dict) or "const" in schema or "enum" in schema:
        return schema
    out = {key: {name: closed(one) for name, one in value.items()} if key == "properties" else closed(value) for key, value in schema.items()}
    if "properties" in out:
        out.setdefault("additionalProperties", False)
    return out


def is_other_form(source, sample):
    """Numbers such as 1.0 for 1, and lists and objects of const and enum, have one form that is written."""
    return ".0" in sample or any(form in source for form in ['[1, "a"]', "[1]", '{"k": "v"}'])


if __name__ == "__main__":
    sys.exit(main())
