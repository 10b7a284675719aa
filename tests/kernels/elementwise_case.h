#pragma once

// What tests of row-wise kernels share: an op is run on floats in guarded, possibly unaligned
// memory, and by its reference in double.

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "palimpsest/tensor.h"
#include "support/numeric.h"
#include "tensor/exec_context.h"

namespace palimpsest::test {

/// Sizes of rows: around every vector width, and long enough for several threads.
inline constexpr std::int64_t kWidths[] = {1, 3, 7, 8, 9, 15, 16, 17, 31, 64, 100, 129, 384, 1000};

inline Tensor f32(std::vector<float>& x, std::initializer_list<std::int64_t> sizes) {
  return Tensor::contiguous(x.data(), DType::kF32, sizes);
}
inline Tensor f64(std::vector<double>& x, std::initializer_list<std::int64_t> sizes) {
  return Tensor::contiguous(x.data(), DType::kF64, sizes);
}

/// Calls op(context, output tensor) with an output of these sizes that lies 4 bytes after an
/// aligned address between guards, with 1, 2 and 3 threads; all must give the same bits. Returns
/// the output.
inline std::vector<float> run_guarded(std::initializer_list<std::int64_t> sizes,
                                      const std::function<void(ExecContext&, const Tensor&)>& op) {
  std::vector<float> first;
  for (const int threads : {1, 2, 3}) {
    const std::int64_t n = Tensor::contiguous(nullptr, DType::kF32, sizes).numel();
    GuardedBuffer memory(n * 4, 4);
    std::fill_n(memory.as<float>(), n, -7.0f);
    ExecContext ctx(threads);
    op(ctx, Tensor::contiguous(memory.as<float>(), DType::kF32, sizes));
    EXPECT_TRUE(memory.intact());
    const std::vector<float> out(memory.as<float>(), memory.as<float>() + n);
    if (threads == 1) first = out;
    EXPECT_TRUE(bit_equal(first, out)) << threads << " threads";
  }
  return first;
}

/// Magnitudes for results whose error is relative to themselves: |want[i]| * (1 + condition[i]).
inline std::vector<double> relative_magnitude(const std::vector<double>& want,
                                              const std::vector<double>& condition = {}) {
  std::vector<double> out(want.size());
  for (std::size_t i = 0; i < want.size(); ++i)
    out[i] = std::abs(want[i]) * (1 + (condition.empty() ? 0 : std::abs(condition[i])));
  return out;
}

}  // namespace palimpsest::test
