#!/usr/bin/env bash
# Builds palimpsest and shows it: the demo model continues a text, then recalls facts across thousands of tokens.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh

if [ "${1:-}" = -h ] || [ "${1:-}" = --help ]; then
  cat <<'TEXT'
usage: scripts/demo.sh ["beginning of a text"]

Installs missing Debian packages (as root or with sudo), builds the release binary in build/demo, continues the text with the
model of models/demo, and shows a fact told, overwritten and recalled with the memory it takes.
TEXT
  exit 0
fi
prompt=${1:-The old house stood at the end of the lane, and}

part "install packages" scripts/install_dependencies.sh
# With the tests' flags where they are built as well, so that the compiler's cache serves both.
part "configure" configure demo ${CI:+-DPALIMPSEST_WERROR=ON}
part "build" cmake --build --preset demo -j "$jobs" --target palimpsest_cli
palimpsest=build/demo/bin/palimpsest

say "the demo model continues: $prompt"
printf '%s' "$prompt"
"$palimpsest" run -m models/demo --raw -p "$prompt" -n 160 --temp 0.8 --top-p 0.95

say "a fact told, overwritten and recalled"
"$palimpsest" recall -m models/demo
