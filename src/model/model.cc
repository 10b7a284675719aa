#include "palimpsest/model.h"

#include <deque>
#include <functional>
#include <utility>

#include "base/check.h"
#include "base/number_formats.h"
#include "formats/checkpoint.h"
#include "model/weight_spec.h"
#include "model/weights.h"
#include "model/weights_check.h"

namespace palimpsest {
namespace {

/// The field of a layer that holds a matrix role; null for roles that are not matrices of a layer.
Matrix* matrix_field(LayerWeights& layer, Role role) {
  auto* kda = std::get_if<KdaWeights>(&layer.mixer);
  auto* mla = std::get_if<MlaWeights>(&layer.mixer);
  auto* mlp = std::get_if<MlpWeights>(&layer.ffn);
  auto* moe = std::get_if<MoeWeights>(&layer.ffn);
  switch (role) {
    case Role::kKdaQ: return &kda->q_proj;
    case Role::kKdaK: return &kda->k_proj;
    case Role::kKdaV: return &kda->v_proj;
    case Role::kKdaDecayDown: return &kda->f_a_proj;
    case Role::kKdaDecayUp: return &kda->f_b_proj;
    case Role::kKdaBeta: return &kda->b_proj;
    case Role::kKdaGate: return &kda->g_proj;
    case Role::kKdaGateDown: return &kda->g_a_proj;
    case Role::kKdaGateUp: return &kda->g_b_proj;
    case Role::kKdaOutput: return &kda->o_proj;
    case Role::kMlaQ: return &mla->q_proj;
    case Role::kMlaQDown: return &mla->q_a_proj;
    case Role::kMlaQUp: return &mla->q_b_proj;
    case Role::kMlaKvDown: return &mla->kv_a_proj_with_mqa;
    case Role::kMlaKvUp: return &mla->kv_b_proj;
    case Role::kMlaGate: return &mla->g_proj;
    case Role::kMlaOutput: return &mla->o_proj;
    case Role::kMlpGate: return &mlp->gate_proj;
    case Role::kMlpUp: return &mlp->up_proj;
    case Role::kMlpDown: return &mlp->down_proj;
    case Role::kRouter: return &moe->gate;
    case Role::kLatentDown: return &moe->routed_expert_down_proj;
    case Role::kLatentUp: return &moe->routed_expert_up_proj;
    case Role::kSharedGate: return &moe->shared_experts.gate_proj;
    case Role::kSharedUp: return &moe->shared_experts.up_proj;
    case Role::kSharedDown: return &moe->shared_experts.down_proj;
    default: return nullptr;
  }
}

/// The field of a layer that holds a vector role. Norm and projection of an Attention Residual share one: their product.
Tensor* vector_field(LayerWeights& layer, Role role) {
  auto* kda = std::get_if<KdaWeights>(&layer.mixer);
  auto* mla = std::get_if<MlaWeights>(&layer.mixer);
  auto* moe = std::get_if<MoeWeights>(&layer.ffn);
  switch (role) {
    case Role::kInputNorm: return &layer.input_layernorm;
    case Role::kPostAttentionNorm: return &layer.post_attention_layernorm;
    case Role::kAttentionResNorm:
    case Role::kAttentionResProj: return &layer.self_attention_res;
    case Role::kMlpResNorm:
    case Role::kMlpResProj: return &layer.mlp_res;
    case Role::kKdaConvQ: return &kda->q_conv1d;
    case Role::kKdaConvK: return &kda->k_conv1d;
    case Role::kKdaConvV: return &kda->v_conv1d;
    case Role::kKdaALog: return &kda->A_log;
    case Role::kKdaDtBias: return &kda->dt_bias;
    case Role::kKdaOutputNorm: return &kda->o_norm;
    case Role::kMlaQNorm: return &mla->q_a_layernorm;
    case Role::kMlaKvNorm: return &mla->kv_a_layernorm;
    case Role::kRouterBias: return &moe->e_score_correction_bias;
    case Role::kLatentNorm: return &moe->routed_expert_norm;
    default: return nullptr;
  }
}

Matrix matrix_view(const formats::Checkpoint& checkpoint, const StoredWeight& stored) {
  if (stored.dense) return {.dense = checkpoint.view(*stored.dense), .mx = {}};
  return {.dense = {}, .mx = {.codes = checkpoint.view(*stored.codes), .scales = checkpoint.view(*stored.scales)}};
}

LayerWeights empty_layer(const LayerSpec& spec) {
  LayerWeights layer;
  if (spec.mixer == Mixer::kLatentAttention) layer.mixer = MlaWeights{};
  if (spec.ffn == Ffn::kMixtureOfExperts) layer.ffn = MoeWeights{};
  return layer;
}

/// E8M0 scales up to this many bytes in all are looked at while loading; beyond it an expert's are when it is first chosen.
constexpr std::uint64_t kEagerScaleBytes = 256u << 20;

}  // namespace

struct Model::Impl {
  std::filesystem::path path;
  ModelConfig config;
  formats::Checkpoint checkpoint;
  std::vector<WeightSpec> specs;
  Weights weights;
  std::deque<std::vector<float>> vectors;  // storage behind the F32 vectors
  std::vector<std::vector<ExpertMatrices>> experts;
  std::vector<std::size_t> first_expert_spec;  // per layer, index into specs
  std::vector<std::string> unused;

