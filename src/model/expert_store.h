#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/op_args.h"

namespace palimpsest {

/// Where the routed experts of a model live. Layers ask for the experts that a batch chose and give them back; they do not know
/// whether those were resident, on disk, or on another machine. Not thread-safe: one forward pass at a time.
class ExpertStore {
 public:
  virtual ~ExpertStore() = default;

  /// Views of all experts of a layer, [num_experts], of which those in `ids` (duplicates allowed) may be read until release().
  virtual const ExpertMatrices* acquire(std::int64_t layer, std::span<const std::int32_t> ids) = 0;
  virtual void release(std::int64_t layer, std::span<const std::int32_t> ids) = 0;
  /// A hint that these will be asked for soon.
  virtual void prefetch(std::int64_t layer, std::span<const std::int32_t> ids) {
    (void)layer;
    (void)ids;
  }
};

/// Experts in mapped files (or any memory that stays where it is): nothing to fetch, nothing to give back.
class ResidentExperts final : public ExpertStore {
 public:
  /// layers[l] holds the experts of layer l; empty for layers without experts.
  explicit ResidentExperts(std::vector<std::vector<ExpertMatrices>> layers) : layers_(std::move(layers)) {}

  const ExpertMatrices* acquire(std::int64_t layer, std::span<const std::int32_t>) override {
    return layers_[static_cast<std::size_t>(layer)].data();
  }
  void release(std::int64_t, std::span<const std::int32_t>) override {}

 private:
  std::vector<std::vector<ExpertMatrices>> layers_;
};

}  // namespace palimpsest
