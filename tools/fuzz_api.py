#!/usr/bin/env python3
"""Sends `palimpsest serve` requests that docs/openapi.yaml allows, and ones that it does not, and checks every answer against it:
statuses, content types, headers, bodies, no 5xx that is not declared. Afterwards the server must still answer, and end well.

    python3 -m venv VENV && VENV/bin/pip install -r tools/clients.txt
    VENV/bin/python tools/fuzz_api.py build/release/bin/palimpsest [models/demo] [--seconds 600] [--seed 1]

Lengths and counts are bounded before, so that a small machine gets many requests done. Ends with code 77, and says so, where
schemathesis is not installed.
"""

import argparse
import importlib.util
import pathlib
import subprocess
import sys
import tempfile
import urllib.request

from served import served

CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,response_schema_conformance"
KEY = "a key of this test"


ANSWERS = ("responses", "ServerSentEvent", "ChatCompletion", "TextCompletion", "Model", "Session", "Usage")


def bounded(node, name=""):
    """The description with small numbers in place of large or open ones; what answers are stays as it is."""
    if name in ANSWERS:
        return node
    if isinstance(node, list):
        return [bounded(entry) for entry in node]
    if not isinstance(node, dict):
        return node
    node = {key: bounded(value, key) for key, value in node.items()}
    types = node.get("type")
    types = types if isinstance(types, list) else [types]
    if "string" in types and "pattern" not in node and "enum" not in node:
        node["maxLength"] = min(node.get("maxLength", 200), 200)
    if "array" in types:
        node["maxItems"] = min(node.get("maxItems", 4), 4)
    if "integer" in types and name in ("max_tokens", "max_completion_tokens", "max_output_tokens", "n"):
        node["maximum"] = 4
    return node


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("model", nargs="?", default="models/demo")
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--phases", default="examples,coverage,fuzzing")
    options = parser.parse_args()
    if not importlib.util.find_spec("schemathesis") or not importlib.util.find_spec("yaml"):
        print(f"skipped: schemathesis is not installed (see the head of {sys.argv[0]})")
        return 77
    import yaml

    description = yaml.safe_load((pathlib.Path(__file__).parent.parent / "docs/openapi.yaml").read_text())
    with tempfile.TemporaryDirectory() as folder:
        schema = pathlib.Path(folder, "openapi.yaml")
        schema.write_text(yaml.safe_dump(bounded(description), sort_keys=False))
        sessions = pathlib.Path(folder, "sessions")
        sessions.mkdir()
        with served(options.program, options.model, "-c", "512", "-np", "4", "-t", "1", "--sessions-dir", str(sessions), key=KEY) as address:
            command = [sys.executable, "-m", "schemathesis.cli", "run", str(schema), "--url", address, "--checks", CHECKS, "--phases",
                       options.phases, "--mode", "all", "--max-time", str(options.seconds), "--max-examples", "1000",
                       "--request-timeout", "60", "--workers", "2", "--seed", str(options.seed), "--continue-on-failure",
                       "-H", f"Authorization: Bearer {KEY}"]
            failed = subprocess.run(command).returncode
            with urllib.request.urlopen(urllib.request.Request(address + "/metrics", headers={"Authorization": f"Bearer {KEY}"})) as answer:
                wanted = ("palimpsest_http_requests_total ", "palimpsest_http_client_errors_total ", "palimpsest_http_server_errors_total ")
                print("\n".join(line for line in answer.read().decode().splitlines() if line.startswith(wanted)))
            with urllib.request.urlopen(address + "/health") as answer:
                print("health:", answer.read().decode())
        return failed


sys.exit(main())
