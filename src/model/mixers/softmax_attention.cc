#include <cmath>

#include "model/mixers/mixers.h"
#include "model/project.h"

namespace palimpsest {
namespace {

/// Heads [T, heads, head_dim] of q or k: projection, bias, norm, rotation, each where the model has it.
Tensor heads_of(MixerContext& mix, const SoftmaxAttentionConfig& config, float norm_eps, const Tensor& x, const Matrix& proj, const Tensor& bias,
                const Tensor& norm) {
  ExecContext& ctx = mix.exec;
  const std::int64_t T = x.size(0), D = config.head_dim, heads = proj.rows() / D;
  const Tensor flat = project(ctx, x, proj);
  if (bias.defined()) ops::add_bias(ctx, {.bias = bias, .y = flat});
  if (norm.defined()) {
    const Tensor rows = flat.reshape({T * heads, D});
    ops::rms_norm(ctx, {.x = rows, .weight = norm, .eps = norm_eps, .y = rows});
  }
  const Tensor split = flat.reshape({T, heads, D});
  if (mix.rope_cos.defined()) ops::rotary(ctx, {.x = split, .cos = mix.rope_cos, .sin = mix.rope_sin});
  return split;
}

}  // namespace

void softmax_attention(MixerContext& mix, const SoftmaxAttentionConfig& config, float norm_eps, const SoftmaxAttentionWeights& w, std::int64_t layer,
                       const Tensor& x, const Tensor& y) {
  ExecContext& ctx = mix.exec;
  const ArenaScope scope(ctx.workspace);
  const std::int64_t T = x.size(0), H = config.num_heads, R = config.num_kv_heads, D = config.head_dim;

  const Tensor q = heads_of(mix, config, norm_eps, x, w.q_proj, w.q_bias, w.q_norm);
  const Tensor k = heads_of(mix, config, norm_eps, x, w.k_proj, w.k_bias, w.k_norm);
  const Tensor v = project(ctx, x, w.v_proj);
  if (w.v_bias.defined()) ops::add_bias(ctx, {.bias = w.v_bias, .y = v});

  // A list row is the keys of all heads, then the values of all heads.
  const PagedList list = mix.states.list(layer);
  ops::latent_append(ctx, {.latent = k.reshape({T, R * D}), .k_pe = v, .list = list, .rows = mix.rows, .past = mix.past});
  const Tensor o = ctx.workspace.allocate(DType::kF32, {T, H, D});
  ops::softmax_attention(ctx, {.q = q, .list = list, .rows = mix.rows, .past = mix.past, .num_kv_heads = R,
                               .scale = 1.0f / std::sqrt(static_cast<float>(D)), .o = o});

  const Tensor flat = o.reshape({T, H * D});
  if (w.g_proj.defined()) ops::multiply_sigmoid(ctx, {.x = flat, .gate = project(ctx, x, w.g_proj), .y = flat});
  ops::matmul(ctx, {.x = flat, .w = w.o_proj, .y = y});
  if (w.o_bias.defined()) ops::add_bias(ctx, {.bias = w.o_bias, .y = y});
}

}  // namespace palimpsest
