#!/usr/bin/env python3
"""Checks what no compiler checks: who may see whom, and what may lie in the repository.

usage: check_includes.py [--root FOLDER]

1. Each `#include "folder/..."` of src/ must be allowed by the table MAY_SEE, which is the one of docs/architecture.md.
2. No tracked text file names an absolute path of somebody's machine; no tracked file is larger than 4 MB, models/ excepted.
3. Source files of more than 600 lines are listed; that is a warning only.

Exit code 1 when 1 or 2 fails.
"""

import argparse
import re
import subprocess
import sys
from pathlib import Path

# What a folder of src/ may include, itself always included. Kernels know no model, state knows no model.
OPS_LEVEL = {"base", "tensor", "kernels"}
MODEL_LEVEL = OPS_LEVEL | {"machine", "formats", "ops", "state"}
PLAN_LEVEL = MODEL_LEVEL | {"model"}
RUNTIME_LEVEL = PLAN_LEVEL | {"plan", "text", "media", "grammar"}
MAY_SEE = {
    "base": set(),
    "tensor": {"base"},
    "machine": {"base"},
    "formats": {"base", "tensor"},
    "media": {"base"},
    "hub": {"base", "formats"},
    "text": {"base", "formats"},
    "grammar": {"base", "text"},
    "kernels": {"base", "tensor"},
    "kernels/ref": OPS_LEVEL,
    "kernels/cpu": OPS_LEVEL | {"kernels/ref"},  # the scalar target decodes blocks as the reference does
    "kernels/cuda": OPS_LEVEL | {"kernels/ref"},  # the references also run on the device
    "ops": OPS_LEVEL | {"kernels/cpu", "kernels/cuda"},
    "state": OPS_LEVEL,
    "model": MODEL_LEVEL,
    "convert": PLAN_LEVEL,
    "plan": PLAN_LEVEL,
    "runtime": RUNTIME_LEVEL,
    "engine": RUNTIME_LEVEL | {"runtime"},
    "server": {"base", "text", "grammar", "model", "engine", "runtime", "plan", "state", "tensor"},
    "selfcheck": RUNTIME_LEVEL | {"runtime"},
    "report": {"base"},
    "lineage": OPS_LEVEL | {"ops", "report"},
    "cli": RUNTIME_LEVEL | {"runtime", "engine", "server", "selfcheck", "convert", "hub", "report", "lineage"},
}

# Public headers count as part of a folder; one that is not listed may be seen by runtime/ and what stands above it.
PUBLIC_HEADERS = {
    "error.h": "base",
    "activations.h": "tensor",
    "logit_facts.h": "tensor",
    "block_type.h": "tensor",
    "dtype.h": "tensor",
    "tensor.h": "tensor",
    "kernels_c.h": "kernels",
    "model_config.h": "model",
    "model.h": "model",
    "session.h": "plan",  # its MemoryPlan
    "tokenizer.h": "text",
    "chat.h": "text",
    "constraint.h": "grammar",
    "engine.h": "engine",
    "memory_view.h": "engine",
}

INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"')
MACHINE_PATH = re.compile(rb"(?<![\w.])/(?:work|home|root|Users|mnt)/[\w.]")
SOURCE_SUFFIXES = {".h", ".cc", ".cu", ".cuh"}
MAX_BYTES = 4_000_000
MAX_LINES = 600


def folder_of(path: str) -> str:
    """The longest folder of MAY_SEE that holds the path: "kernels/cpu/x.h" is in kernels/cpu, "kernels/op_args.h" in kernels."""
    parts = path.split("/")[:-1]
    for length in range(len(parts), 0, -1):
        if (folder := "/".join(parts[:length])) in MAY_SEE:
            return folder
    return parts[0] if parts else ""


def check_includes(root: Path):
    """Errors as text, one for each include that the table forbids."""
    for source in sorted((root / "src").rglob("*")):
        if source.suffix not in SOURCE_SUFFIXES:
            continue
        name = source.relative_to(root / "src").as_posix()
        user = folder_of(name)
        if user not in MAY_SEE:
            yield f"src/{name}: the folder is not in the table of scripts/check_includes.py"
            continue
        for number, line in enumerate(source.read_text().splitlines(), 1):
            if not (match := INCLUDE.match(line)):
                continue
            included = match[1]
            if included.startswith("palimpsest/"):
                used = PUBLIC_HEADERS.get(included.removeprefix("palimpsest/"), "runtime")
            elif included.startswith("hwy/") or not (root / "src" / included).exists():
                continue  # a library's header, or the file itself named by Highway's re-inclusion
            else:
                used = folder_of(included)
            if used != user and used not in MAY_SEE[user]:
                yield f'src/{name}:{number}: {user}/ may not see {used}/, but includes "{included}"'


def tracked_files(root: Path):
    listing = subprocess.run(["git", "-C", root, "ls-files", "-z"], capture_output=True, check=False)
    if listing.returncode != 0:
        return None
    return [root / name.decode() for name in listing.stdout.split(b"\0") if name]


def check_tracked(root: Path, files):
    """Errors as text: large files and absolute paths of a machine."""
    for path in files:
        if not path.is_file():
            continue
        name = path.relative_to(root)
        if path.stat().st_size > MAX_BYTES and name.parts[0] != "models":
            yield f"{name}: {path.stat().st_size} bytes; tracked files hold at most {MAX_BYTES}"
        if path.stat().st_size > MAX_BYTES:
            continue
        data = path.read_bytes()
        if b"\0" in data[:8192]:
            continue
        for number, line in enumerate(data.splitlines(), 1):
            if match := MACHINE_PATH.search(line):
                yield f"{name}:{number}: names a path of one machine: {match[0].decode()}..."


def long_files(root: Path, files):
    for path in files:
        if path.suffix in SOURCE_SUFFIXES and path.is_file():
            lines = len(path.read_bytes().splitlines())
            if lines > MAX_LINES:
                yield f"warning: {path.relative_to(root)}: {lines} lines; {MAX_LINES} are meant to be enough"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent)
    root = parser.parse_args().root.resolve()

    errors = list(check_includes(root))
    files = tracked_files(root)
    if files is None:
        print("Not a git checkout: tracked files are not checked.")
    else:
        errors += check_tracked(root, files)
        print("\n".join(long_files(root, files)) or "No source file is too long.")
    for error in errors:
        print(f"error: {error}")
    if not errors:
        print("Includes follow the table; no stray files or paths.")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
