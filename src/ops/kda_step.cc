#include "ops/front_door.h"
#include "ops/one_row_ops.h"
#include "ops/ops.h"
#include "ops/ragged.h"
#include "ops/tensor_checks.h"

namespace palimpsest::ops {

bool kda_step(ExecContext& ctx, const KdaStepArgs& a) {
  const Tensor& cu_seqlens = a.in.rows.cu_seqlens;
  if (!ctx.on_device() || ctx.planning() || !one_row_each({cu_seqlens.on_host<std::int64_t>(), static_cast<std::size_t>(cu_seqlens.size(0))}) || !cuda::takes_kda_step(a)) return false;
  PALIMPSEST_CHECK(is_f32_rows(a.in.q_in) && is_f32_rows(a.in.k_in) && is_f32_rows(a.in.v_in) && is_f32(a.in.beta, 2) && is_f32(a.norm.gate, 3) && is_f32(a.norm.y, 3), "projections and outputs are F32 rows");
  const auto work = [&] {
    const std::int64_t page = a.pages.size(1) * a.pages.size(2) * a.pages.size(3), rows = a.in.q_in.size(0);
    return OpWork{.flops = 6.0 * static_cast<double>(rows * page), .bytes = 8.0 * static_cast<double>(rows * page) + moves(a.in.q_in, a.in.k_in, a.in.v_in, a.in.gate.f, a.norm.gate, a.norm.y).bytes, .form = {}};
  };
  KdaStepArgs args = a;
  args.image = row_image(ctx, a.in.v_in.size(0), a.in.v_in.size(1), a.image);
  if (const Entered op = enter(ctx, Op::kPageMemory, work)) cuda::kda_step(args, ctx.device.stream());
  ctx.rounded = {a.norm.y.data, args.image.to, ctx.calls()};
  return true;
}

bool kda_step_from(ExecContext& ctx, const KdaStepArgs& a, const MatmulArgs& f, const MatmulArgs& gate) {
  if (!ctx.on_device() || ctx.planning() || ctx.profile || activation_parts(ctx) == 0 || !cuda::takes_kda_step_from(a, f, gate)) return false;
  ctx.count(Op::kMatmul), ctx.count(Op::kPageMemory);
  cuda::kda_step_from(a, f, gate, activation_parts(ctx), ctx.device.stream());
  return true;
}

}  // namespace palimpsest::ops
