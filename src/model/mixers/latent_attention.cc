#include <cmath>

#include "model/mixers/mixers.h"
#include "model/project.h"
#include "ops/one_row_ops.h"

namespace palimpsest {
namespace {

Tensor columns(Tensor t, std::int64_t begin, std::int64_t count) {
  t.data = t.as<float>() + begin * t.strides[1];
  t.sizes[1] = count;
  return t;
}

/// `latent`: q_proj x, or q_a_proj x, which is normalised in place.
Tensor queries(ExecContext& ctx, const MlaConfig& config, const MlaWeights& w, const Tensor& latent) {
  if (config.q_lora_rank == 0) return latent;
  ops::rms_norm(ctx, {.x = latent, .weight = w.q_a_layernorm, .eps = static_cast<float>(config.latent_norm_eps), .y = latent});
  return project(ctx, latent, w.q_b_proj);
}

}  // namespace

void latent_attention(MixerContext& mix, const MlaConfig& config, const MlaWeights& w, std::int64_t layer, const Tensor& x,
                      const Tensor& y) {
  ExecContext& ctx = mix.exec;
  const ArenaScope scope(ctx.workspace);
  const std::int64_t T = x.size(0), H = config.num_heads, r = config.kv_lora_rank, p = config.qk_rope_head_dim;
  const std::int64_t dv = config.v_head_dim;

  const auto [projected, kv_a, gate] = project(ctx, x, {config.q_lora_rank == 0 ? &w.q_proj : &w.q_a_proj, &w.kv_a_proj_with_mqa, &w.g_proj});
  const Tensor q = queries(ctx, config, w, projected).reshape({T, H, config.qk_head_dim()});

  const PagedList list = mix.states.list(layer);
  const Tensor o = ctx.workspace.allocate(DType::kF32, {T, H, dv});
  const RowImage image = config.output_gate ? RowImage{} : ops::row_image_room(ctx, T, H * dv);
  const LatentAttentionArgs attention = {.q = q, .kv_b = w.kv_b_proj, .list = list, .rows = mix.rows, .past = mix.past,
                                         .scale = 1.0f / std::sqrt(static_cast<float>(config.qk_head_dim())), .o = o,
                                         .form = mix.fixed_forms ? LatentForm::kByRows : LatentForm::kAuto, .image = image};
  // What is remembered of a token: its normalised latent and, as they are, p key channels shared by all heads.
  const float eps = static_cast<float>(config.latent_norm_eps);
  if (!ops::latent_step(ctx, {.attention = attention, .kv_a = kv_a, .kv_a_layernorm = w.kv_a_layernorm, .eps = eps})) {
    const Tensor latent = ctx.workspace.allocate(DType::kF32, {T, r});
    ops::rms_norm(ctx, {.x = columns(kv_a, 0, r), .weight = w.kv_a_layernorm, .eps = eps, .y = latent});
    ops::latent_append(ctx, {.latent = latent, .k_pe = columns(kv_a, r, p), .list = list, .rows = mix.rows, .past = mix.past});
    ops::latent_attention(ctx, attention);
  }

  const Tensor flat = o.reshape({T, H * dv});
  if (config.output_gate) ops::multiply_sigmoid(ctx, {.x = flat, .gate = gate, .y = flat});
  ops::matmul(ctx, {.x = flat, .w = w.o_proj, .y = y});
}

}  // namespace palimpsest
