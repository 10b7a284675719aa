#include <algorithm>
#include <cmath>

#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/grain.h"

// Feature maps of linear attention. Rows are one head; exponentials are the library's: few checkpoints use these maps, and the projections around
// them cost far more.

namespace palimpsest::cpu {
namespace {

/// softmax(2x | -2x). The largest exponent is taken off first, so nothing overflows.
void hedgehog(const float* x, std::int64_t width, float* y) {
  float largest = 0, sum = 0;
  for (std::int64_t c = 0; c < width; ++c) largest = std::max(largest, 2 * std::abs(x[c]));
  for (std::int64_t c = 0; c < width; ++c) {
    y[c] = std::exp(2 * x[c] - largest);
    y[width + c] = std::exp(-2 * x[c] - largest);
  }
  for (std::int64_t i = 0; i < 2 * width; ++i) sum += y[i];
  for (std::int64_t i = 0; i < 2 * width; ++i) y[i] /= sum;
}

/// r[i] r[(i - j) mod 2K] for j = 1 .. 4, r = relu(x | -x).
void dpfp(const float* x, std::int64_t width, float* y) {
  const std::int64_t n = 2 * width;
  const auto r = [&](std::int64_t i) { return std::max(i < width ? x[i] : -x[i - width], 0.0f); };
  for (std::int64_t j = 1; j <= 4; ++j) {
    for (std::int64_t i = 0; i < n; ++i) y[(j - 1) * n + i] = r(i) * r((i + 4 * n - j) % n);
  }
}

}  // namespace

void features(ExecContext& ctx, const FeaturesArgs& args) {
  const std::int64_t width = args.x.size(1);
  ctx.pool.parallel_for(args.x.size(0), row_grain(16 * width), [&args, width](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t row = begin; row < end; ++row) {
      const auto map = args.kind == Features::kHedgehog ? hedgehog : dpfp;
      map(args.x.at<const float>(row), width, args.y.at<float>(row));
    }
  });
}

}  // namespace palimpsest::cpu
