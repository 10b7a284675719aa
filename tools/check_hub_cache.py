#!/usr/bin/env python3
"""Checks that palimpsest and PyPI's huggingface_hub find each other's downloads in one cache. Needs `pip install huggingface_hub`.

usage: check_hub_cache.py PALIMPSEST

Serves a small made-up model on a free port of this machine in the hub's protocol, and downloads it once with either program
into a fresh cache; the other then has to find every file there without a single transfer.
"""

import argparse
import hashlib
import http.server
import json
import os
import subprocess
import tempfile
import threading

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REPO = "owner/model"
FILES = {
    "config.json": b'{"model_type": "x"}',
    "tokenizer.json": os.urandom(70_000),
    "model.safetensors": os.urandom(3_000_000),
}


def blob_id(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def is_large(name):
    return name.endswith(".safetensors")


def checksum(name):
    return hashlib.sha256(FILES[name]).hexdigest() if is_large(name) else blob_id(FILES[name])


def listed(name):
    data = FILES[name]
    lfs = {"lfs": {"sha256": checksum(name), "oid": checksum(name), "size": len(data), "pointerSize": 1}} if is_large(name) else {}
    return {"rfilename": name, "path": name, "type": "file", "oid": blob_id(data), "blobId": blob_id(data), "size": len(data), **lfs}


class Hub(http.server.BaseHTTPRequestHandler):
    transfers = 0

    def log_message(self, *_):
        pass

    def reply(self, status, body, headers=()):
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def do_GET(self):
        path = self.path.split("?")[0]
        files = [listed(name) for name in FILES]
        if path.startswith(f"/api/models/{REPO}/tree/"):
            return self.reply(200, json.dumps(files).encode(), [("Content-Type", "application/json")])
        if path.startswith(f"/api/models/{REPO}"):
            info = {"id": REPO, "modelId": REPO, "sha": COMMIT, "private": False, "tags": [], "siblings": files}
            return self.reply(200, json.dumps(info).encode(), [("Content-Type", "application/json")])
        name = path.removeprefix(f"/{REPO}/resolve/{COMMIT}/")
        if name not in FILES:
            return self.reply(404, b"", [("X-Error-Code", "EntryNotFound")])
        if self.command == "GET":
            Hub.transfers += 1
        tag = f'"{checksum(name)}"'
        self.reply(200, FILES[name], [("X-Repo-Commit", COMMIT), ("ETag", tag), ("X-Linked-Etag", tag)])

    do_HEAD = do_GET


def check(condition, what):
    print(("ok      " if condition else "WRONG   ") + what)
    if not condition:
        raise SystemExit(1)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program")
    program = parser.parse_args().program
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    endpoint = f"http://127.0.0.1:{server.server_port}"
    os.environ.update(HF_ENDPOINT=endpoint, no_proxy="127.0.0.1", HF_HUB_DISABLE_XET="1", HF_HUB_DISABLE_TELEMETRY="1")
    os.environ.pop("HF_TOKEN", None)
    import huggingface_hub  # reads HF_ENDPOINT as it is imported

    def pull(cache):
        environment = {**os.environ, "HF_HUB_CACHE": cache}
        done = subprocess.run([program, "pull", REPO, "--json"], env=environment, capture_output=True, text=True, check=True)
        return json.loads(done.stdout)

    def holds_all(folder):
        return all(open(os.path.join(folder, name), "rb").read() == data for name, data in FILES.items())

    print(f"huggingface_hub {huggingface_hub.__version__}")
    with tempfile.TemporaryDirectory() as cache:
        pulled = pull(cache)
        check(holds_all(pulled["folder"]), "palimpsest pulls every file")
        Hub.transfers = 0
        offline = huggingface_hub.try_to_load_from_cache(REPO, "model.safetensors", cache_dir=cache)
        check(os.path.samefile(offline, os.path.join(pulled["folder"], "model.safetensors")), "huggingface_hub finds a file of it offline")
        folder = huggingface_hub.snapshot_download(REPO, cache_dir=cache)
        check(os.path.samefile(folder, pulled["folder"]) and Hub.transfers == 0, "huggingface_hub takes it for its own, transferring nothing")
        found = huggingface_hub.scan_cache_dir(cache)
        check([repo.repo_id for repo in found.repos] == [REPO] and not found.warnings, "huggingface_hub's scan lists it without a warning")
    with tempfile.TemporaryDirectory() as cache:
        folder = huggingface_hub.snapshot_download(REPO, cache_dir=cache)
        pulled = pull(cache)
        check(pulled["fetched"] == 0 and os.path.samefile(folder, pulled["folder"]), "palimpsest finds what huggingface_hub downloaded")
        os.environ["HF_HUB_OFFLINE"] = "1"
        done = subprocess.run([program, "pull", REPO], env={**os.environ, "HF_HUB_CACHE": cache}, capture_output=True, text=True)
        check(done.stdout.strip() == folder, "and finds it offline")


if __name__ == "__main__":
    main()
