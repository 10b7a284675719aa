#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cuda/plain_kernels.h"
#include "ops/front_door.h"
#include "ops/ops.h"
#include "ops/tensor_checks.h"

namespace palimpsest::ops {

void attention_residual(ExecContext& ctx, const AttentionResidualArgs& args) {
  const std::int64_t sources = args.sources.size(0), rows = args.y.size(0), width = args.y.size(1);
  PALIMPSEST_CHECK(is_f32(args.y, 2), "y is F32 [T, width]");
  PALIMPSEST_CHECK(args.sources.dtype == DType::kF32 && args.sources.rank == 3 && sources >= 1 &&
                       args.sources.size(1) == rows && args.sources.size(2) == width &&
                       is_f32(args.sources.rows(0, 1), 3),
                   "sources are F32 [M >= 1, T, width], contiguous within a source");
  PALIMPSEST_CHECK(is_f32(args.w, 1) && args.w.size(0) == width, "w is F32 [width]");
  PALIMPSEST_CHECK(!args.p.defined() ||
                       (is_f32(args.p, 2) && args.p.size(0) == rows && args.p.size(1) == sources),
                   "p is F32 [T, M]");
  if (const Entered op = enter(ctx, Op::kAttentionResidual, [&] { return moves(args.sources, args.y); })) compute(ctx, args, cpu::attention_residual, cuda::plain::attention_residual);
}

}  // namespace palimpsest::ops
