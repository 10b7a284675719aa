#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <memory>

#include "model/weight_fields.h"
#include "model/weight_spec.h"
#include "model/weight_visit.h"
#include "model/weights.h"
#include "runtime/session_file.h"
#include "tensor/device.h"

namespace palimpsest {
namespace {

/// Matrices of routed experts that are looked at: each costs a page of its file, which may have to
/// be read from the disk.
constexpr std::int64_t kMostSamples = 32768;

class Hasher {
 public:
  explicit Hasher(Device& device) : device_(device), state_(XXH3_createState()) { XXH3_128bits_reset(state_); }
  ~Hasher() { XXH3_freeState(state_); }
  Hasher(const Hasher&) = delete;
  Hasher& operator=(const Hasher&) = delete;

  void add(const void* data, std::int64_t bytes) {
    XXH3_128bits_update(state_, data, static_cast<std::size_t>(bytes));
  }
  /// The same of memory of the model's device.
  void add_stored(const void* data, std::int64_t bytes) {
    bytes_.resize(static_cast<std::size_t>(bytes));
    device_.copy(bytes_.data(), data, bytes);
    add(bytes_.data(), bytes);
  }
  /// Takes note of the form of a matrix that is added.
  void saw(const Matrix& matrix) {
    quantised_ |= matrix.is_blocks() || matrix.is_mx() || matrix.is_int8();
  }
  bool quantised() const { return quantised_; }
  ModelFingerprint digest() const {
    const XXH128_hash_t hash = XXH3_128bits_digest(state_);
    return {hash.high64, hash.low64};
  }

 private:
  Device& device_;
  XXH3_state_t* state_;
  std::vector<std::byte> bytes_;
  bool quantised_ = false;
};

/// What a matrix is stored as.
std::int64_t form_of(const Matrix& matrix) {
  if (matrix.is_blocks()) return 1000 + static_cast<std::int64_t>(matrix.blocks.type);
  if (matrix.is_mx()) return 100;
  return matrix.is_int8() ? 101 : static_cast<std::int64_t>(matrix.dense.dtype);
}

/// The form of a matrix and the bytes of its middle row, at most a cache line of them: one touch of
/// the file for each matrix.
void add_sample(Hasher& hasher, const Matrix& matrix) {
  if (!matrix.defined() || matrix.rows() == 0) return;
  hasher.saw(matrix);
  const std::int64_t form = form_of(matrix);
  hasher.add(&form, sizeof(form));
  const Matrix row = matrix.row_range(matrix.rows() / 2, 1);
  if (row.is_blocks()) {
    hasher.add_stored(row.blocks.data, std::min<std::int64_t>(64, row.blocks.row_bytes));
  } else {
    const Tensor& numbers = row.is_mx() ? row.mx.codes : row.is_int8() ? row.int8.codes : row.dense;
    hasher.add_stored(numbers.data,
                      std::min<std::int64_t>(64, numbers.size(1) * dtype_size(numbers.dtype)));
  }
}

/// Samples of all matrices of routed experts; of more than kMostSamples, of as many spread evenly
/// over layers and experts.
void add_experts(Hasher& hasher, const Model& model) {
  const ModelConfig& config = model.config();
  std::vector<std::int64_t> layers;
  for (std::int64_t l = 0; l < config.num_layers(); ++l) {
    if (config.layers[static_cast<std::size_t>(l)].ffn == Ffn::kMixtureOfExperts)
      layers.push_back(l);
  }
  const std::int64_t experts = config.moe.num_experts,
                     all = static_cast<std::int64_t>(layers.size()) * experts * 3,
                     samples = std::min(all, kMostSamples);
  for (std::int64_t i = 0; i < samples; ++i) {
    const std::int64_t at = i * all / samples, expert = at / 3 % experts;
    const ExpertMatrices views = model.weights().experts->peek(
        layers[static_cast<std::size_t>(at / 3 / experts)], static_cast<std::int32_t>(expert));
    const Matrix& matrix = at % 3 == 0 ? views.w1 : at % 3 == 1 ? views.w3 : views.w2;
    add_sample(hasher, matrix);
  }
}

/// Of weights that visit a device, where they lie.
LayerWeights views_of(const Weights& weights, std::int64_t layer) {
  LayerWeights views = weights.layers[static_cast<std::size_t>(layer)];
  if (!weights.stream) return views;
  const auto send_home = [&](auto& view) { weights.stream->send_home(layer, view); };
  visit_layer(views, send_home, send_home);
  return views;
}

void add_model(Hasher& hasher, const Model& model) {
  const std::string config = to_string(model.config());
  hasher.add(config.data(), static_cast<std::int64_t>(config.size()));
  const Weights& weights = model.weights();
  for (const WeightSpec& spec : weight_spec(model.config())) {
    const std::int64_t facts[6] = {static_cast<std::int64_t>(spec.role),
                                   spec.layer,
                                   spec.expert,
                                   spec.sizes[0],
                                   spec.sizes[1],
                                   spec.sizes[2]};
    hasher.add(facts, sizeof(facts));
    if (spec.layer < 0 || spec.expert >= 0) continue;
    LayerWeights views = views_of(weights, spec.layer);
    if (const Matrix* matrix = matrix_field(views, spec.role)) add_sample(hasher, *matrix);
  }
  add_experts(hasher, model);
  for (std::int64_t l = 0; l < model.config().num_layers(); ++l) {
    const Tensor norm = views_of(weights, l).input_layernorm.weight;
    hasher.add_stored(norm.data, norm.bytes());
  }
  add_sample(hasher, weights.embed_tokens);
  add_sample(hasher, weights.lm_head);
}

}  // namespace

ModelFingerprint model_fingerprint(const Model& model) {
  return session_origin(model, kDefaultActivations).model;
}

SessionOrigin session_origin(const Model& model, Activations activations) {
  Hasher hasher(model.device());
  add_model(hasher, model);
  SessionOrigin origin{.model = hasher.digest(), .activations = {}};
  if (hasher.quantised()) origin.activations = activations;
  return origin;
}

}  // namespace palimpsest
