// Dense products against the machine's limits: weight bytes per second as a share of the read
// bandwidth over a buffer of that size (few rows), operations per second as a share of the
// multiply-add rate (many rows). Where OpenBLAS is found, its sgemm is measured on the same shapes
// with F32 weights. Arguments: weight format (0 BF16, 1 F16, 2 F32, 3 MXFP4), rows of x, n, k,
// threads.

#include "bench_support.h"
#include "kernels/cpu/cpu_kernels.h"

#if defined(PALIMPSEST_HAVE_OPENBLAS)
#include <cblas.h>
#endif

namespace palimpsest::bench {
namespace {

void matmul(benchmark::State& state) {
  const auto format = static_cast<Format>(state.range(0));
  const std::int64_t rows = state.range(1), n = state.range(2), k = state.range(3);
  const int threads = static_cast<int>(state.range(4));
  const Weight weight(format, n, k);
  std::vector<float> x = random_floats(rows * k, 1), y(static_cast<std::size_t>(rows * n));
  ExecContext ctx(threads);
  const MatmulArgs args{.x = Tensor::contiguous(x.data(), DType::kF32, {rows, k}),
                        .w = weight.matrix(),
                        .y = Tensor::contiguous(y.data(), DType::kF32, {rows, n})};
  for (auto _ : state) {
    cpu::matmul(ctx, args);
    benchmark::ClobberMemory();
  }
  const std::int64_t bytes = weight.matrix().bytes();
  report_shares(state, 2.0 * static_cast<double>(rows * n * k), static_cast<double>(bytes), bytes,
                threads);
  state.SetLabel(std::string(format_name(format)) + " " + std::string(cpu::active_target()));
}

/// Decode (1 row), small batches, prefill; widths of the demonstration model, Kimi Linear (2304)
/// and Kimi K3 (3584, 7168).
void shapes(benchmark::internal::Benchmark* b) {
  for (const int threads : {1, 2}) {
    for (int format = 0; format < 4; ++format) {
      for (const std::int64_t rows : {1, 8, 512}) b->Args({format, rows, 1024, 7168, threads});
      for (const std::int64_t rows : {1, 4, 16}) b->Args({format, rows, 3072, 3584, threads});
      b->Args({format, 1, 20480, 7168, threads});
      b->Args({format, 512, 1024, 2304, threads});
      for (const std::int64_t rows : {1, 64, 512}) b->Args({format, rows, 384, 384, threads});
      for (const std::int64_t rows : {1, 64}) b->Args({format, rows, 192, 192, threads});
    }
  }
  b->ArgNames({"format", "rows", "n", "k", "threads"})
      ->UseRealTime()
      ->Unit(benchmark::kMicrosecond);
}
BENCHMARK(matmul)->Apply(shapes);

#if defined(PALIMPSEST_HAVE_OPENBLAS)
void openblas_sgemm(benchmark::State& state) {
  const std::int64_t rows = state.range(1), n = state.range(2), k = state.range(3);
  const int threads = static_cast<int>(state.range(4));
  openblas_set_num_threads(threads);
  const std::vector<float> w = random_floats(n * k, 2), x = random_floats(rows * k, 1);
  std::vector<float> y(static_cast<std::size_t>(rows * n));
  for (auto _ : state) {
    const auto m_ = static_cast<int>(rows), n_ = static_cast<int>(n), k_ = static_cast<int>(k);
    if (rows == 1) {
      cblas_sgemv(CblasRowMajor, CblasNoTrans, n_, k_, 1, w.data(), k_, x.data(), 1, 0, y.data(),
                  1);
    } else {
      cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, m_, n_, k_, 1, x.data(), k_, w.data(),
                  k_, 0, y.data(), n_);
    }
    benchmark::ClobberMemory();
  }
  report_shares(state, 2.0 * static_cast<double>(rows * n * k), static_cast<double>(n * k * 4),
                n * k * 4, threads);
}
void peer_shapes(benchmark::internal::Benchmark* b) {
  for (const int threads : {1, 2}) {
    for (const std::int64_t rows : {1, 8, 512}) b->Args({2, rows, 1024, 7168, threads});
    for (const std::int64_t rows : {1, 64, 512}) b->Args({2, rows, 384, 384, threads});
    for (const std::int64_t rows : {1, 64}) b->Args({2, rows, 192, 192, threads});
  }
  b->ArgNames({"format", "rows", "n", "k", "threads"})
      ->UseRealTime()
      ->Unit(benchmark::kMicrosecond);
}
BENCHMARK(openblas_sgemm)->Apply(peer_shapes);
#endif

}  // namespace
}  // namespace palimpsest::bench

BENCHMARK_MAIN();
