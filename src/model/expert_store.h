#pragma once

#include <cstdint>
#include <functional>
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
  /// An expert to look at, not to compute with: its bytes as they are stored, checked by nobody, readable until the next call.
  virtual ExpertMatrices peek(std::int64_t layer, std::int32_t expert) {
    const ExpertMatrices views = acquire(layer, {&expert, 1})[expert];
    release(layer, {&expert, 1});
    return views;
  }
  /// A hint that these will be asked for soon.
  virtual void prefetch(std::int64_t layer, std::span<const std::int32_t> ids) {
    (void)layer;
    (void)ids;
  }
};

/// Experts in mapped files: nothing to fetch, nothing to give back.
///
/// `verify(layer, expert)` is called once for every expert before it is first read; it throws an Error for bytes that no product may see.
class MappedExperts final : public ExpertStore {
 public:
  /// layers[l] holds the experts of layer l; empty for layers without experts.
  MappedExperts(std::vector<std::vector<ExpertMatrices>> layers, std::function<void(std::int64_t, std::int32_t)> verify)
      : layers_(std::move(layers)), verify_(std::move(verify)) {
    for (const auto& experts : layers_) verified_.emplace_back(experts.size(), false);
  }

  const ExpertMatrices* acquire(std::int64_t layer, std::span<const std::int32_t> ids) override {
    auto& verified = verified_[static_cast<std::size_t>(layer)];
    for (const std::int32_t id : ids) {
      const auto expert = static_cast<std::size_t>(id);
      if (verified[expert]) continue;
      verify_(layer, id);
      verified[expert] = true;
    }
    return layers_[static_cast<std::size_t>(layer)].data();
  }
  void release(std::int64_t, std::span<const std::int32_t>) override {}
  ExpertMatrices peek(std::int64_t layer, std::int32_t expert) override {
    return layers_[static_cast<std::size_t>(layer)][static_cast<std::size_t>(expert)];
  }

 private:
  std::vector<std::vector<ExpertMatrices>> layers_;
  std::function<void(std::int64_t, std::int32_t)> verify_;
  std::vector<std::vector<bool>> verified_;
};

}  // namespace palimpsest
