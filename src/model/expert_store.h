#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "kernels/op_args.h"
#include "model/weight_stream.h"
#include "tensor/buffer.h"

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
  /// Whether acquire() and release() look at ids: where they do not, ids need not be in host memory, and none may be given.
  virtual bool reads_ids() const { return true; }
  /// ExpertsArgs::device_experts of a layer that lies on a device. What the device is asked for from here on may read those in `ids`, which lie there.
  virtual const void* device_experts(std::int64_t layer, const Tensor& ids) {
    (void)layer, (void)ids;
    return nullptr;
  }
  /// Rows of the running pass whose experts of a layer compute() computes, from acquire() on.
  virtual HostRows host_rows(std::int64_t layer) const { return (void)layer, HostRows::kNone; }
  virtual void compute(ExecContext& ctx, std::int64_t layer, const ExpertsArgs& args) { (void)ctx, (void)layer, (void)args; }
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

/// Experts that lie in a device's memory, or visit it.
class DeviceExperts final : public ExpertStore {
 public:
  /// layers[l] and tables[l] (ops::expert_table) are of layer l; empty for layers without experts. `stream`: null where none visit.
  DeviceExperts(std::vector<std::vector<ExpertMatrices>> layers, std::vector<Buffer> tables, std::shared_ptr<WeightStream> stream)
      : layers_(std::move(layers)), tables_(std::move(tables)), stream_(std::move(stream)) {}

  const ExpertMatrices* acquire(std::int64_t layer, std::span<const std::int32_t>) override { return layers_[static_cast<std::size_t>(layer)].data(); }
  void release(std::int64_t, std::span<const std::int32_t>) override {}
  bool reads_ids() const override { return false; }
  const void* device_experts(std::int64_t layer, const Tensor& ids) override {
    if (stream_) stream_->fetch(layer, ids);
    return tables_[static_cast<std::size_t>(layer)].data();
  }
  HostRows host_rows(std::int64_t layer) const override { return stream_ ? stream_->host_rows(layer) : HostRows::kNone; }
  void compute(ExecContext& ctx, std::int64_t layer, const ExpertsArgs& args) override { stream_->compute(ctx, layer, args); }
  ExpertMatrices peek(std::int64_t layer, std::int32_t expert) override {
    ExpertMatrices views = layers_[static_cast<std::size_t>(layer)][static_cast<std::size_t>(expert)];
    for (Matrix* m : {&views.w1, &views.w3, &views.w2}) {
      if (stream_) stream_->send_home(layer, *m);
    }
    return views;
  }

 private:
  std::vector<std::vector<ExpertMatrices>> layers_;
  std::vector<Buffer> tables_;
  std::shared_ptr<WeightStream> stream_;
};

}  // namespace palimpsest
