#include <algorithm>

#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/grain.h"

namespace palimpsest::cpu {

void append_one(ExecContext& ctx, const AppendOneArgs& args) {
  const std::int64_t width = args.x.size(1);
  ctx.pool.parallel_for(args.x.size(0), row_grain(width), [&args, width](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t r = begin; r < end; ++r) {
      *std::copy_n(args.x.at<const float>(r), width, args.y.at<float>(r)) = 1;
    }
  });
}

}  // namespace palimpsest::cpu
