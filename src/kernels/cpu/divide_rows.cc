#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/grain.h"

// Rows are short (one head) and the op is small beside the projections around it, so the sums are plain loops in order.

namespace palimpsest::cpu {

void divide_rows(ExecContext& ctx, const DivideRowsArgs& args) {
  const std::int64_t width = args.x.size(1);
  ctx.pool.parallel_for(args.x.size(0), row_grain(width), [&args, width](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t r = begin; r < end; ++r) {
      const float* x = args.x.at<const float>(r);
      float* y = args.y.at<float>(r);
      float divisor = 0;
      if (args.divisor.defined()) {
        divisor = *args.divisor.at<const float>(r);
      } else {
        for (std::int64_t c = 0; c < width; ++c) divisor += x[c];
      }
      divisor += args.eps;
      for (std::int64_t c = 0; c < width; ++c) y[c] = x[c] / divisor;
    }
  });
}

}  // namespace palimpsest::cpu
