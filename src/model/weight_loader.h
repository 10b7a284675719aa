#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "model/weight_copies.h"
#include "model/weight_source.h"
#include "model/weights.h"

namespace palimpsest {

/// Turns the tensors of a source into named weights: views where the stored form is the one that is computed with, copies where it is
/// not (vectors become F32; GPT-2's matrices are transposed; matrices that interleave several projections are taken apart).
/// Owns the copies; weights are valid as long as it and the source live.
class WeightLoader {
 public:
  WeightLoader(const ModelConfig& config, WeightSource& source);

  /// Places specs()[index] of the source; `check_experts`: look at the values of experts too. Throws Error{kInvalidFile}.
  void place(std::size_t index, bool check_experts);
  /// After the last place().
  void finish();

  /// Values of one expert that must be checked before its first use, where place() did not. Throws Error{kInvalidFile}.
  void verify_expert(std::int64_t layer, std::int32_t expert) const;
  /// Bytes of copied matrices.
  std::int64_t owned_bytes() const { return copies_.bytes() + source_.owned_bytes(); }

  Weights weights;
  std::vector<std::vector<ExpertMatrices>> experts;  ///< per layer

 private:
  void place_split(LayerWeights& layer, const WeightSpec& spec, const Matrix& matrix);
  void complete(PageMixerWeights& page);
  Tensor f32_vector(const WeightSpec& spec, const Tensor& stored);

  const ModelConfig& config_;
  WeightSource& source_;
  std::deque<std::vector<float>> vectors_;
  WeightCopies copies_;
  std::vector<std::size_t> first_expert_spec_;  ///< per layer, index into specs
};

}  // namespace palimpsest
