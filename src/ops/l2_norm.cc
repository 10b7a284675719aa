#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cuda/plain_kernels.h"
#include "ops/front_door.h"
#include "ops/ops.h"
#include "ops/tensor_checks.h"

namespace palimpsest::ops {

void l2_norm(ExecContext& ctx, const L2NormArgs& args) {
  PALIMPSEST_CHECK(args.x.rank == 3 && same_f32(args.x, args.y), "x and y are F32 [T, H, K]");
  if (const Entered op = enter(ctx, Op::kL2Norm, [&] { return moves(args.x, args.y); })) compute(ctx, args, cpu::l2_norm, cuda::plain::l2_norm);
}

}  // namespace palimpsest::ops
