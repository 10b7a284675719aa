#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>
#include <string_view>

#include "base/error.h"
#include "formats/checkpoint.h"
#include "model/weight_spec.h"
#include "palimpsest/block_type.h"

namespace palimpsest {

/// Where a weight lies in a checkpoint: either `dense`, or `codes` and `scales`.
struct StoredWeight {
  const formats::TensorEntry* dense = nullptr;
  const formats::TensorEntry* codes = nullptr;   ///< MXFP4: U8 [rows, cols / 2]; 8-bit integers: I8 [rows, cols]
  const formats::TensorEntry* scales = nullptr;  ///< [rows, cols / 32]; MXFP4: U8; 8-bit integers: BF16 or F32

  bool is_int8() const { return codes != nullptr && codes->dtype == DType::kI8; }
  bool is_mxfp4() const { return codes != nullptr && codes->dtype == DType::kU8; }
};

/// Finds one weight under its name or alias and checks shapes and types. A matrix is MXFP4 exactly when <name>_packed is
/// there, and 8-bit integers exactly when <name> is I8. Errors (kInvalidFile) name the tensor, what was expected and what was found.
Result<StoredWeight> locate_weight(const ModelConfig& config, const WeightSpec& spec,
                                   const formats::Checkpoint& checkpoint);

/// What a checkpoint that fits its config holds.
struct Census {
  std::int64_t text_tensors = 0;
  std::int64_t unused_tensors = 0;  ///< present but unused by the text model: see is_unused_tensor
  std::uint64_t text_bytes = 0;
  std::uint64_t unused_bytes = 0;
  std::uint64_t mxfp4_bytes = 0;    ///< codes and scales; part of text_bytes
  std::int64_t mxfp4_weights = 0;
  std::uint64_t int8_bytes = 0;     ///< codes and scales; part of text_bytes
  std::int64_t int8_weights = 0;
  std::array<std::uint64_t, 8> dense_bytes = {};  ///< of the text tensors in neither form, by DType
  std::array<std::uint64_t, kNumBlockTypes> block_bytes = {};  ///< in ggml's block formats, by BlockType
};

/// Whether a published checkpoint may hold a tensor of this name that the text model does not use: a vision tower, Qwen's multi-token
/// prediction (mtp), or the copy of a tied head.
bool is_unused_tensor(const ModelConfig& config, std::string_view name);

/// lm_head.weight of a model whose config.json ties it to the embedding. The embedding is the head, whatever the copy holds, as in
/// transformers.
bool is_tied_head(const ModelConfig& config, std::string_view name);

/// Compares a checkpoint with the list of its weights. One Error (kInvalidFile) for all that is missing, extra, mis-shaped
/// or mis-typed (TensorProblems). `located` receives what locate_weight says of each spec, in order; nothing in case of an error.
Result<Census> take_census(const ModelConfig& config, std::span<const WeightSpec> specs,
                           const formats::Checkpoint& checkpoint, std::vector<StoredWeight>* located = nullptr);

/// Checks the values that would make silent nonsense: A_log must be finite with a zero tail, E8M0 scales must not be 255,
/// scales of 8-bit integers must be finite. Touches only those bytes (1/17 of a quantised matrix); nothing for other weights. A loader calls it for each weight before
/// the first use, at once or when an expert is first fetched. Thread-safe.
Result<bool> check_values(const ModelConfig& config, const WeightSpec& spec, const StoredWeight& stored,
                          const formats::Checkpoint& checkpoint);

/// Element i of a contiguous F32, BF16 or F16 tensor at any address: the file format promises no alignment.
float load_float(const Tensor& stored, std::int64_t i);

/// The parts of check_values on plain tensors (any alignment).
Result<bool> check_a_log(std::string_view name, const Tensor& stored, std::int64_t heads);
Result<bool> check_scales(std::string_view name, const Tensor& scales);
Result<bool> check_float_scales(std::string_view name, const Tensor& scales);

}  // namespace palimpsest
