#pragma once

// What micro-benchmarks share: the limits of this machine, measured once in the same process with
// the same number of threads, and counters that give a kernel's share of them.

#include <benchmark/benchmark.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include "base/number_formats.h"
#include "base/rng.h"
#include "machine/machine.h"
#include "palimpsest/tensor.h"
#include "tensor/buffer.h"

namespace palimpsest::bench {

/// F32 operations per second, see measure_fma_rate.
inline double fma_limit(int threads) {
  static std::map<int, double> known;
  const auto [at, is_new] = known.try_emplace(threads);
  if (is_new) at->second = measure_fma_rate(threads);
  return at->second;
}

/// Bytes per second over a working set of this size, see measure_read_bandwidth.
inline double read_limit(std::int64_t bytes, int threads) {
  static std::map<std::pair<std::int64_t, int>, double> known;
  const auto [at, is_new] = known.try_emplace({bytes, threads});
  if (is_new) at->second = measure_read_bandwidth(bytes, threads);
  return at->second;
}

/// Bytes per second read and written, see measure_update_bandwidth.
inline double update_limit(std::int64_t bytes, int threads) {
  static std::map<std::pair<std::int64_t, int>, double> known;
  const auto [at, is_new] = known.try_emplace({bytes, threads});
  if (is_new) at->second = measure_update_bandwidth(bytes, threads);
  return at->second;
}

/// Adds counters to a benchmark: FLOP/s and bytes/s, and their shares of the machine's limits.
/// `operations` and `bytes`: F32 operations (two a multiply-add) and bytes that one iteration must
/// at least do and read; `working_set`: bytes that iterations read in turn, which decides the cache
/// they come from. A share near 1 of either limit means that there is nothing left to gain.
inline void report_shares(benchmark::State& state, double operations, double bytes,
                          std::int64_t working_set, int threads) {
  using benchmark::Counter;
  const double iterations = static_cast<double>(state.iterations());
  state.counters["flops"] = Counter(operations * iterations, Counter::kIsRate);
  state.counters["read"] = Counter(bytes * iterations, Counter::kIsRate, Counter::kIs1024);
  state.counters["of_fma"] =
      Counter(operations * iterations / fma_limit(threads), Counter::kIsRate);
  state.counters["of_read"] =
      Counter(bytes * iterations / read_limit(working_set, threads), Counter::kIsRate);
}

enum class Format : int { kBf16, kF16, kF32, kMxfp4 };
inline const char* format_name(Format format) {
  static constexpr const char* kNames[] = {"BF16", "F16", "F32", "MXFP4"};
  return kNames[static_cast<int>(format)];
}

/// A matrix of plausible weights in memory of its own.
class Weight {
 public:
  Weight(Format format, std::int64_t rows, std::int64_t cols) {
    if (format == Format::kMxfp4) {
      codes_ = Buffer(rows * cols / 2);
      scales_ = Buffer(rows * cols / 32);
      for (std::int64_t i = 0; i < codes_.bytes(); ++i)
        codes_.data()[i] = static_cast<std::byte>(i * 37);
      std::memset(scales_.data(), 120, static_cast<std::size_t>(scales_.bytes()));
      matrix_.mx.codes = codes_.view(DType::kU8, {rows, cols / 2});
      matrix_.mx.scales = scales_.view(DType::kU8, {rows, cols / 32});
      return;
    }
    const DType dtype = format == Format::kBf16  ? DType::kBF16
                        : format == Format::kF16 ? DType::kF16
                                                 : DType::kF32;
    codes_ = Buffer(rows * cols * dtype_size(dtype));
    for (std::int64_t i = 0; i < rows * cols; ++i) {
      const float value = static_cast<float>(i * 31 % 17 - 8) / 64;
      const std::uint16_t half =
          format == Format::kBf16 ? float_to_bf16(value) : float_to_f16(value);
      if (dtype == DType::kF32)
        std::memcpy(codes_.data() + 4 * i, &value, 4);
      else
        std::memcpy(codes_.data() + 2 * i, &half, 2);
    }
    matrix_.dense = codes_.view(dtype, {rows, cols});
  }
  const Matrix& matrix() const { return matrix_; }

 private:
  Buffer codes_, scales_;
  Matrix matrix_;
};

/// n numbers uniform in [-1, 1).
inline std::vector<float> random_floats(std::int64_t n, std::uint64_t seed) {
  std::vector<float> x(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < x.size(); ++i)
    x[i] = static_cast<float>(2 * base::uniform(seed, i, 0) - 1);
  return x;
}

}  // namespace palimpsest::bench
