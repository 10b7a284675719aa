#include "kernels/cuda/delta_kernels.h"
#include "kernels/cuda/prompt_kernels.h"
#include "ops/front_door.h"
#include "ops/ops.h"
#include "ops/page_memory.h"
#include "ops/ragged.h"
#include "ops/tensor_checks.h"

namespace palimpsest::ops {
namespace {

Tensor convolved(ExecContext& ctx, const DeltaPrepareArgs& a, const Tensor& x, const Tensor& weight, const Tensor& tails, const Tensor& y) {
  const Tensor flat = y.reshape({x.size(0), x.size(1)});
  if (weight.defined()) short_conv(ctx, {.x = x, .weight = weight, .tails = tails, .rows = a.rows, .y = flat});
  else unary(ctx, {.x = x, .function = Unary::kSilu, .y = flat});
  return y;
}

}  // namespace

void delta_prepare(ExecContext& ctx, const DeltaPrepareArgs& a) { delta_prepare(ctx, a, {}, {}); }

void delta_prepare(ExecContext& ctx, const DeltaPrepareArgs& a, const Tensor& past, const PromptInputs& prompts) {
  PALIMPSEST_CHECK(is_f32(a.q, 3) && same_f32(a.q, a.k) && is_f32(a.v, 3) && a.v.size(1) % a.q.size(1) == 0, "q and k are F32 [R, H, K], v F32 [R, HV, V]");
  PALIMPSEST_CHECK(is_f32_rows(a.q_in) && is_f32_rows(a.k_in) && is_f32_rows(a.v_in) && is_f32(a.gate.g, 3) && is_f32(a.beta, 2), "projections are F32 rows");
  PALIMPSEST_CHECK(is_ragged(a.rows), "one slot per sequence");
  if (ctx.on_device() && a.q.size(2) <= 256) {
    const Entered op = enter(ctx, Op::kShortConv, [&] { return moves(a.q_in, a.k_in, a.v_in, a.gate.f, a.q, a.k, a.v, a.gate.g); });
    if (!op) return;
    if (prompts.q.defined()) return cuda::delta_prepare(a, past, prompts, ctx.device.stream());
    const Tensor& cu_seqlens = a.rows.cu_seqlens;
    const bool each = one_row_each({cu_seqlens.on_host<std::int64_t>(), static_cast<std::size_t>(cu_seqlens.size(0))});
    return cuda::delta_prepare(a, each, ctx.device.stream());
  }
  const Tensor q = convolved(ctx, a, a.q_in, a.conv_q, a.tails_q, a.q), k = convolved(ctx, a, a.k_in, a.conv_k, a.tails_k, a.k);
  convolved(ctx, a, a.v_in, a.conv_v, a.tails_v, a.v);
  l2_norm(ctx, {.x = q, .eps = a.l2_eps, .scale = a.q_scale, .y = q});
  l2_norm(ctx, {.x = k, .eps = a.l2_eps, .y = k});
  decay_gate(ctx, a.gate);
  unary(ctx, {.x = a.beta, .function = Unary::kSigmoid, .y = a.beta});
  if (a.beta_scale != 1) scale(ctx, {.factor = a.beta_scale, .y = a.beta});
}

}  // namespace palimpsest::ops
