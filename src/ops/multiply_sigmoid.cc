#include "kernels/cpu/cpu_kernels.h"
#include "ops/front_door.h"
#include "ops/ops.h"
#include "ops/tensor_checks.h"

namespace palimpsest::ops {

void multiply_sigmoid(ExecContext& ctx, const MultiplySigmoidArgs& args) {
  PALIMPSEST_CHECK(same_f32(args.x, args.y) && same_f32(args.x, args.gate),
                   "x, gate and y are F32 of one shape");
  if (enter(ctx, Op::kMultiplySigmoid)) cpu::multiply_sigmoid(ctx, args);
}

}  // namespace palimpsest::ops
