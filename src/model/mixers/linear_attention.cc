#include <cmath>

#include "model/mixers/page_inputs.h"
#include "model/project.h"

namespace palimpsest {
namespace {

/// phi(x) of every head, x [T, H, K].
Tensor feature_map(ExecContext& ctx, FeatureMap kind, const FeatureMapWeights& w, const Tensor& x) {
  if (kind == FeatureMap::kIdentity) return x;
  if (kind != FeatureMap::kHadamard) {
    ops::unary(ctx, {.x = x, .function = kind == FeatureMap::kRelu ? Unary::kRelu : Unary::kEluPlus1, .y = x});
    return x;
  }
  const Tensor heads = x.reshape({x.size(0) * x.size(1), x.size(2)});
  const Tensor one = project(ctx, heads, w.layer1), two = project(ctx, heads, w.layer2);
  ops::add_bias(ctx, {.bias = w.bias1, .y = one});
  ops::add_bias(ctx, {.bias = w.bias2, .y = two});
  ops::multiply(ctx, {.x = two, .y = one});
  return one.reshape({x.size(0), x.size(1), x.size(2)});
}

}  // namespace

void linear_attention(MixerContext& mix, const PageMixerConfig& config, float norm_eps, const PageMixerWeights& w, std::int64_t layer, const Tensor& x,
                      const Tensor& y) {
  ExecContext& ctx = mix.exec;
  const ArenaScope scope(ctx.workspace);
  const std::int64_t T = x.size(0), H = config.num_heads, K = config.key_dim, V = config.value_dim;
  const Tensor q = feature_map(ctx, config.feature_map, w.q_map, project(ctx, x, w.q_proj).reshape({T, H, K}));
  const Tensor k = feature_map(ctx, config.feature_map, w.k_map, project(ctx, x, w.k_proj).reshape({T, H, K}));
  const Tensor v = project(ctx, x, w.v_proj).reshape({T, H, V});
  ops::scale(ctx, {.factor = 1.0f / std::sqrt(static_cast<float>(K)), .y = q});

  const Tensor o = ctx.workspace.allocate(DType::kF32, {T, H, V});
  // S <- S + v k^T;  o = S q
  ops::page_memory(ctx, {.q = q, .k = k, .v = v, .g = {}, .beta = {}, .pages = mix.states.pages(layer), .rows = mix.rows, .past = mix.past, .o = o,
                         .decay = PageDecay::kNone, .write = PageWrite::kPlain});
  page_output(ctx, config, norm_eps, w, x, o, y);
}

}  // namespace palimpsest
