#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cuda/plain_kernels.h"
#include "ops/front_door.h"
#include "ops/ops.h"
#include "ops/tensor_checks.h"

namespace palimpsest::ops {

void append_one(ExecContext& ctx, const AppendOneArgs& args) {
  PALIMPSEST_CHECK(is_f32(args.x, 2) && is_f32(args.y, 2) && args.y.size(0) == args.x.size(0) && args.y.size(1) == args.x.size(1) + 1,
                   "x is F32 [R, width], y F32 [R, width + 1]");
  PALIMPSEST_CHECK(args.x.data != args.y.data, "not in place");
  if (const Entered op = enter(ctx, Op::kAppendOne, [&] { return moves(args.x, args.y); })) compute(ctx, args, cpu::append_one, cuda::plain::append_one);
}

}  // namespace palimpsest::ops
