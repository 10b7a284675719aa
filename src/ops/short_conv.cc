#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cuda/plain_kernels.h"
#include "ops/front_door.h"
#include "ops/ops.h"
#include "ops/tensor_checks.h"

namespace palimpsest::ops {

void short_conv(ExecContext& ctx, const ShortConvArgs& args) {
  const std::int64_t channels = args.x.size(1), taps = args.weight.size(1);
  PALIMPSEST_CHECK(is_f32_rows(args.x) && is_f32(args.y, 2) && same_shape(args.x, args.y) && args.x.data != args.y.data,
                   "x and y are two F32 [T, D]");
  PALIMPSEST_CHECK(is_f32(args.weight, 2) && args.weight.size(0) == channels && taps >= 1 && taps <= 8, "weight is F32 [D, W <= 8]");
  PALIMPSEST_CHECK(is_ragged(args.rows), "one slot per sequence");
  PALIMPSEST_CHECK(args.tails.dtype == DType::kF32 && args.tails.rank == 3 && args.tails.size(1) == taps - 1 && args.tails.size(2) == channels &&
                       (taps < 2 || is_f32(args.tails.rows(0, 1), 3)),
                   "tails are F32 [slots, W - 1, D], contiguous within a slot");
  if (const Entered op = enter(ctx, Op::kShortConv, [&] { return moves(args.x, args.y, args.weight); })) compute(ctx, args, cpu::short_conv, cuda::plain::short_conv);
}

}  // namespace palimpsest::ops
