#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cuda/plain_kernels.h"
#include "ops/front_door.h"
#include "ops/ops.h"
#include "ops/tensor_checks.h"

namespace palimpsest::ops {

void multiply(ExecContext& ctx, const MultiplyArgs& args) {
  PALIMPSEST_CHECK(same_f32(args.x, args.y), "x and y are F32 of one shape");
  if (const Entered op = enter(ctx, Op::kMultiply, [&] { return moves(args.x, args.y, args.y); })) compute(ctx, args, cpu::multiply, cuda::plain::multiply);
}

}  // namespace palimpsest::ops
