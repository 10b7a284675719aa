#include "kernels/cpu/cpu_kernels.h"
#include "ops/front_door.h"
#include "ops/ops.h"
#include "ops/tensor_checks.h"

namespace palimpsest::ops {

void sigmoid(ExecContext& ctx, const SigmoidArgs& args) {
  PALIMPSEST_CHECK(same_f32(args.x, args.y), "x and y are F32 of one shape");
  if (enter(ctx, Op::kSigmoid)) cpu::sigmoid(ctx, args);
}

}  // namespace palimpsest::ops
