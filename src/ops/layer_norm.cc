#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cuda/plain_kernels.h"
#include "ops/front_door.h"
#include "ops/ops.h"
#include "ops/tensor_checks.h"

namespace palimpsest::ops {

void layer_norm(ExecContext& ctx, const LayerNormArgs& args) {
  PALIMPSEST_CHECK(args.x.rank == 2 && same_f32(args.x, args.y), "x and y are F32 [T, width]");
  PALIMPSEST_CHECK(is_f32(args.weight, 1) && is_f32(args.bias, 1) && args.weight.size(0) == args.x.size(1) && same_shape(args.weight, args.bias),
                   "weight and bias are F32 [width]");
  if (const Entered op = enter(ctx, Op::kLayerNorm, [&] { return moves(args.x, args.y); })) compute(ctx, args, cpu::layer_norm, cuda::plain::layer_norm);
}

}  // namespace palimpsest::ops
