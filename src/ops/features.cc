#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cuda/plain_kernels.h"
#include "ops/front_door.h"
#include "ops/ops.h"
#include "ops/tensor_checks.h"

namespace palimpsest::ops {

void features(ExecContext& ctx, const FeaturesArgs& args) {
  PALIMPSEST_CHECK(is_f32(args.x, 2) && is_f32(args.y, 2) && args.y.size(0) == args.x.size(0) &&
                       args.y.size(1) == feature_width(args.kind, args.x.size(1)),
                   "x is F32 [R, K], y F32 [R, feature_width]");
  PALIMPSEST_CHECK(args.x.data != args.y.data, "not in place");
  if (const Entered op = enter(ctx, Op::kFeatures, [&] { return moves(args.x, args.y); })) compute(ctx, args, cpu::features, cuda::plain::features);
}

}  // namespace palimpsest::ops
