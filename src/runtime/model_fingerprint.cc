#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <memory>

#include "model/weight_fields.h"
#include "model/weight_spec.h"
#include "model/weights.h"
#include "runtime/session_file.h"

namespace palimpsest {
namespace {

class Hasher {
 public:
  Hasher() : state_(XXH3_createState()) { XXH3_128bits_reset(state_); }
  ~Hasher() { XXH3_freeState(state_); }
  Hasher(const Hasher&) = delete;
  Hasher& operator=(const Hasher&) = delete;

  void add(const void* data, std::int64_t bytes) {
    XXH3_128bits_update(state_, data, static_cast<std::size_t>(bytes));
  }
  ModelFingerprint digest() const {
    const XXH128_hash_t hash = XXH3_128bits_digest(state_);
    return {hash.high64, hash.low64};
  }

 private:
  XXH3_state_t* state_;
};

/// The bytes of a matrix's middle row, at most a cache line of them: one touch of the file for each
/// matrix.
void add_sample(Hasher& hasher, const Matrix& matrix) {
  if (!matrix.defined() || matrix.rows() == 0) return;
  const Matrix row = matrix.row_range(matrix.rows() / 2, 1);
  if (row.is_blocks()) {
    hasher.add(row.blocks.data, std::min<std::int64_t>(64, row.blocks.row_bytes));
  } else {
    const Tensor& numbers = row.is_mx() ? row.mx.codes : row.is_int8() ? row.int8.codes : row.dense;
    hasher.add(numbers.data,
               std::min<std::int64_t>(64, numbers.size(1) * dtype_size(numbers.dtype)));
  }
}

}  // namespace

ModelFingerprint model_fingerprint(const Model& model) {
  Hasher hasher;
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
    LayerWeights views = weights.layers[static_cast<std::size_t>(spec.layer)];
    if (const Matrix* matrix = matrix_field(views, spec.role)) add_sample(hasher, *matrix);
  }
  for (const LayerWeights& layer : weights.layers)
    hasher.add(layer.input_layernorm.weight.data, layer.input_layernorm.weight.bytes());
  add_sample(hasher, weights.embed_tokens);
  add_sample(hasher, weights.lm_head);
  return hasher.digest();
}

}  // namespace palimpsest
