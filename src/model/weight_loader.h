#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
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
  /// `outline`: for plans; nothing is read, checked or copied, and the weights have shapes and stored forms but no values.
  WeightLoader(const ModelConfig& config, WeightSource& source, bool outline = false);

  /// Places specs()[index] of the source; `check_experts`: look at the values of experts too (else they are noted in `unchecked`). Throws Error{kInvalidFile}.
  void place(std::size_t index, bool check_experts);
  /// After the last place().
  void finish();
  /// Gives back what was copied: views of it are views of something else now.
  void forget_copies() {
    copies_.forget();
    vectors_.forget();
  }

  /// Values of one expert that must be checked before its first use, where place() did not. Throws Error{kInvalidFile}.
  void verify_expert(std::int64_t layer, std::int32_t expert) const;
  /// Bytes of copied matrices; while the source lives.
  std::int64_t owned_bytes() const { return copies_.bytes() + source_.owned_bytes(); }
  /// Bytes of the F32 copies of vectors.
  std::int64_t vector_bytes() const { return vectors_.bytes(); }
  /// Stored bytes of the weights placed so far, by WeightRole.
  using RoleBytes = std::array<std::int64_t, static_cast<std::size_t>(WeightRole::kCount)>;
  const RoleBytes& role_bytes() const { return role_bytes_; }

  Weights weights;
  std::vector<std::vector<ExpertMatrices>> experts;  ///< per layer
  std::map<const void*, std::int64_t> unchecked;     ///< where scales lie (or blocks that have theirs inside) that nobody looked at -> index into specs

 private:
  bool is_viewed(const WeightSpec& spec);
  void place_split(LayerWeights& layer, const WeightSpec& spec, const Matrix& matrix);
  void complete(PageMixerWeights& page);
  Tensor f32_vector(const WeightSpec& spec, const Tensor& stored);
  Tensor new_vector(std::int64_t values);

  const ModelConfig& config_;
  WeightSource& source_;
  bool outline_;
  WeightCopies copies_, vectors_;
  RoleBytes role_bytes_ = {};
  std::vector<std::size_t> first_expert_spec_;  ///< per layer, index into specs
};

}  // namespace palimpsest
