#!/usr/bin/env bash
# install_test.sh BUILD SOURCE CMAKE COMPILER: installs a finished build and uses what was installed, as a stranger would.
set -euo pipefail
build=$1 source=$2 cmake=$3 compiler=$4
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
  echo "FAILED: $*" >&2
  exit 1
}

"$cmake" --install "$build" --prefix "$work/first" > "$work/install.log" || { cat "$work/install.log"; fail "cmake --install"; }
# An installed tree may be moved: nothing in it may name where it was first.
mv "$work/first" "$work/prefix"
prefix=$work/prefix

echo "-- files"
libdir=$(dirname "$(find "$prefix" -name libpalimpsest.a)")
for file in "$prefix/bin/palimpsest" "$libdir/libpalimpsest.so" "$libdir/pkgconfig/palimpsest.pc" \
  "$libdir/cmake/palimpsest/palimpsestConfig.cmake" "$prefix/include/palimpsest/session.h" "$prefix/share/man/man1/palimpsest.1" \
  "$prefix/share/bash-completion/completions/palimpsest" "$prefix/share/zsh/site-functions/_palimpsest" \
  "$prefix/share/fish/vendor_completions.d/palimpsest.fish"; do
  [ -s "$file" ] || fail "missing or empty: ${file#"$prefix"/}"
done
bash -n "$prefix/share/bash-completion/completions/palimpsest"
"$prefix/bin/palimpsest" --version
readelf -d "$libdir/libpalimpsest.so" | grep -q 'SONAME.*libpalimpsest\.so\.[0-9]' || fail "the shared library has no versioned name"

# check PROGRAM: its output must begin with the prompt and go on.
prompt="It was a dark night, and"
check() {
  local text
  text=$("$@" "$source/models/demo" "$prompt")
  echo "$text"
  [ "${text:0:${#prompt}}" = "$prompt" ] || fail "$1 does not begin with the prompt"
  [ ${#text} -gt $((${#prompt} + 20)) ] || fail "$1 wrote no continuation"
}

echo "-- CMake package, shared and static"
"$cmake" -S "$source/examples" -B "$work/cmake" -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_CXX_COMPILER="$compiler" > "$work/configure.log" 2>&1 ||
  { cat "$work/configure.log"; fail "find_package"; }
"$cmake" --build "$work/cmake" > "$work/build.log" 2>&1 || { cat "$work/build.log"; fail "building examples/"; }
check "$work/cmake/stream"
check "$work/cmake/stream_static"

echo "-- pkg-config"
export PKG_CONFIG_PATH=$libdir/pkgconfig
# shellcheck disable=SC2046
"$compiler" -std=c++20 "$source/examples/stream.cc" -o "$work/stream" $(pkg-config --cflags --libs palimpsest)
check env LD_LIBRARY_PATH="$libdir" "$work/stream"

echo "-- errors"
code=0
"$work/cmake/stream" "$work/no-such-model" x 2> "$work/error.txt" || code=$?
[ "$code" -eq 1 ] || fail "exit code $code for a missing model"
grep -q "no-such-model" "$work/error.txt" || fail "the error does not name the folder"
