#!/usr/bin/env python3
"""Sees that every test that docs/faults.md names exists. usage: check_fault_table.py; exit code 1 if one does not."""

import pathlib
import re
import sys

root = pathlib.Path(__file__).resolve().parent.parent
table = (root / "docs/faults.md").read_text()
sources = "".join(path.read_text() for path in (root / "tests").rglob("*.cc"))
tests = {f"{suite}.{name}" for suite, name in re.findall(r"^TEST(?:_[FP])?\((\w+),\s*(\w+)\)", sources, re.M)}
named = set(re.findall(r"`([A-Z]\w+\.[A-Z]\w+)`", table))
missing = sorted(named - tests) + sorted(f for f in set(re.findall(r"\bfuzz_[a-z_]+\b", table)) if not (root / f"fuzz/{f}.cc").exists())
for name in missing:
    print(f"docs/faults.md: there is no {name}")
sys.exit(1 if missing or not named else 0)
