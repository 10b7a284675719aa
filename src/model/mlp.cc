#include "model/ffn.h"
#include "model/project.h"

namespace palimpsest {

GluParams glu_params(const Activation& activation) {
  return {.kind = activation.kind == ActivationKind::kSitu ? Glu::kSitu : Glu::kSwiglu,
          .beta = static_cast<float>(activation.beta),
          .linear_beta = static_cast<float>(activation.linear_beta)};
}

void mlp(ExecContext& ctx, const GluParams& glu, const MlpWeights& w, const Tensor& x, const Tensor& y) {
  const ArenaScope scope(ctx.workspace);
  const Tensor gate = project(ctx, x, w.gate_proj);
  const Tensor up = project(ctx, x, w.up_proj);
  ops::glu(ctx, {.gate = gate, .up = up, .params = glu, .y = gate});
  ops::matmul(ctx, {.x = gate, .w = w.down_proj, .y = y});
}

}  // namespace palimpsest
