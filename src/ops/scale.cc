#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cuda/plain_kernels.h"
#include "ops/front_door.h"
#include "ops/ops.h"
#include "ops/tensor_checks.h"

namespace palimpsest::ops {

void scale(ExecContext& ctx, const ScaleArgs& args) {
  PALIMPSEST_CHECK(is_f32(args.y, args.y.rank), "y is F32");
  if (const Entered op = enter(ctx, Op::kScale, [&] { return moves(args.y, args.y); })) compute(ctx, args, cpu::scale, cuda::plain::scale);
}

}  // namespace palimpsest::ops
