#!/bin/bash
# Products on tensor cores on a machine with a Hopper GPU, nvcc and g++ alone.
#   device_products.sh pack FOLDER    here: sources and headers of libraries that the other machine may lack (2 MB)
#   FOLDER/run.sh [test|bench|all]    there: builds with all processors, tests, measures; tables at the end, logs in $OUT
set -eu
if [ "${1:-}" = pack ]; then
  root=$(cd "$(dirname "$0")/.." && pwd)
  mkdir -p "$2/lib"
  (cd "$root" && tar -c include src/base src/tensor src/kernels/*.h src/kernels/ref src/kernels/cuda tests/gpu tests/support tests/kernels/block_weights.h bench/kernels) | tar -x -C "$2"
  cp -r /usr/include/fmt /usr/include/tl "$2/lib"
  cp -r /usr/src/googletest/googletest "$2/lib/gtest"
  rm -rf "$2/lib/gtest/test" "$2/lib/gtest/samples" "$2/lib/gtest/docs"
  cp "$0" "$2/run.sh"
  exit
fi

cd "$(dirname "$0")"
what=${1:-all}
out=${OUT:-/tmp}
b=/tmp/products
mkdir -p $b
nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
flags="-std=c++20 -O3 -DFMT_HEADER_ONLY -Iinclude -Isrc -Ilib"
cat >$b/main.cu <<'END'
#include <cstring>

#include "kernels/cases.h"
int main(int argc, char** argv) {
  if (argc > 1) palimpsest::bench::selection().text = argv[1];
  palimpsest::bench::Report report;
  palimpsest::bench::product_cases(report);
  return report.all_right() ? 0 : 1;
}
END
{
  for f in tiles wide cuda_device device_memory devices graph plain/experts plain/router plain/elementwise plain/norms plain/delta_prepare; do
    echo "$nvcc -gencode=arch=compute_90a,code=sm_90a $flags --expt-relaxed-constexpr --fmad=false -Xptxas -v -c src/kernels/cuda/$f.cu -o $b/$(basename $f).o >$b/$(basename $f).log 2>&1 || { echo FAILED $f; grep -m5 error $b/$(basename $f).log; }"
  done
  for f in bench/kernels/harness bench/kernels/product_cases $b/main; do
    echo "$nvcc -gencode=arch=compute_90a,code=sm_90a $flags --expt-relaxed-constexpr -Ibench -c $f.cu -o $b/bench_$(basename $f).o || echo FAILED $f"
  done
  for f in src/base/error src/tensor/tensor src/tensor/buffer src/tensor/device; do echo "g++ $flags -c $f.cc -o $b/host_$(basename $f).o || echo FAILED $f"; done
  for f in tests/gpu/tiles_test tests/gpu/router_test tests/gpu/delta_prepare_test; do echo "g++ $flags -ffp-contract=off -Itests -Ilib/gtest/include -c $f.cc -o $b/test_$(basename $f).o || echo FAILED $f"; done
  for f in gtest-all gtest_main; do echo "g++ -std=c++20 -O1 -Ilib/gtest -Ilib/gtest/include -c lib/gtest/src/$f.cc -o $b/test_$f.o || echo FAILED $f"; done
} | xargs -d '\n' -P "$(nproc)" -I{} bash -c '{}'
grep -h "spill stores" $b/*.log | grep -v " 0 bytes spill stores" || echo "no kernel spills registers"
grep -h C75 $b/*.log | head -5 || true
k="$b/tiles.o $b/wide.o $b/cuda_device.o $b/device_memory.o $b/devices.o $b/graph.o $b/experts.o $b/router.o $b/elementwise.o $b/norms.o $b/delta_prepare.o $b/host_*.o"
$nvcc -arch=sm_90 $b/bench_*.o $k -o $b/bench -ldl
$nvcc -arch=sm_90 $b/test_*.o $k -o $b/test -lpthread
if [ "$what" != bench ]; then
  timeout 240 $b/test >"$out/products_test.log" 2>&1 || echo "TESTS FAILED"
  grep -E "OK \]|FAILED|PASSED|Failure|which is|Which is|differ|columns|parts" "$out/products_test.log" | cut -c1-300 | tail -60
fi
if [ "$what" != test ]; then
  LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-}:$(dirname "$(find / -name libcublas.so.13 -not -path '/proc/*' 2>/dev/null | head -1)") timeout 200 $b/bench >"$out/products_bench.log" 2>&1 || echo "BENCH: WRONG OR STOPPED"
  grep -E "TFLOP/s$|TB/s by|floor" "$out/products_bench.log"
fi
