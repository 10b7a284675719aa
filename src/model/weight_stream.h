#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "palimpsest/model_config.h"
#include "tensor/buffer.h"
#include "tensor/copy_queue.h"

namespace palimpsest {

/// Whether a pass of so many rows chooses few enough experts of a layer that only these are fetched, once it is known which they are; else all are
/// on their way before. Changes no bit.
inline bool fetches_chosen(const MoeConfig& moe, std::int64_t rows) { return rows * moe.experts_per_token <= moe.num_experts; }

/// Weights that lie in pinned memory of the host and visit the device, layer by layer, in two buffers there that layers take in turn: the next
/// layer's are copied while one computes. Views of these weights are views of the buffers, so kernels need not know; they are right from enter() of
/// their layer to the next one's. A pass is hold(), begin(), then enter() for every layer in order.
class WeightStream {
 public:
  /// What visits of one layer: [dense weights | experts], experts all `expert_bytes` apart; 0 where they are not alike (or there are none).
  struct Part {
    std::int64_t layer = 0;
    Buffer host;
    std::int64_t dense = 0, expert_bytes = 0;
  };
  /// `parts` ascend in layers; `buffers`: device memory, buffer_bytes for each lane that there are parts for.
  WeightStream(std::unique_ptr<CopyQueue> queue, std::vector<Part> parts, std::byte* buffers, std::int64_t buffer_bytes, const MoeConfig& moe);

  /// Copies on their way end before what they read is given back.
  ~WeightStream() { queue_.reset(); }

  /// Passes of several threads take turns: until the returned lock ends, nobody else asks for weights.
  std::unique_lock<std::mutex> hold() { return std::unique_lock(mutex_); }
  /// Asks for the first layers of a pass of so many rows.
  void begin(std::int64_t rows);
  /// What the device is asked for from here on is of this layer. Asks for the next one's weights.
  void enter(std::int64_t layer);
  /// Before the experts of a layer compute: fetches those in `ids`, unless all are there.
  void fetch(std::int64_t layer, const Tensor& ids);

  std::int64_t host_bytes() const;
  /// Turns a view of a buffer into one of the layer's weights where they lie; leaves others as they are.
  void send_home(std::int64_t layer, Tensor& t) const;
  void send_home(std::int64_t layer, Matrix& m) const;

 private:
  void ask(std::size_t part);
  std::byte* buffer(std::size_t part) const { return buffers_ + static_cast<std::int64_t>(part % CopyQueue::kLanes) * buffer_bytes_; }
  /// Position in parts_; their number where none of a layer's weights visit.
  std::size_t part_of(std::int64_t layer) const;
  bool chosen_only(const Part& part) const { return few_rows_ && part.expert_bytes > 0; }
  std::int64_t copied(const Part& part) const { return chosen_only(part) ? part.dense : part.host.bytes(); }
  void send_home(std::int64_t layer, void*& data, DeviceKind& device) const;

  std::unique_ptr<CopyQueue> queue_;
  std::vector<Part> parts_;
  std::byte* buffers_;
  std::int64_t buffer_bytes_;
  MoeConfig moe_;
  std::mutex mutex_;
  bool few_rows_ = false;
};

}  // namespace palimpsest
