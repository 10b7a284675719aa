#pragma once

#include "model/observer.h"
#include "model/weights.h"
#include "palimpsest/model_config.h"
#include "tensor/exec_context.h"

// The two channel mixers. x [T, hidden] normalised input, y [T, hidden] output.

namespace palimpsest {

/// y = down(glu(gate x, up x)); without a gate y = down(gelu(up x + b)) + b
void mlp(ExecContext& ctx, const GluParams& glu, const MlpWeights& w, const Tensor& x, const Tensor& y);

/// Routed experts, in a latent space where the model has one, beside a shared MLP that always runs:
///     y = up(norm(sum_e weight_e expert_e(down x))) + shared(x)      (Kimi K3)
///     y = sum_e weight_e expert_e(x) + shared(x)                     (Kimi Linear)
///     y = sum_e weight_e expert_e(x) + sigmoid(gate x) shared(x)     (Qwen3-Next)
void moe(ExecContext& ctx, const ModelConfig& config, const MoeWeights& w, ExpertStore& experts, std::int64_t layer, const Tensor& x,
         const Tensor& y, Observer* observer);

GluParams glu_params(const Activation& activation);

}  // namespace palimpsest
