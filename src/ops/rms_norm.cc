#include "kernels/add_norm_args.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cuda/plain_kernels.h"
#include "ops/front_door.h"
#include "ops/ops.h"
#include "ops/tensor_checks.h"

namespace palimpsest::ops {

void rms_norm(ExecContext& ctx, const RmsNormArgs& args) {
  PALIMPSEST_CHECK(
      args.x.rank == 2 && is_f32_rows(args.x) && is_f32(args.y, 2) && same_shape(args.x, args.y),
      "x and y are F32 [T, width]");
  PALIMPSEST_CHECK(is_norm_weight(args.weight, args.x.size(1)), "weight is BF16 or F32 [width]");
  if (const Entered op = enter(ctx, Op::kRmsNorm, [&] { return moves(args.x, args.y); })) compute(ctx, args, cpu::rms_norm, cuda::plain::rms_norm);
}

void add_rms_norm(ExecContext& ctx, const AddRmsNormArgs& a) {
  if (!ctx.on_device()) {
    add(ctx, {.x = a.add, .y = a.x});
    return rms_norm(ctx, {.x = a.x, .weight = a.weight, .eps = a.eps, .y = a.y});
  }
  PALIMPSEST_CHECK(same_f32(a.add, a.x) && same_f32(a.x, a.y) && a.x.rank == 2 && is_norm_weight(a.weight, a.x.size(1)), "add, x and y are F32 [T, width], the weight BF16 or F32 [width]");
  AddRmsNormArgs args = a;
  args.image = row_image(ctx, a.x.size(0), a.x.size(1), a.image);
  if (const Entered op = enter(ctx, Op::kRmsNorm, [&] { return moves(a.add, a.x, a.x, a.y); }); op && cuda::plain::add_rms_norm(args, ctx.device.stream()))
    ctx.rounded = {a.y.data, args.image.to, ctx.calls()};
}

}  // namespace palimpsest::ops
