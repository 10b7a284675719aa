#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/glu_rows.h"
#include "kernels/cpu/grain.h"

namespace palimpsest::cpu {

void glu(ExecContext& ctx, const GluArgs& args) {
  ctx.pool.parallel_for(
      args.y.numel(), row_grain(8), [&args](std::int64_t begin, std::int64_t end, int) {
        glu_rows(args.gate.as<const float>() + begin, args.up.as<const float>() + begin,
                 args.y.as<float>() + begin, end - begin, args.params);
      });
}

}  // namespace palimpsest::cpu
