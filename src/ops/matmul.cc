#include "kernels/cpu/cpu_kernels.h"
#include "ops/front_door.h"
#include "ops/ops.h"
#include "ops/weight_checks.h"

namespace palimpsest::ops {

void matmul(ExecContext& ctx, const MatmulArgs& args) {
  check_weight(args.w);
  PALIMPSEST_CHECK(args.x.dtype == DType::kF32 && args.x.rank == 2 &&
                       args.x.size(1) == args.w.cols() && has_contiguous_rows(args.x),
                   "x is F32 [T, k] with contiguous rows");
  PALIMPSEST_CHECK(args.y.dtype == DType::kF32 && args.y.rank == 2 &&
                       args.y.size(0) == args.x.size(0) && args.y.size(1) == args.w.rows() &&
                       has_contiguous_rows(args.y),
                   "y is F32 [T, n] with contiguous rows");
  if (enter(ctx, Op::kMatmul)) cpu::matmul(ctx, args);
}

}  // namespace palimpsest::ops
