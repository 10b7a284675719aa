#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cuda/plain_kernels.h"
#include "ops/front_door.h"
#include "ops/ops.h"
#include "ops/tensor_checks.h"

namespace palimpsest::ops {

void multiply_sigmoid(ExecContext& ctx, const MultiplySigmoidArgs& args) {
  const bool one_a_row = args.x.rank == 2 && is_f32(args.gate, 2) && args.gate.size(0) == args.x.size(0) && args.gate.size(1) == 1;
  PALIMPSEST_CHECK(same_f32(args.x, args.y) && (same_f32(args.x, args.gate) || one_a_row), "x, gate and y are F32 of one shape, or gate is [T, 1]");
  if (const Entered op = enter(ctx, Op::kMultiplySigmoid, [&] { return moves(args.x, args.gate, args.y); })) compute(ctx, args, cpu::multiply_sigmoid, cuda::plain::multiply_sigmoid);
}

}  // namespace palimpsest::ops
