#!/bin/bash
# Tests and programs for a machine with a Hopper GPU, its driver and glibc 2.36 or later, in one folder.
#   gpu_bundle.sh pack FOLDER BINARY...   here (the target gpu_bundle does): binaries, the libraries they need, what tests read
#   FOLDER/run.sh [FILTER]                there: everything with the label gpu, models and engine on the device, selfcheck; logs in $OUT or FOLDER/logs
set -eu
if [ "${1:-}" = pack ]; then
  to=$2 root=$(cd "$(dirname "$0")/.." && pwd)
  shift 2
  rm -rf "$to"
  mkdir -p "$to"/{bin,lib} "$to"/project/{tests,models,bench,fuzz}
  for binary in "$@"; do strip -o "$to/bin/$(basename "$binary")" "$binary"; done
  ldd "$@" | awk '$2 == "=>" && $3 ~ /^\// {print $3}' | grep -vE '/(libc|libm|libdl|librt|libpthread|libresolv)\.so' | sort -u | xargs -r cp -L -t "$to/lib"
  cp -r "$root"/tests/{golden,data} "$to/project/tests"
  cp -r "$root/models/demo" "$to/project/models"
  cp -r "$root/bench/shapes" "$to/project/bench"
  cp -r "$root/fuzz/seeds" "$to/project/fuzz"
  cp "$0" "$to/run.sh"
  echo "$to: $(du -sh "$to" | cut -f1); copy it to the machine with the GPU and start run.sh there"
  exit
fi

here=$(cd "$(dirname "$0")" && pwd)
logs=${OUT:-$here/logs} filter=${1:-*} failed=0
mkdir -p "$logs"
export LD_LIBRARY_PATH=$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} PALIMPSEST_PROJECT=${PALIMPSEST_PROJECT:-$here/project} PALIMPSEST_TEST_DEVICE=cuda
step() {  # NAME COMMAND...
  local name=$1 start=$SECONDS
  shift
  if "$@" >"$logs/$name.log" 2>&1; then result=ok; else result=FAILED failed=1; fi
  if grep -q '^\[  PASSED  \] 0 tests' "$logs/$name.log"; then result="FAILED (nothing ran: is there a GPU?)" failed=1; fi
  echo "$name: $result, $((SECONDS - start)) s; $(grep -E '^\[  (PASSED|FAILED)  \] [0-9]|^\[  SKIPPED \] [0-9]' "$logs/$name.log" | tr -s ' \n' ' ')"
}
step test_gpu "$here/bin/test_gpu" --gtest_filter="$filter"
if [ "$filter" = '*' ]; then
  step test_device_ops "$here/bin/test_device_ops" --gtest_filter='*SCALAR*'
  step test_model "$here/bin/test_model" --gtest_filter='*Golden*:*DeviceModel*:*Visit*:WeightStream*:HostExperts*:*Fla*:*Vision*'
  step test_runtime "$here/bin/test_runtime" --gtest_filter='Models*:Session*:Generate*:*Reuse*:ChatBorders*:GoldenPictures*'
  step test_engine "$here/bin/test_engine"
  for mode in "" "--cpu-moe --host-experts stream" "--cpu-moe --host-experts compute"; do
    # shellcheck disable=SC2086
    step "selfcheck${mode:+_${mode##* }}" "$here/bin/palimpsest" selfcheck -m "$PALIMPSEST_PROJECT/models/demo" --device cuda --quick $mode
  done
fi
exit $failed
