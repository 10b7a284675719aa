#!/usr/bin/env python3
"""What the memory view costs: processor time a token of `palimpsest serve` with and without a watcher.

usage: measure_watch_cost.py PALIMPSEST MODEL [--tokens N] [--rounds N]

Answers with and without take turns, so that what else the machine does falls on both alike; the least time of each kind counts. Processor time is that of the
whole server, sending included.
"""

import argparse
import http.client
import json
import os
import re
import subprocess
import threading
import uuid


def processor_seconds(pid):
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def turn(port, pid, tokens, watched):
    """Processor seconds a token, and bytes that the watcher got."""
    name = uuid.uuid4().hex
    body = {"prompt": "It was a dark night, and", "max_tokens": tokens, "temperature": 0, "logit_bias": {"3842": -100}, "stream": True}
    answer = http.client.HTTPConnection("127.0.0.1", port)
    before = processor_seconds(pid)
    answer.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json", "X-Request-Id": name})
    response = answer.getresponse()
    received = []
    watcher = None
    if watched:
        def watch():
            connection = http.client.HTTPConnection("127.0.0.1", port)
            connection.request("GET", f"/v1/memory?request=cmpl-{name}")
            received.append(len(connection.getresponse().read()))
        watcher = threading.Thread(target=watch)
        watcher.start()
    response.read()
    if watcher:
        watcher.join()
    return (processor_seconds(pid) - before) / tokens, sum(received)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("palimpsest")
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, default=3000)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    command = [options.palimpsest, "serve", "-m", options.model, "--port", "0", "-t", "1", "-c", "4096"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        port = next(int(match[1]) for line in server.stderr if (match := re.search(r"http://\S+:(\d+)", line)))
        threading.Thread(target=lambda: [None for _ in server.stderr], daemon=True).start()
        turn(port, server.pid, 100, True)
        plain, watched = [], []
        for i in range(options.rounds):
            plain.append(turn(port, server.pid, options.tokens, False)[0])
            seconds, size = turn(port, server.pid, options.tokens, True)
            watched.append(seconds)
            print(f"{1e6 * plain[-1]:.0f} us a token alone, {1e6 * seconds:.0f} us watched, {size / options.tokens:.0f} bytes a token", flush=True)
        print(f"least: {1e6 * min(plain):.0f} us and {1e6 * min(watched):.0f} us, {100 * (min(watched) / min(plain) - 1):.1f}% more")
    finally:
        server.terminate()
        server.wait(30)


if __name__ == "__main__":
    main()
