#!/usr/bin/env bash
# Installs the Debian packages that palimpsest is built from: only those that are missing, and only those the task at hand needs.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh

usage() {
  cat <<'TEXT'
usage: scripts/install_dependencies.sh [--tests] [--sanitize] [--clients] [--list]

Installs what is missing for building the palimpsest binary; Debian 12 is the platform this is tested on.
  --tests      also what the tests and benchmarks need
  --sanitize   also clang 19, for the fuzzers
  --clients    also Chromium and what Python environments take, for the tests of the server's clients
  --list       print the packages and their purpose, install nothing
TEXT
}

# package : what it is for
build_packages='
g++               : compiler (12 or later)
cmake             : build description (3.25 or later)
ninja-build       : build tool
pkg-config        : finds Highway and PCRE2
python3           : generates the manual page and completions, checks the tree
ccache            : keeps compiled objects, so that a second build takes seconds
libfmt-dev        : text formatting
libspdlog-dev     : logging
libsimdjson-dev   : JSON of large checkpoint indexes
nlohmann-json3-dev: JSON of configurations and chats
libcli11-dev      : command line
libpcre2-dev      : regular expressions of the pre-tokenizer
libutf8proc-dev   : Unicode normal forms
libhwy-dev        : SIMD kernels with run-time dispatch (Highway)
libexpected-dev   : result type of the parsers (tl::expected)
libzstd-dev       : compression of snapshots on disk
libxxhash-dev     : checksums of snapshots and session files
libpng-dev        : PNG pictures
libjpeg62-turbo-dev: JPEG pictures (libjpeg-turbo)
libwebp-dev       : WebP pictures
libgif-dev        : GIF pictures
libcurl4-openssl-dev: downloads of models (libcurl)
libboost1.81-dev  : HTTP of the server (Beast and Asio, headers alone)
libssl-dev        : checksums of what was downloaded (OpenSSL)
'
test_packages='
libgtest-dev      : unit tests
libgmock-dev      : matchers for them
librapidcheck-dev : property tests
libbenchmark-dev  : micro-benchmarks
'
sanitize_packages='
clang-19          : compiler of the fuzzers
libclang-rt-19-dev: libFuzzer and the sanitizer runtimes
llvm-19           : readable stack traces in their reports
'
clients_packages='
chromium          : the web page is driven in it
python3-venv      : environment of the Python clients
'

wanted=$build_packages
list_only=no
for argument in "$@"; do
  case $argument in
    --tests) wanted+=$test_packages ;;
    --sanitize) wanted+=$sanitize_packages ;;
    --clients) wanted+=$clients_packages ;;
    --list) list_only=yes ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; fail "unknown option: $argument" ;;
  esac
done
if [ "$list_only" = yes ]; then
  printf '%s\n' "$wanted" | sed '/^$/d'
  exit 0
fi

command -v dpkg-query > /dev/null && command -v apt-get > /dev/null ||
  fail "this is not a Debian system (no dpkg-query or apt-get): install by hand what scripts/install_dependencies.sh --list names"

missing=()
while read -r package; do
  [ "$(dpkg-query --show --showformat='${db:Status-Status}' "$package" 2> /dev/null)" = installed ] || missing+=("$package")
done < <(printf '%s\n' "$wanted" | sed -n 's/ *:.*//p')

if [ ${#missing[@]} -eq 0 ]; then
  echo "All packages are installed."
  exit 0
fi

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo > /dev/null || fail "these packages are missing, and installing them takes root or sudo: ${missing[*]}"
  as_root=(sudo)
fi
echo "Installing with apt-get: ${missing[*]}"
"${as_root[@]}" apt-get update --quiet=2
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install --yes --quiet=2 --no-install-recommends "${missing[@]}" < /dev/null
