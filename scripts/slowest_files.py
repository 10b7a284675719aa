#!/usr/bin/env python3
"""Prints the ten source files that took longest to compile, from ninja's log.

usage: slowest_files.py NINJA_LOG SINCE

SINCE is a Unix time: objects written before it were not compiled in this run and do not count.
"""

import sys
from pathlib import Path


def compile_times(log: Path, since: float):
    """Seconds by object file; lines of the log are start ms, end ms, mtime in ns, output, hash."""
    times = {}
    for line in log.read_text().splitlines():
        if line.startswith("#"):
            continue
        start, end, mtime, output, _ = line.split("\t")
        if output.endswith(".o") and int(mtime) >= since * 1e9:
            times[output] = (int(end) - int(start)) / 1000
    return times


def main():
    log, since = Path(sys.argv[1]), float(sys.argv[2])
    times = compile_times(log, since) if log.exists() else {}
    if not times:
        print("Nothing was compiled.")
        return
    print(f"{len(times)} files compiled; the slowest:")
    for output, seconds in sorted(times.items(), key=lambda item: -item[1])[:10]:
        folder, _, source = output.partition("/CMakeFiles/")
        print(f"{seconds:7.1f} s  {folder}/{source.partition('/')[2].removesuffix('.o')}")


if __name__ == "__main__":
    main()
