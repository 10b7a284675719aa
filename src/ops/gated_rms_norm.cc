#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cuda/plain_kernels.h"
#include "ops/front_door.h"
#include "ops/ops.h"
#include "ops/tensor_checks.h"

namespace palimpsest::ops {

void gated_rms_norm(ExecContext& ctx, const GatedRmsNormArgs& args) {
  PALIMPSEST_CHECK(args.x.rank == 3 && same_f32(args.x, args.y) && same_f32(args.x, args.gate),
                   "x, gate and y are F32 [T, H, V]");
  PALIMPSEST_CHECK(is_norm_weight(args.weight, args.x.size(2)), "weight is BF16 or F32 [V]");
  PALIMPSEST_CHECK(args.function == Unary::kSigmoid || args.function == Unary::kSilu, "gates are sigmoid or silu");
  if (const Entered op = enter(ctx, Op::kGatedRmsNorm, [&] { return moves(args.x, args.gate, args.y); })) compute(ctx, args, cpu::gated_rms_norm, cuda::plain::gated_rms_norm);
}

}  // namespace palimpsest::ops
