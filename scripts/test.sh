#!/usr/bin/env bash
# Builds palimpsest with warnings as errors and runs its tests; ctest's summary comes last.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh

usage() {
  cat <<'TEXT'
usage: scripts/test.sh [--sanitize] [--long] [--clients]

Installs missing Debian packages (as root or with sudo), builds in build/release and runs every test but the long ones.
  --sanitize   first: AddressSanitizer and UndefinedBehaviorSanitizer over formats, hub, text, grammar, media,
               state, model, convert, runtime, server, selfcheck and lineage; ThreadSanitizer over base, hub, runtime, engine
               and server; each fuzzer for 20 seconds
  --long       also the tests labelled long, and the numeric tests on the scalar and the AVX2 kernels
  --clients    before all tests: the server driven by openai, anthropic, schemathesis (a minute) and, in Chromium, Playwright, which are
               installed in build/clients (pip) and as a Debian package; without it the tests that use them are skipped
Tests that need data outside the repository look for it in $PALIMPSEST_SHARED (default ../shared) and are skipped without it.
TEXT
}

sanitize=no
long=no
clients=no
for argument in "$@"; do
  case $argument in
    --sanitize) sanitize=yes ;;
    --long) long=yes ;;
    --clients) clients=yes ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; fail "unknown option: $argument" ;;
  esac
done

# Minutes each under sanitizers and on scalar kernels, and the tiny models go through the same code.
demo_model_tests='(^DemoModel|^ChatBorders|^PeakMemory|/demo)'

# Folders whose results depend on the SIMD target.
numeric_labels='^(kernels|ops|model|runtime)$'

# build PRESET [TARGET...]
build() {
  local preset=$1
  shift
  cmake --build --preset "$preset" -j "$jobs" ${1:+--target "$@"}
}

run_tests() {
  local preset=$1
  shift
  ctest --test-dir "build/$preset" --output-on-failure -j "$jobs" "$@"
}

fuzz_all() {
  local fuzzer name corpus seeds
  for fuzzer in build/fuzz/fuzz/fuzz_*; do
    name=${fuzzer##*/fuzz_}
    corpus=build/fuzz/corpus/$name
    mkdir -p "$corpus" build/fuzz/findings
    seeds=()
    [ -d "fuzz/seeds/$name" ] && seeds+=("fuzz/seeds/$name")
    [ "$name" = config ] && [ -d "$shared/fuzz" ] && seeds+=("$shared/fuzz")
    "$fuzzer" -max_total_time=20 -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 -verbosity=0 \
      -artifact_prefix="build/fuzz/findings/$name-" "$corpus" "${seeds[@]}" > "build/fuzz/$name.log" 2>&1 ||
      { tail -n 60 "build/fuzz/$name.log"; echo "fuzz_$name: a finding, kept in build/fuzz/findings"; return 1; }
    echo "fuzz_$name: $(sed -n 's/^stat::number_of_executed_units: *//p' "build/fuzz/$name.log") inputs, no finding"
  done
}

# The server as its users drive it.
install_clients() {
  { [ -x build/clients/bin/python ] || python3 -m venv build/clients; } &&
    build/clients/bin/pip install --quiet --disable-pip-version-check -r tools/clients.txt
}
test_clients() {
  local python=build/clients/bin/python palimpsest=build/release/bin/palimpsest
  "$python" tools/check_api_clients.py "$palimpsest" models/demo &&
    "$python" tools/check_web_page.py "$palimpsest" models/demo &&
    "$python" tools/fuzz_api.py "$palimpsest" --seconds 60 --phases fuzzing
}

shared=${PALIMPSEST_SHARED:-../shared}
if ! command -v nvcc > /dev/null && [ -x /usr/local/cuda/bin/nvcc ]; then
  export CUDACXX=/usr/local/cuda/bin/nvcc
fi

packages=(--tests)
[ "$sanitize" = yes ] && packages+=(--sanitize)
[ "$clients" = yes ] && packages+=(--clients)
part "install packages" scripts/install_dependencies.sh "${packages[@]}"

if [ "$sanitize" = yes ]; then
  part "configure asan" configure asan
  part "build asan" build asan test_formats test_hub test_text test_grammar test_media test_state test_model test_convert test_runtime test_server test_selfcheck test_lineage
  part "test asan" run_tests asan -L '^(formats|hub|text|grammar|media|state|model|convert|runtime|server|selfcheck|lineage)$' -LE '^long$' -E "$demo_model_tests"
  part "configure tsan" configure tsan
  part "build tsan" build tsan test_base test_hub test_runtime test_engine test_server
  part "test tsan" run_tests tsan -L '^(base|hub|runtime|engine|server)$' -LE '^long$' -E "$demo_model_tests"
  part "configure fuzzers" configure fuzz
  part "build fuzzers" build fuzz fuzz/all
  part "fuzz" fuzz_all
fi

started=$(date +%s)
part "configure release" configure release
part "build release" build release
python3 scripts/slowest_files.py build/release/.ninja_log "$started"
say "running with $(build/release/bin/palimpsest --version)"

if [ "$clients" = yes ]; then
  part "install clients" install_clients
  part "test clients" test_clients
fi

if [ "$long" = yes ]; then
  part "test scalar kernels" env PALIMPSEST_TARGET=SCALAR ctest --test-dir build/release --output-on-failure -j "$jobs" -L "$numeric_labels" -LE '^long$' -E "$demo_model_tests"
  part "test AVX2 kernels" env PALIMPSEST_TARGET=AVX2 ctest --test-dir build/release --output-on-failure -j "$jobs" -L "$numeric_labels" -LE '^long$'
  say "test, with the long ones"
  run_tests release
else
  say "test"
  run_tests release -LE '^long$'
fi
