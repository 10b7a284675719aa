#include "model/ffn.h"
#include "model/project.h"
#include "ops/one_row_ops.h"

namespace palimpsest {

GluParams glu_params(const Activation& activation) {
  return {.kind = activation.kind == ActivationKind::kSitu ? Glu::kSitu : Glu::kSwiglu,
          .beta = static_cast<float>(activation.beta),
          .linear_beta = static_cast<float>(activation.linear_beta)};
}

namespace {

void ungated_mlp(ExecContext& ctx, const MlpWeights& w, const Tensor& x, const Tensor& y) {
  const Tensor up = project(ctx, x, w.up_proj);
  ops::add_bias(ctx, {.bias = w.up_bias, .y = up});
  ops::unary(ctx, {.x = up, .function = Unary::kGeluTanh, .y = up});
  ops::matmul(ctx, {.x = up, .w = w.down_proj, .y = y});
  ops::add_bias(ctx, {.bias = w.down_bias, .y = y});
}

}  // namespace

void mlp(ExecContext& ctx, const GluParams& glu, const MlpWeights& w, const Tensor& x, const Tensor& y) {
  const ArenaScope scope(ctx.workspace);
  if (!w.gate_proj.defined()) return ungated_mlp(ctx, w, x, y);
  const auto [gate, up] = project(ctx, x, {&w.gate_proj, &w.up_proj});
  ops::gated_product(ctx, {.gate = gate, .up = up, .params = glu, .w = w.down_proj, .y = y});
}

}  // namespace palimpsest
