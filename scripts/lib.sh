# Shared by the scripts of this folder: sourced, not run.

# say TEXT: one line about what happens next, apart from the output of the tools.
say() { printf '\n== %s\n' "$*"; }

fail() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

# part NAME COMMAND...: runs the command and prints the minutes it took; a failure ends the script with its exit code.
part() {
  local name=$1 start=$SECONDS code=0
  shift
  say "$name"
  "$@" || code=$?
  printf '== %s: %s min\n' "$name" "$(awk -v s=$((SECONDS - start)) 'BEGIN { printf "%.1f", s / 60 }')"
  if [ "$code" -ne 0 ]; then
    printf 'error: %s failed (exit code %s)\n' "$name" "$code" >&2
    exit "$code"
  fi
}

# configure PRESET [OPTION...]: runs CMake for a preset; quiet when nothing is new.
configure() {
  local preset=$1
  shift
  cmake --preset "$preset" "$@" --log-level=STATUS | grep -E -v '^-- (Detecting|Check for|Checking|Performing|Looking)' || return 1
}

jobs=$(nproc)
