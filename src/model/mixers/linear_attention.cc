#include <cmath>

#include "model/mixers/page_inputs.h"
#include "model/project.h"

namespace palimpsest {
namespace {

constexpr float kSumNormEps = 1e-4f, kNormaliserEps = 1e-10f;  // of flash-linear-attention

/// W x + b, b where there is one.
Tensor linear(ExecContext& ctx, const Matrix& layer, const Tensor& bias, const Tensor& x) {
  const Tensor y = project(ctx, x, layer);
  if (bias.defined()) ops::add_bias(ctx, {.bias = bias, .y = y});
  return y;
}

Tensor widened(ExecContext& ctx, Features kind, const Tensor& x) {
  const Tensor y = ctx.workspace.allocate(DType::kF32, {x.size(0), feature_width(kind, x.size(1))});
  ops::features(ctx, {.x = x, .kind = kind, .y = y});
  return y;
}

/// phi(x) of every head: x [T * H, key_dim] -> [T * H, page_width].
Tensor feature_map(ExecContext& ctx, FeatureMap kind, const FeatureMapWeights& w, const Tensor& x) {
  const auto applied = [&](Unary function, const Tensor& t) {
    ops::unary(ctx, {.x = t, .function = function, .y = t});
    return t;
  };
  switch (kind) {
    case FeatureMap::kIdentity: return x;
    case FeatureMap::kRelu: return applied(Unary::kRelu, x);
    case FeatureMap::kEluPlus1: return applied(Unary::kEluPlus1, x);
    case FeatureMap::kT2r: return applied(Unary::kRelu, linear(ctx, w.layer1, w.bias1, x));
    case FeatureMap::kHedgehog: return widened(ctx, Features::kHedgehog, linear(ctx, w.layer1, w.bias1, x));
    case FeatureMap::kDpfp: return widened(ctx, Features::kDpfp, x);
    case FeatureMap::kHadamard: break;
  }
  const Tensor one = linear(ctx, w.layer1, w.bias1, x), two = linear(ctx, w.layer2, w.bias2, x);
  ops::multiply(ctx, {.x = two, .y = one});
  return one;
}

/// The value heads with a last channel of 1: its row of the page is then z, the sum of the keys, and reads as q.z.
Tensor with_counter(ExecContext& ctx, const Tensor& v) {
  const std::int64_t T = v.size(0), H = v.size(1), V = v.size(2);
  const Tensor counted = ctx.workspace.allocate(DType::kF32, {T, H, V + 1});
  ops::append_one(ctx, {.x = v.reshape({T * H, V}), .y = counted.reshape({T * H, V + 1})});
  return counted;
}

/// Columns [begin, begin + count) of a matrix.
Tensor columns(Tensor t, std::int64_t begin, std::int64_t count) {
  t.data = t.as<float>() + begin;
  t.sizes[1] = count;
  return t;
}

/// o [T, H, V] from reads [T, H, V + 1]: divided by q.z.
Tensor normalized(ExecContext& ctx, const Tensor& reads) {
  const std::int64_t rows = reads.size(0) * reads.size(1), V = reads.size(2) - 1;
  const Tensor flat = reads.reshape({rows, V + 1});
  const Tensor o = ctx.workspace.allocate(DType::kF32, {reads.size(0), reads.size(1), V});
  ops::divide_rows(ctx, {.x = columns(flat, 0, V), .divisor = columns(flat, V, 1), .eps = kNormaliserEps, .y = o.reshape({rows, V})});
  return o;
}

}  // namespace

void linear_attention(MixerContext& mix, const PageMixerConfig& config, float norm_eps, const PageMixerWeights& w, std::int64_t layer, const Tensor& x,
                      const Tensor& y) {
  ExecContext& ctx = mix.exec;
  const ArenaScope scope(ctx.workspace);
  const std::int64_t T = x.size(0), H = config.num_heads, K = config.page_width(), V = config.value_dim;
  const auto mapped = [&](const Matrix& proj, const FeatureMapWeights& map, bool sum_norm) {
    const Tensor features = feature_map(ctx, config.feature_map, map, project(ctx, x, proj).reshape({T * H, config.key_dim}));
    if (sum_norm) ops::divide_rows(ctx, {.x = features, .divisor = {}, .eps = kSumNormEps, .y = features});
    return features.reshape({T, H, K});
  };
  const Tensor q = mapped(w.q_proj, w.q_map, config.sum_norm_q), k = mapped(w.k_proj, w.k_map, config.sum_norm_k);
  ops::scale(ctx, {.factor = 1.0f / std::sqrt(static_cast<float>(K)), .y = q});
  const Tensor plain = project(ctx, x, w.v_proj).reshape({T, H, V}), v = config.normalized ? with_counter(ctx, plain) : plain;

  const Tensor reads = ctx.workspace.allocate(DType::kF32, {T, H, v.size(2)});
  // S <- S + v k^T;  o = S q
  edit_pages(mix, layer, {.q = q, .k = k, .v = v, .g = {}, .beta = {}, .o = reads, .decay = PageDecay::kNone, .write = PageWrite::kPlain});
  page_output(ctx, config, norm_eps, w, x, config.normalized ? normalized(ctx, reads) : reads, y);
}

}  // namespace palimpsest
