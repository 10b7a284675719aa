#include "model/mixers/page_inputs.h"

#include <cmath>

#include "model/project.h"
#include "ops/page_memory.h"

namespace palimpsest {

namespace {

void activate(ExecContext& ctx, QkActivation activation, const Tensor& x) {
  switch (activation) {
    case QkActivation::kSilu: return ops::unary(ctx, {.x = x, .function = Unary::kSilu, .y = x});
    case QkActivation::kRelu: return ops::unary(ctx, {.x = x, .function = Unary::kRelu, .y = x});
    case QkActivation::kEluPlus1: return ops::unary(ctx, {.x = x, .function = Unary::kEluPlus1, .y = x});
    case QkActivation::kIdentity: return;
  }
}

/// x [T, H, K]: scale * x / |x|, or scale * x / sum(x).
void normalize(ExecContext& ctx, bool by_sum, float scale, const Tensor& x) {
  if (!by_sum) return ops::l2_norm(ctx, {.x = x, .scale = scale, .y = x});
  const Tensor rows = x.reshape({x.size(0) * x.size(1), x.size(2)});
  ops::divide_rows(ctx, {.x = rows, .divisor = {}, .y = rows});
  if (scale != 1) ops::scale(ctx, {.factor = scale, .y = x});
}

}  // namespace

Tensor convolve(MixerContext& mix, const Tensor& x, const Tensor& conv1d, std::int64_t layer, int tail, bool silu) {
  ExecContext& ctx = mix.exec;
  if (!conv1d.defined()) {
    if (silu) activate(ctx, QkActivation::kSilu, x);
    return x;
  }
  const Tensor convolved = ctx.workspace.allocate(DType::kF32, {x.size(0), x.size(1)});
  ops::short_conv(ctx, {.x = x, .weight = conv1d, .tails = mix.states.tails(layer, tail), .rows = mix.rows, .y = convolved, .silu = silu});
  return convolved;
}

PageInputs page_inputs(MixerContext& mix, const PageMixerConfig& config, const PageMixerWeights& w, std::int64_t layer, const Tensor& x) {
  ExecContext& ctx = mix.exec;
  const std::int64_t T = x.size(0), H = config.num_heads, K = config.key_dim, HV = config.num_value_heads, V = config.value_dim;
  const bool silu = config.qk_activation == QkActivation::kSilu;
  const auto [q, k, v] = project(ctx, x, {&w.q_proj, &w.k_proj, &w.v_proj});
  const PageInputs in = {.q = convolve(mix, q, w.q_conv1d, layer, 0, silu).reshape({T, H, K}),
                         .k = convolve(mix, k, w.k_conv1d, layer, 1, silu).reshape({T, H, K}),
                         .v = convolve(mix, v, w.v_conv1d, layer, 2).reshape({T, HV, V})};
  if (!silu) {
    activate(ctx, config.qk_activation, in.q);
    activate(ctx, config.qk_activation, in.k);
  }
  normalize(ctx, config.qk_sum_norm, 1.0f / std::sqrt(static_cast<float>(K)), in.q);
  normalize(ctx, config.qk_sum_norm, 1, in.k);
  return in;
}

Tensor write_strength(ExecContext& ctx, const Matrix& b_proj, double scale, const Tensor& x) {
  if (!b_proj.defined()) return {};
  const Tensor beta = project(ctx, x, b_proj);
  ops::unary(ctx, {.x = beta, .function = Unary::kSigmoid, .y = beta});
  if (scale != 1) ops::scale(ctx, {.factor = static_cast<float>(scale), .y = beta});  // negative eigenvalues
  return beta;
}

PageMemoryArgs with_pages(const MixerContext& mix, std::int64_t layer, PageMemoryArgs args) {
  args.pages = mix.states.pages(layer);
  args.rows = mix.rows;
  args.past = mix.past;
  args.round_every = mix.states.page_rounding();
  return args;
}

void edit_pages(MixerContext& mix, std::int64_t layer, PageMemoryArgs args, const PromptInputs& prompts) {
  args = with_pages(mix, layer, args);
  const Tensor written = mix.observer ? mix.observer->before_pages(layer, args) : Tensor{};
  ops::page_memory(mix.exec, args, written, prompts);
  if (mix.observer) mix.observer->after_pages(layer, args, written);
}

void page_output(ExecContext& ctx, const PageMixerConfig& config, float norm_eps, const PageMixerWeights& w, const Tensor& x, const Tensor& o,
                 const Tensor& y) {
  const std::int64_t T = o.size(0), HV = config.num_value_heads, V = config.value_dim;
  if (w.g_proj.defined()) {
    ops::gated_rms_norm(ctx, {.x = o, .weight = w.o_norm, .gate = project(ctx, x, w.g_proj).reshape({T, HV, V}), .function = Unary::kSilu,
                              .eps = norm_eps, .y = o});
  } else {
    const Tensor heads = o.reshape({T * HV, V});
    ops::rms_norm(ctx, {.x = heads, .weight = w.o_norm, .eps = norm_eps, .y = heads});
  }
  ops::matmul(ctx, {.x = o.reshape({T, HV * V}), .w = w.o_proj, .y = y});
}

}  // namespace palimpsest
