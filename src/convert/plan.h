#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "convert/convert.h"
#include "formats/checkpoint.h"
#include "formats/safetensors.h"
#include "model/weight_spec.h"
#include "model/weights_check.h"

namespace palimpsest::convert {

using Item = formats::SafetensorsWriter::Item;

/// One weight of the new checkpoint: where it comes from and what it becomes.
struct PlannedWeight {
  const WeightSpec* spec = nullptr;  ///< null: a tensor that the text model does not use
  StoredWeight source;
  std::optional<Form> form;          ///< nothing: copied byte for byte
  std::vector<Item> items;           ///< one tensor, or codes and scales

  /// Whether the new rows are the stored columns.
  bool turned() const;
  std::uint64_t bytes() const;
};

struct Shard {
  std::string name;  ///< model-00001-of-00002.safetensors
  std::size_t begin = 0, end = 0;  ///< weights
  std::uint64_t bytes = 0;         ///< of its tensors
};

struct Plan {
  std::vector<PlannedWeight> weights;  ///< in the order of the list of weights, then unused tensors; the copy of a tied head is left out
  std::vector<Shard> shards;
  std::uint64_t bytes = 0;
};

/// What each weight becomes. `specs` must outlive the plan. The checkpoint must have passed the census.
Plan plan_conversion(const ModelConfig& config, const std::vector<WeightSpec>& specs, const formats::Checkpoint& checkpoint,
                     const Options& options);

/// Matrices that are too delicate for few bits, or too small to matter: never quantised.
bool stays_dense(WeightRole role);

/// Names of the form a weight is stored in: "BF16", "MXFP4", "I8".
std::string_view stored_name(const StoredWeight& stored);

/// Bytes of a tensor of the new checkpoint.
std::uint64_t item_bytes(const Item& item);

}  // namespace palimpsest::convert
