#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cuda/plain_kernels.h"
#include "ops/front_door.h"
#include "ops/one_row_ops.h"
#include "ops/ops.h"
#include "ops/tensor_checks.h"

namespace palimpsest::ops {
namespace {

void check_router(const RouterArgs& args) {
  const std::int64_t rows = args.logits.size(0), experts = args.logits.size(1);
  PALIMPSEST_CHECK(is_f32(args.logits, 2), "logits are F32 [T, E]");
  PALIMPSEST_CHECK(!args.bias.defined() || (is_f32(args.bias, 1) && args.bias.size(0) == experts), "bias is F32 [E] or absent");
  PALIMPSEST_CHECK(args.n_group >= 1 && experts % args.n_group == 0, "experts split evenly into groups");
  PALIMPSEST_CHECK(args.topk_group >= 1 && args.topk_group <= args.n_group, "1 <= topk_group <= n_group");
  PALIMPSEST_CHECK(args.top_k >= 1 && args.top_k <= experts / args.n_group * args.topk_group, "the allowed groups hold at least top_k experts");
  PALIMPSEST_CHECK(args.ids.dtype == DType::kI32 && args.ids.rank == 2 && args.ids.is_contiguous() && args.ids.size(0) == rows &&
                       args.ids.size(1) == args.top_k,
                   "ids are I32 [T, top_k]");
  PALIMPSEST_CHECK(is_f32(args.weights, 2) && same_shape(args.weights, args.ids), "weights are F32 [T, top_k]");
}

}  // namespace

void router(ExecContext& ctx, const RouterArgs& args) {
  check_router(args);
  if (const Entered op = enter(ctx, Op::kRouter, [&] { return moves(args.logits, args.ids, args.weights); })) compute(ctx, args, cpu::router, cuda::plain::router);
}

void router_beside(ExecContext& ctx, const RouterArgs& args, const GatedProductArgs& product) {
  if (!ctx.on_device() || ctx.planning() || ctx.profile || !cuda::takes_router_beside(args, product, activation_parts(ctx))) {
    router(ctx, args);
    GatedProductArgs beside = product;
    beside.beside = true;
    return gated_product(ctx, beside);
  }
  check_router(args);
  ctx.count(Op::kRouter), ctx.count(Op::kMatmul);
  cuda::router_beside(args, product, activation_parts(ctx), ctx.device.stream());
}

}  // namespace palimpsest::ops
