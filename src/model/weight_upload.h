#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "model/weight_source.h"
#include "model/weights.h"
#include "ops/host_experts.h"
#include "palimpsest/model.h"
#include "tensor/buffer.h"

namespace palimpsest {

/// Throws Error{kUsage} for layers or experts that a model does not have.
void check_offload(const WeightOffload& offload, const ModelConfig& config);
/// Whether all weights of the layer stay with the host.
bool stays(const WeightOffload& offload, std::int64_t layer);

/// Of the routed experts; zeros where there are none.
ops::ExpertShapes expert_shapes(const ModelConfig& config);

/// Puts weights into one reservation of a device, in the form they are stored in, and makes their views views of it. What is named twice (tied
/// embeddings) is copied once. Weights that shall stay with the host go to pinned memory of it, a layer's together, and their views become views of
/// the two buffers at the end of the reservation that they visit (WeightStream).
class WeightUpload {
 public:
  /// Of what add() is given.
  WeightUpload() = default;
  /// Takes note of every weight and expert. The views must stay where they are until run().
  WeightUpload(Weights& weights, std::vector<std::vector<ExpertMatrices>>& experts, const WeightOffload& offload = {});

  /// Pinned memory of the host that run() takes.
  static constexpr std::int64_t kStagingBytes = 64 << 20;

  /// Takes note of one more; an undefined one is nothing.
  void add(Tensor& t);
  void add(Matrix& m);

  /// Of the reservation, buffers included.
  std::int64_t bytes() const { return resident_.bytes + lanes() * buffer_bytes(); }
  std::int64_t resident_bytes() const { return resident_.bytes; }
  /// That stay with the host.
  std::int64_t host_bytes() const;
  /// Of both, of which no weight's: weights begin at multiples of 256.
  std::int64_t padding() const { return padding_; }
  /// What of a layer stays with the host: dense weights, experts.
  struct LayerBytes {
    std::int64_t dense = 0, experts = 0;
  };
  std::vector<LayerBytes> layer_bytes() const;

  /// Copies through pinned memory (copy_staged), reading what lies in `mappings` from the files; what stays with the host is read to its place.
  /// on_progress(done, total) in bytes; may be empty.
  /// Throws Error{kOutOfMemory} with the bytes needed and free, and what copy_staged() throws, before any view is changed.
  /// make(from, bytes, to), where there is one, is asked first for every piece: true when it wrote it to the device itself, or to pinned memory.
  using Make = std::function<bool(const void* from, std::int64_t bytes, void* to)>;
  /// check(mark), for every piece that begins where `marks` says so, once its bytes were read; from several threads, and may throw.
  struct Checks {
    std::map<const void*, std::int64_t> marks;
    std::function<void(std::int64_t)> check;
  };
  Buffer run(Device& device, const std::function<void(std::int64_t, std::int64_t)>& on_progress, const Make& make = {},
             std::span<const WeightSource::Mapping> mappings = {}, const Checks& checks = {});
  /// After run(), once: who brings what stayed with the host; null where nothing did. The reservation must outlive it.
  std::unique_ptr<WeightStream> stream(const Buffer& reservation, std::unique_ptr<CopyQueue> queue, const MoeConfig& moe);

 private:
  /// Bytes of the host and where they go in a region.
  struct Piece {
    const std::byte* from;
    std::int64_t bytes, offset;
  };
  /// The reservation, or what stays of a layer with the host.
  struct Region {
    std::vector<Piece> pieces;
    std::int64_t bytes = 0;
    std::int64_t layer = -1, dense = 0, expert_bytes = 0;  ///< of the latter
    Buffer host;
  };
  /// A view's pointer and device, to be changed.
  struct View {
    void** data;
    DeviceKind* device;
    std::int64_t offset;
    std::ptrdiff_t region;  ///< position in visiting_, -1: resident_
  };
  void add(void*& data, DeviceKind& device, std::int64_t bytes);
  void add_experts(std::vector<ExpertMatrices>& experts);
  Region& region() { return into_ < 0 ? resident_ : visiting_[static_cast<std::size_t>(into_)]; }
  std::int64_t lanes() const { return std::min<std::int64_t>(CopyQueue::kLanes, static_cast<std::int64_t>(visiting_.size())); }
  std::int64_t buffer_bytes() const;
  std::int64_t place_of(const View& view) const;

  Region resident_;
  std::vector<Region> visiting_;
  std::ptrdiff_t into_ = -1;  ///< where add() puts
  std::vector<View> views_;
  std::map<std::tuple<std::ptrdiff_t, const void*, std::int64_t>, std::int64_t> offsets_;  ///< of what was seen, by region
  std::int64_t padding_ = 0;
};

/// What the weights of a model take when every layer stays with the host: all that is needed to know what they take otherwise.
struct WeightSizes {
  std::int64_t ends = 0;  ///< of no layer
  std::int64_t padding = 0;
  std::int64_t expert_tables = 0;  ///< ops::expert_table
  std::vector<WeightUpload::LayerBytes> layers;
};
/// Of a model whether it is an outline, lies on the host or on a device.
WeightSizes weight_sizes(const Model& model);

/// What weights take on a device.
struct DeviceWeights {
  std::int64_t reserved = 0;       ///< of weights that lie there, with padding
  std::int64_t buffers = 0;        ///< for those that visit
  std::int64_t expert_tables = 0;
  std::int64_t host = 0;           ///< pinned memory of the host, with padding
  std::int64_t padding = 0;        ///< in both
  std::int64_t bytes() const { return reserved + buffers + expert_tables; }
};
DeviceWeights device_weights(const WeightSizes& sizes, const WeightOffload& offload);
DeviceWeights device_weights(const Model& model, const WeightOffload& offload = {});

}  // namespace palimpsest
