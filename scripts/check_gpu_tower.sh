#!/usr/bin/env bash
# The vision tower on a GPU: builds for it, runs what tests it there, and measures it. Where nvcc and the GPU are:
#     scripts/check_gpu_tower.sh [BUILD_FOLDER]
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:-build/gpu-tower}
cmake --preset release -B "$build" -DPALIMPSEST_CUDA=ON > /dev/null
cmake --build "$build" --target test_device_ops test_model test_runtime test_engine test_server bench_vision
export PALIMPSEST_TEST_DEVICE=cuda
"$build"/tests/gpu/test_device_ops --gtest_filter='*Patch*:*Vision*:*Gelu*'
"$build"/tests/model/test_model --gtest_filter='GoldenVision.*'
"$build"/tests/runtime/test_runtime --gtest_filter='GoldenPictures.*'
"$build"/tests/engine/test_engine --gtest_filter='PicturesInTheEngine.*'
"$build"/tests/server/test_server --gtest_filter='PicturesInChats.*'  # a tower on the host, a text model on the device
"$build"/bench/bench_vision --benchmark_filter=tower_on_device