  void load(const LoadOptions& options);
  void place(std::size_t index, bool check_experts);
  Tensor f32_vector(const WeightSpec& spec, const Tensor& stored);
  void verify(std::size_t index, const StoredWeight& stored) const;
  void verify_expert(std::int64_t layer, std::int32_t expert) const;
};

/// An aligned F32 copy in the shape of the spec: [n], [P, W] for convolution taps; padding behind A_log is dropped.
Tensor Model::Impl::f32_vector(const WeightSpec& spec, const Tensor& stored) {
  auto& values = vectors.emplace_back(static_cast<std::size_t>(spec.parameters()));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = load_float(stored, static_cast<std::int64_t>(i));
  if (spec.rank == 3) return Tensor::contiguous(values.data(), DType::kF32, {spec.sizes[0], spec.sizes[1] * spec.sizes[2]});
  return Tensor::contiguous(values.data(), DType::kF32, {spec.parameters()});
}

void Model::Impl::verify(std::size_t index, const StoredWeight& stored) const {
  value_or_throw(check_values(config, specs[index], stored, checkpoint));
}

void Model::Impl::verify_expert(std::int64_t layer, std::int32_t expert) const {
  const std::size_t first = first_expert_spec[static_cast<std::size_t>(layer)] + 3 * static_cast<std::size_t>(expert);
  for (std::size_t i = first; i < first + 3; ++i) verify(i, value_or_throw(locate_weight(config, specs[i], checkpoint)));
}

void Model::Impl::place(std::size_t index, bool check_experts) {
  const WeightSpec& spec = specs[index];
  const StoredWeight stored = value_or_throw(locate_weight(config, spec, checkpoint));
  if (spec.expert < 0 || check_experts) verify(index, stored);
  const Matrix matrix = matrix_view(checkpoint, stored);

  const auto store_vector = [&](Tensor& field) {
    const Tensor values = f32_vector(spec, matrix.dense);
    if (!field.defined()) {
      field = values;
    } else {
      for (std::int64_t i = 0; i < values.numel(); ++i) field.as<float>()[i] *= values.as<float>()[i];
    }
  };
  switch (spec.role) {
    case Role::kEmbedTokens: weights.embed_tokens = matrix; return;
    case Role::kLmHead: weights.lm_head = matrix; return;
    case Role::kFinalNorm: return store_vector(weights.norm);
    case Role::kOutputResNorm:
    case Role::kOutputResProj: return store_vector(weights.output_attn_res);
    default: break;
  }
  const auto l = static_cast<std::size_t>(spec.layer);
  if (spec.expert >= 0) {
    ExpertMatrices& expert = experts[l][static_cast<std::size_t>(spec.expert)];
    (spec.role == Role::kExpertGate ? expert.w1 : spec.role == Role::kExpertUp ? expert.w3 : expert.w2) = matrix;
    if (spec.expert == 0 && spec.role == Role::kExpertGate) first_expert_spec[l] = index;
  } else if (Matrix* field = matrix_field(weights.layers[l], spec.role)) {
    *field = matrix;
  } else {
    Tensor* vector = vector_field(weights.layers[l], spec.role);
    PALIMPSEST_CHECK(vector != nullptr, "every role has a field");
    store_vector(*vector);
  }
}

void Model::Impl::load(const LoadOptions& options) {
  config = load_model_config(std::filesystem::is_directory(path) ? path.string() : path.parent_path().string());
  checkpoint = value_or_throw(formats::Checkpoint::open(path));
  specs = weight_spec(config);
  const Census census = value_or_throw(take_census(config, specs, checkpoint));

  const auto layers = static_cast<std::size_t>(config.num_layers());
  experts.resize(layers);
  first_expert_spec.resize(layers);
  for (std::size_t l = 0; l < layers; ++l) {
    weights.layers.push_back(empty_layer(config.layers[l]));
    if (config.layers[l].ffn == Ffn::kMixtureOfExperts) experts[l].resize(static_cast<std::size_t>(config.moe.num_experts));
  }
  const bool check_experts = census.mxfp4_bytes / 17 <= kEagerScaleBytes;
  const auto total = static_cast<std::int64_t>(specs.size());
  for (std::int64_t i = 0; i < total; ++i) {
    place(static_cast<std::size_t>(i), check_experts);
    if (options.on_progress && (i % 512 == 511 || i + 1 == total)) options.on_progress(i + 1, total);
  }
  if (config.tie_word_embeddings) weights.lm_head = weights.embed_tokens;
  weights.experts = std::make_shared<MappedExperts>(
      std::move(experts), [this, check_experts](std::int64_t layer, std::int32_t expert) {
        if (!check_experts) verify_expert(layer, expert);
      });
  if (census.vision_tensors > 0) {
    for (const auto& entry : checkpoint.entries()) {
      const std::string name(entry.name);
      if (name.starts_with("vision_tower.") || name.starts_with("mm_projector.")) unused.push_back(name);
    }
  }
  if (options.prefetch) {
    for (const auto& shard : checkpoint.shards()) shard.file.will_need();
  }
}

Model::Model(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Model::~Model() = default;

std::shared_ptr<const Model> Model::load(const std::filesystem::path& path, const LoadOptions& options) {
  auto impl = std::make_unique<Impl>();
  impl->path = path;
  try {
    impl->load(options);
  } catch (Error& error) {
    throw error.add_context(path.string());
  }
  return std::shared_ptr<const Model>(new Model(std::move(impl)));
}

const ModelConfig& Model::config() const { return impl_->config; }
const Weights& Model::weights() const { return impl_->weights; }
const std::filesystem::path& Model::path() const { return impl_->path; }
std::int64_t Model::file_bytes() const { return static_cast<std::int64_t>(impl_->checkpoint.file_bytes()); }
const std::vector<std::string>& Model::unused_tensors() const { return impl_->unused; }

}  // namespace palimpsest
