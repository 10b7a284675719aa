#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cuda/plain_kernels.h"
#include "ops/front_door.h"
#include "ops/ops.h"
#include "ops/tensor_checks.h"

namespace palimpsest::ops {

void add_bias(ExecContext& ctx, const AddBiasArgs& args) {
  PALIMPSEST_CHECK(is_f32(args.y, 2) && is_f32(args.bias, 1) && args.bias.size(0) == args.y.size(1), "y is F32 [T, width], bias F32 [width]");
  if (const Entered op = enter(ctx, Op::kAddBias, [&] { return moves(args.y, args.y); })) compute(ctx, args, cpu::add_bias, cuda::plain::add_bias);
}

}  // namespace palimpsest::ops
