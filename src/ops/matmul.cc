#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cuda/plain_kernels.h"
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
  const auto work = [&] {
    return OpWork{.flops = 2.0 * static_cast<double>(args.x.size(0) * args.w.rows() * args.w.cols()),
                  .bytes = static_cast<double>(args.w.bytes()) + moves(args.x, args.y).bytes,
                  .form = stored_form(args.w)};
  };
  if (const Entered op = enter(ctx, Op::kMatmul, work)) compute(ctx, args, cpu::matmul, cuda::plain::matmul);
}

}  // namespace palimpsest::ops
