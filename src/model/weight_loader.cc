#include "model/weight_loader.h"

#include <algorithm>
#include <array>

#include "base/check.h"
#include "model/weight_fields.h"
#include "model/weights_check.h"

namespace palimpsest {
namespace {

using Run = WeightCopies::Run;

LayerWeights empty_layer(const LayerSpec& spec) {
  LayerWeights layer;
  switch (spec.mixer) {
    case Mixer::kKimiDeltaAttention: layer.mixer = KdaWeights{}; break;
    case Mixer::kLatentAttention: layer.mixer = MlaWeights{}; break;
    case Mixer::kSoftmaxAttention: layer.mixer = SoftmaxAttentionWeights{}; break;
    case Mixer::kLinearAttention:
    case Mixer::kDeltaNet:
    case Mixer::kGatedDeltaNet: layer.mixer = PageMixerWeights{}; break;
  }
  if (spec.ffn == Ffn::kMixtureOfExperts) layer.ffn = MoeWeights{};
  return layer;
}

}  // namespace

WeightLoader::WeightLoader(const ModelConfig& config, WeightSource& source, bool outline)
    : config_(config), source_(source), outline_(outline), copies_(outline ? WeightCopies::counting(2) : WeightCopies()),
      vectors_(outline ? WeightCopies::counting(3) : WeightCopies()),
      first_expert_spec_(static_cast<std::size_t>(config.num_layers())) {
  for (const LayerSpec& layer : config.layers) {
    weights.layers.push_back(empty_layer(layer));
    experts.emplace_back(layer.ffn == Ffn::kMixtureOfExperts ? static_cast<std::size_t>(config.moe.num_experts) : 0);
  }
}

Tensor WeightLoader::new_vector(std::int64_t values) { return vectors_.f32(values, 1).reshape({values}); }

/// An F32 copy in the shape of the spec: [n], [P, W] for convolution taps; padding behind A_log is dropped.
Tensor WeightLoader::f32_vector(const WeightSpec& spec, const Tensor& stored) {
  const Tensor vector = new_vector(spec.parameters());
  const float offset = spec.plus_one ? 1.0f : 0.0f;
  for (std::int64_t i = 0; i < vector.numel() && !outline_; ++i) vector.as<float>()[i] = load_float(stored, i) + offset;
  return spec.rank == 3 ? vector.reshape({spec.sizes[0], spec.sizes[1] * spec.sizes[2]}) : vector;
}

void WeightLoader::verify_expert(std::int64_t layer, std::int32_t expert) const {
  const std::size_t first = first_expert_spec_[static_cast<std::size_t>(layer)] + 3 * static_cast<std::size_t>(expert);
  for (std::size_t i = first; i < first + 3; ++i) value_or_throw(source_.check(source_.specs()[i]));
}

/// Tensors that hold several weights of a layer.
void WeightLoader::place_split(LayerWeights& layer, const WeightSpec& spec, const Matrix& matrix) {
  const auto every_group = [](std::int64_t groups, std::int64_t width, std::int64_t begin, std::int64_t count) {
    std::vector<Run> runs;
    for (std::int64_t g = 0; g < groups; ++g) runs.push_back({g * width + begin, count});
    return runs;
  };
  const SoftmaxAttentionConfig& a = config_.attention;
  const PageMixerConfig& p = config_.page;
  const std::int64_t keys = p.key_size(), values = p.value_size(), per_head = p.num_heads > 0 ? p.num_value_heads / p.num_heads : 0;
  auto* attention = std::get_if<SoftmaxAttentionWeights>(&layer.mixer);
  auto* page = std::get_if<PageMixerWeights>(&layer.mixer);
  switch (spec.role) {
    case WeightRole::kAttentionQ: {
      if (!a.output_gate) {
        attention->q_proj = matrix;
        return;
      }
      attention->q_proj = copies_.rows(matrix, every_group(a.num_heads, 2 * a.head_dim, 0, a.head_dim));
      attention->g_proj = copies_.rows(matrix, every_group(a.num_heads, 2 * a.head_dim, a.head_dim, a.head_dim));
      return;
    }
    case WeightRole::kAttentionQkv: {
      const Matrix qkv = spec.transposed ? copies_.transposed(matrix) : matrix;
      const std::int64_t width = qkv.rows() / 3;
      attention->q_proj = copies_.rows(qkv, std::array{Run{0, width}});
      attention->k_proj = copies_.rows(qkv, std::array{Run{width, width}});
      attention->v_proj = copies_.rows(qkv, std::array{Run{2 * width, width}});
      return;
    }
    case WeightRole::kAttentionQkvBias: {
      const Tensor bias = f32_vector(spec, matrix.dense);
      const std::int64_t width = bias.size(0) / 3;
      attention->q_bias = bias.rows(0, width);
      attention->k_bias = bias.rows(width, width);
      attention->v_bias = bias.rows(2 * width, width);
      return;
    }
    case WeightRole::kPageQkv:
      page->q_proj = copies_.rows(matrix, std::array{Run{0, keys}});
      page->k_proj = copies_.rows(matrix, std::array{Run{keys, keys}});
      page->v_proj = copies_.rows(matrix, std::array{Run{2 * keys, values}});
      return;
    case WeightRole::kPageQkvz: {
      const std::int64_t v = per_head * p.value_dim, width = 2 * p.key_dim + 2 * v;
      page->q_proj = copies_.rows(matrix, every_group(p.num_heads, width, 0, p.key_dim));
      page->k_proj = copies_.rows(matrix, every_group(p.num_heads, width, p.key_dim, p.key_dim));
      page->v_proj = copies_.rows(matrix, every_group(p.num_heads, width, 2 * p.key_dim, v));
      page->g_proj = copies_.rows(matrix, every_group(p.num_heads, width, 2 * p.key_dim + v, v));
      return;
    }
    case WeightRole::kPageBa:
      page->b_proj = copies_.rows(matrix, every_group(p.num_heads, 2 * per_head, 0, per_head));
      page->a_proj = copies_.rows(matrix, every_group(p.num_heads, 2 * per_head, per_head, per_head));
      return;
    case WeightRole::kPageConv: {
      const Tensor taps = f32_vector(spec, matrix.dense);
      page->q_conv1d = taps.rows(0, keys);
      page->k_conv1d = taps.rows(keys, keys);
      page->v_conv1d = taps.rows(2 * keys, values);
      return;
    }
    default: PALIMPSEST_CHECK(false, "every role has a field");
  }
}

/// Whether a weight is used as it is stored, so that its values need not be read here.
bool WeightLoader::is_viewed(const WeightSpec& spec) {
  if (spec.role == WeightRole::kEmbedTokens || spec.role == WeightRole::kPositions || spec.role == WeightRole::kLmHead || spec.expert >= 0) return true;
  if (spec.layer < 0 || spec.transposed) return false;
  const bool may_be_repeated = spec.role == WeightRole::kPageK || spec.role == WeightRole::kPageV;
  return !may_be_repeated && matrix_field(weights.layers[static_cast<std::size_t>(spec.layer)], spec.role) != nullptr;
}

void WeightLoader::place(std::size_t index, bool check_experts) {
  const WeightSpec& spec = source_.specs()[index];
  const Matrix matrix = value_or_throw(source_.find(spec));
  role_bytes_[static_cast<std::size_t>(spec.role)] += matrix.bytes();
  if (!is_viewed(spec)) source_.need_values(matrix);
  if (!outline_ && (spec.expert < 0 || check_experts)) value_or_throw(source_.check(spec));
  else if (!outline_ && !matrix.dense.defined()) unchecked[matrix.is_blocks() ? matrix.blocks.data : matrix.mx.scales.defined() ? matrix.mx.scales.data : matrix.int8.scales.data] = static_cast<std::int64_t>(index);

  const auto store_vector = [&](Tensor& field) {
    const Tensor values = f32_vector(spec, matrix.dense);
    if (!field.defined()) {
      field = values;
    } else if (!outline_) {  // norm times projection of an Attention Residual
      for (std::int64_t i = 0; i < values.numel(); ++i) field.as<float>()[i] *= values.as<float>()[i];
    }
  };
  switch (spec.role) {
    case WeightRole::kEmbedTokens: weights.embed_tokens = matrix; return;
    case WeightRole::kPositions: weights.positions = matrix; return;
    case WeightRole::kLmHead: weights.lm_head = matrix; return;
    case WeightRole::kFinalNorm: return store_vector(weights.norm.weight);
    case WeightRole::kFinalNormBias: return store_vector(weights.norm.bias);
    case WeightRole::kOutputResNorm:
    case WeightRole::kOutputResProj: return store_vector(weights.output_attn_res);
    default: break;
  }
  const auto l = static_cast<std::size_t>(spec.layer);
  LayerWeights& layer = weights.layers[l];
  if (spec.expert >= 0) {
    ExpertMatrices& expert = experts[l][static_cast<std::size_t>(spec.expert)];
    (spec.role == WeightRole::kExpertGate ? expert.w1 : spec.role == WeightRole::kExpertUp ? expert.w3 : expert.w2) = matrix;
    if (spec.expert == 0 && spec.role == WeightRole::kExpertGate) first_expert_spec_[l] = index;
  } else if (Matrix* field = matrix_field(layer, spec.role)) {
    *field = spec.transposed ? copies_.transposed(matrix) : matrix;
  } else if (Tensor* vector = vector_field(layer, spec.role)) {
    store_vector(*vector);
  } else {
    place_split(layer, spec, matrix);
  }
}

/// Heads of k and v that several heads of q share are repeated, so that every head has a page of its own; a norm without weights gets ones.
void WeightLoader::complete(PageMixerWeights& page) {
  const PageMixerConfig& p = config_.page;
  if (p.num_key_heads > 0 && p.num_key_heads < p.num_heads) {
    const auto repeated = [&](const Matrix& stored, std::int64_t rows) {
      std::vector<Run> runs;
      for (std::int64_t head = 0; head < p.num_heads; ++head) runs.push_back({head / (p.num_heads / p.num_key_heads) * rows, rows});
      return copies_.rows(stored, runs);
    };
    page.k_proj = repeated(page.k_proj, p.key_dim);
    page.v_proj = repeated(page.v_proj, p.value_dim);
  }
  if (!p.output_norm_weight) {
    page.o_norm = new_vector(p.value_dim);
    if (!outline_) std::fill_n(page.o_norm.as<float>(), p.value_dim, 1.0f);
  }
}

void WeightLoader::finish() {
  if (config_.tie_word_embeddings) weights.lm_head = weights.embed_tokens;
  for (LayerWeights& layer : weights.layers) {
    if (auto* page = std::get_if<PageMixerWeights>(&layer.mixer)) complete(*page);
  }
}

}  // namespace palimpsest
