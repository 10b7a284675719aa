#!/usr/bin/env python3
"""Mixed load on `palimpsest serve` for a while: answers of every interface, whole and streamed, constrained ones, tools, embeddings, session files, watchers;
clients that leave at any moment, send halves, or send nonsense. Every greedy answer is compared with what it was on an idle server.

usage: soak_server.py PALIMPSEST [MODEL] [--minutes 45] [--clients 6] [--pause 0.2] [--seed 1]

Fails for an answer that differs, a status that was not to be expected, a slot that is not free in the end, and memory that grew by more than 2% after the
first tenth of the time (and at least two minutes of it). `--pause`: mean seconds between two requests of a client. Needs Python alone.
"""

import argparse
import collections
import http.client
import json
import random
import subprocess
import sys
import tempfile
import threading
import time

TEXTS = ["Hello", "Who are you?", "Tell me of the sea.", "The password of Alder House is 48213. What is the password of Alder House?", "Count to five.",
         "Continue this sentence:\nThe old man", "It was a dark night, and the wind " * 12, "What is 2 + 2?"]
SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0, "maximum": 120}}, "required": ["name", "age"]}
TOOL = {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"]}}


def questions():
    """(path, body, the key that holds what is compared)"""
    for text in TEXTS:
        chat = {"messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": 48}
        yield "/v1/chat/completions", chat, "choices"
        yield "/v1/completions", {"prompt": text, "temperature": 0, "max_tokens": 32, "n": 2, "logprobs": 2}, "choices"
        yield "/v1/messages", chat, "content"
        yield "/v1/responses", {"input": text, "temperature": 0, "max_output_tokens": 32}, "output"
        yield "/v1/embeddings", {"input": [text, "another"]}, "data"
    quiet = {**chat, "reasoning_effort": "none", "max_tokens": 120}
    yield "/v1/chat/completions", {**quiet, "response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}}, "choices"
    yield "/v1/chat/completions", {**quiet, "regex": "[a-z ]{5,60}[.]"}, "choices"
    yield "/v1/chat/completions", {**quiet, "tools": [{"type": "function", "function": TOOL}], "tool_choice": "required"}, "choices"


NONSENSE = [b"{", b"[]", b'{"prompt": 5}', b'{"prompt": "a", "n": 1000000000}', b'{"prompt": "a", "temperature": 999999}', b'{"prompt": "\xff"}',
            b'{"prompt": "a", "regex": "(((("}', b"[" * 20000, json.dumps({"prompt": "word " * 4000}).encode()]


def send(port, method, path, body=None, read=True):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    connection.request(method, path, data, {"Content-Type": "application/json"} if data is not None else {})
    response = connection.getresponse()
    if not read:
        return connection, response
    answer = response.read()
    connection.close()
    return response.status, answer


def essence(value):
    """Without ids, which differ, and call ids made of them."""
    if isinstance(value, list):
        return [essence(entry) for entry in value]
    if isinstance(value, dict):
        return {key: essence(entry) for key, entry in value.items() if key not in ("id", "call_id")}
    return value


class Soak:
    def __init__(self, port, seed):
        self.port, self.seed = port, seed
        self.counts, self.faults = collections.Counter(), []
        self.over = threading.Event()
        self.known = []
        for path, body, key in questions():
            status, answer = send(port, "POST", path, body)
            if status != 200:
                raise SystemExit(f"{path}: {status} {answer[:300]}")
            self.known.append((path, body, key, essence(json.loads(answer)[key])))

    def fault(self, text):
        self.faults.append(text)
        print("fault:", text[:600], flush=True)

    def compare(self, rng):
        path, body, key, expected = rng.choice(self.known)
        status, answer = send(self.port, "POST", path, body)
        if status == 429:
            return "refused"
        if status != 200 or essence(json.loads(answer)[key]) != expected:
            self.fault(f"{path} {json.dumps(body)[:200]}: {status} {answer[:300]!r}, expected {json.dumps(expected)[:300]}")
        return "compared"

    def stream(self, rng):
        path, body, _, expected = rng.choice([known for known in self.known if known[0] == "/v1/completions"])
        status, answer = send(self.port, "POST", path, {**body, "stream": True})
        if status == 429:
            return "refused"
        texts = ["", ""]
        for event in answer.decode().split("\n\n"):
            if event.startswith("data: {"):
                for choice in json.loads(event[6:])["choices"]:
                    texts[choice["index"]] += choice["text"]
        if not answer.endswith(b"data: [DONE]\n\n") or texts != [choice["text"] for choice in expected]:
            self.fault(f"stream of {json.dumps(body)[:200]}: {status}, {texts}")
        return "streamed"

    def leave(self, rng):
        path, body, _, _ = rng.choice(self.known)
        body = {**body, "stream": True} if path != "/v1/embeddings" else body
        for name in ("max_tokens", "max_output_tokens"):
            if name in body:
                body[name] = 900
        connection, response = send(self.port, "POST", path, body, read=False)
        if response.status == 200:
            response.read(rng.choice([1, 200, 2000]))
        connection.close()
        return "left"

    def half(self, rng):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.connect()
        data = json.dumps({"prompt": "a", "max_tokens": 900}).encode()
        whole = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(data) + data
        connection.sock.sendall(whole[: rng.randrange(len(whole) + 1)])
        time.sleep(rng.random() / 5)
        connection.close()
        return "half"

    def nonsense(self, rng):
        body = rng.choice(NONSENSE)
        status, answer = send(self.port, "POST", "/v1/completions", body)
        if status not in (400, 429):
            self.fault(f"{body[:60]!r}: {status} {answer[:200]!r}")
        return "refused as it should"

    def session(self, rng):
        name = f"s{rng.randrange(4)}"
        save = {"name": name, "messages": [{"role": "user", "content": rng.choice(TEXTS)}]}
        for path, body, good in (("/sessions/save", save, (200, 429, 503)), ("/sessions/restore", {"name": name}, (200, 404, 429, 503))):
            status, answer = send(self.port, "POST", path, body)
            if status not in good:
                self.fault(f"{path}: {status} {answer[:200]!r}")
        if rng.random() < 0.3:
            send(self.port, "DELETE", f"/sessions/{name}")
        return "session"

    def watch(self, rng):
        name = f"w{rng.randrange(1 << 40)}"
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        connection.request("POST", "/v1/completions", json.dumps({"prompt": rng.choice(TEXTS), "max_tokens": 60, "stream": True}),
                           {"Content-Type": "application/json", "X-Request-Id": name})
        status, _ = send(self.port, "GET", f"/v1/memory?request=cmpl-{name}")
        if status not in (200, 404, 429):
            self.fault(f"/v1/memory: {status}")
        connection.getresponse().read()
        connection.close()
        return "watched"

    def client(self, number, pause):
        rng = random.Random(self.seed * 1000 + number)
        kinds = [self.compare] * 8 + [self.stream] * 3 + [self.leave] * 5 + [self.half] * 2 + [self.nonsense, self.session, self.watch]
        while not self.over.is_set():
            try:
                self.counts[rng.choice(kinds)(rng)] += 1
            except Exception as error:  # noqa: BLE001: whatever it is, it is a finding
                self.fault(f"{type(error).__name__}: {error}")
            self.over.wait(rng.expovariate(1 / pause) if pause else 0)


def resident(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        fields = dict(line.split(":", 1) for line in file)
    return int(fields["VmRSS"].split()[0])


def metric(port, name):
    text = send(port, "GET", "/metrics")[1].decode()
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(f"palimpsest_{name}"))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("palimpsest")
    parser.add_argument("model", nargs="?", default="models/demo")
    parser.add_argument("--minutes", type=float, default=45)
    parser.add_argument("--clients", type=int, default=6)
    parser.add_argument("--pause", type=float, default=0.2)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        server = subprocess.Popen([options.palimpsest, "serve", "-m", options.model, "--port", "0", "-t", "1", "-np", "4", "-c", "2048", "--cache-ram", "64MiB",
                                   "--shutdown-time", "5", "--sessions-dir", folder], stderr=subprocess.PIPE, text=True)
        port = next(int(line.split(" on http://")[1].split(":")[1]) for line in server.stderr if " on http://" in line)
        threading.Thread(target=lambda: [None for _ in server.stderr], daemon=True).start()
        soak = Soak(port, options.seed)
        clients = [threading.Thread(target=soak.client, args=(n, options.pause)) for n in range(options.clients)]
        start, sizes = time.monotonic(), []
        for thread in clients:
            thread.start()
        while (elapsed := time.monotonic() - start) < options.minutes * 60 and server.poll() is None:
            time.sleep(5)
            sizes.append((elapsed, resident(server.pid)))
            if len(sizes) % 24 == 0:
                print(f"{elapsed / 60:.1f} min: {dict(soak.counts)}, {sizes[-1][1] / 1024:.1f} MiB, {len(soak.faults)} faults", flush=True)
        soak.over.set()
        for thread in clients:
            thread.join()
        if server.poll() is not None:
            raise SystemExit(f"the server ended with code {server.returncode}")
        while metric(port, "sequences_running") + metric(port, "sequences_waiting") > 0 and time.monotonic() - start < options.minutes * 60 + 60:
            time.sleep(0.5)
        if any(slot["is_processing"] for slot in json.loads(send(port, "GET", "/slots")[1])):
            soak.fault("a slot is not free")
        failed = metric(port, "http_server_errors_total")
        warm = max(options.minutes * 6, 120)
        later = [size for elapsed, size in sizes if elapsed >= warm]
        growth = max(later) / later[0] - 1 if later else 0
        if growth > 0.02:
            soak.fault(f"memory grew from {later[0]} to {max(later)} KiB")
        server.terminate()
        code = server.wait(60)
    print(f"{options.minutes} minutes, {options.clients} clients: {dict(soak.counts)}; {failed:.0f} answers of 5xx; {len(soak.faults)} faults; "
          f"{sizes[-1][1] / 1024:.1f} MiB resident in the end, most {100 * growth:.2f}% above what it was after {warm / 60:.1f} minutes; exit code {code}")
    return 1 if soak.faults or code != 0 else 0


sys.exit(main())
