#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "formats/checkpoint.h"
#include "model/weight_spec.h"
#include "model/weights.h"
#include "model/weights_check.h"

namespace palimpsest {

/// Turns the tensors of a checkpoint into named weights: views where the stored form is the one that is computed with, copies where it is
/// not (vectors become F32; GPT-2's matrices are transposed; matrices that interleave several projections are taken apart).
/// Owns the copies; weights are valid as long as it and the checkpoint live.
class WeightLoader {
 public:
  WeightLoader(const ModelConfig& config, const formats::Checkpoint& checkpoint);

  /// Places weights()[index] of specs(); `check_experts`: look at the values of experts too. Throws Error{kInvalidFile}.
  void place(std::size_t index, bool check_experts);
  /// After the last place().
  void finish();

  const std::vector<WeightSpec>& specs() const { return specs_; }
  /// Values of one expert that must be checked before its first use, where place() did not. Throws Error{kInvalidFile}.
  void verify_expert(std::int64_t layer, std::int32_t expert) const;
  /// Bytes of copied matrices.
  std::int64_t owned_bytes() const { return owned_bytes_; }

  Weights weights;
  std::vector<std::vector<ExpertMatrices>> experts;  ///< per layer

 private:
  void verify(std::size_t index, const StoredWeight& stored) const;
  void place_split(LayerWeights& layer, const WeightSpec& spec, const Matrix& matrix);
  Tensor f32_vector(const WeightSpec& spec, const Tensor& stored);
  Matrix transposed(const Matrix& stored);
  struct Run {
    std::int64_t begin, count;
  };
  /// Runs of rows, one after the other: a view of one run, a copy of several.
  Matrix rows(const Matrix& stored, const std::vector<Run>& runs);
  std::byte* own(std::int64_t bytes);

  const ModelConfig& config_;
  const formats::Checkpoint& checkpoint_;
  std::vector<WeightSpec> specs_;
  std::deque<std::vector<float>> vectors_;
  std::deque<std::vector<std::byte>> matrices_;
  std::int64_t owned_bytes_ = 0;
  std::vector<std::size_t> first_expert_spec_;  ///< per layer, index into specs
};

}  // namespace palimpsest
