#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cuda/plain_kernels.h"
#include "ops/front_door.h"
#include "ops/ops.h"
#include "ops/tensor_checks.h"

namespace palimpsest::ops {

void divide_rows(ExecContext& ctx, const DivideRowsArgs& args) {
  PALIMPSEST_CHECK(is_f32_rows(args.x) && is_f32(args.y, 2) && same_shape(args.x, args.y), "x and y are F32 [R, width]");
  PALIMPSEST_CHECK(args.x.data != args.y.data || args.x.is_contiguous(), "in place only where rows touch");
  PALIMPSEST_CHECK(!args.divisor.defined() || (is_f32_rows(args.divisor) && args.divisor.size(0) == args.x.size(0) && args.divisor.size(1) == 1),
                   "the divisor is F32 [R, 1]");
  if (const Entered op = enter(ctx, Op::kDivideRows, [&] { return moves(args.x, args.divisor, args.y); })) compute(ctx, args, cpu::divide_rows, cuda::plain::divide_rows);
}

}  // namespace palimpsest::ops
