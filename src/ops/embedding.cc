#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cuda/plain_kernels.h"
#include "ops/front_door.h"
#include "ops/ops.h"
#include "ops/weight_checks.h"

namespace palimpsest::ops {

void embedding(ExecContext& ctx, const EmbeddingArgs& args) {
  check_weight(args.table);
  PALIMPSEST_CHECK(args.ids.dtype == DType::kI32 && args.ids.rank == 1 && args.ids.is_contiguous(),
                   "ids are I32 [T]");
  PALIMPSEST_CHECK(args.out.dtype == DType::kF32 && args.out.rank == 2 &&
                       args.out.size(0) == args.ids.size(0) &&
                       args.out.size(1) == args.table.cols() && has_contiguous_rows(args.out),
                   "out is F32 [T, width] with contiguous rows");
  if (const Entered op = enter(ctx, Op::kEmbedding, [&] { return moves(args.out); })) compute(ctx, args, cpu::embedding, cuda::plain::embedding);
}

}  // namespace palimpsest::ops
