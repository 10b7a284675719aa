#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "kernels/op_args.h"
#include "palimpsest/model_config.h"
#include "tensor/buffer.h"
#include "tensor/copy_queue.h"

namespace palimpsest {

class ExecContext;
namespace ops {
class HostExperts;
}

/// Whether a pass of so many rows chooses few enough experts of a layer that only these are fetched, once it is known which they are; else all are
/// on their way before. Changes no bit.
inline bool fetches_chosen(const MoeConfig& moe, std::int64_t rows) { return rows * moe.experts_per_token <= moe.num_experts; }

/// Rows of a pass that are no prompts' (kernels/prompt_rows.h).
struct StepRows {
  Tensor rows;  ///< I32, where the device reads it; absent: all rows of the pass or none
  bool all = false;
};

/// Which rows of a pass have their experts computed by the host.
enum class HostRows : std::uint8_t { kNone, kSome, kAll };

/// Weights that lie in pinned memory of the host and visit the device, layer by layer, in two buffers there that layers take in turn: the next
/// layer's are copied while one computes. Views of these weights are views of the buffers, so kernels need not know; they are right from enter() of
/// their layer to the next one's. A pass is hold(), begin(), then enter() for every layer in order.
///
/// With compute_steps() experts that stay with the host visit for rows of prompts only: those of steps are computed where they lie.
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
  ~WeightStream();

  /// Passes of several threads take turns: until the returned lock ends, nobody else asks for weights.
  std::unique_lock<std::mutex> hold() { return std::unique_lock(mutex_); }
  /// Of parts with experts, from the first pass on.
  void compute_steps(std::unique_ptr<ops::HostExperts> host);
  bool computes_steps() const { return host_ != nullptr; }
  bool has_experts() const;
  /// After a pass that threw, before the next: what it asked for could come later, over what that one fetches.
  void settle() noexcept { queue_->settle(); }
  /// Asks for the first layers of a pass of so many rows.
  void begin(std::int64_t rows, const StepRows& steps = {});
  /// What the device is asked for from here on is of this layer. Asks for the next one's weights.
  void enter(std::int64_t layer);
  /// Before the experts of a layer compute: fetches those in `ids`, unless all are there.
  void fetch(std::int64_t layer, const Tensor& ids);
  /// Rows whose experts of a layer compute() takes; a device that reads the others may compute these too, before.
  HostRows host_rows(std::int64_t layer) const;
  void compute(ExecContext& ctx, std::int64_t layer, const ExpertsArgs& args);

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
  bool copies_experts(const Part& part) const { return !chosen_only(part) && !(host_ && steps_.all); }
  std::int64_t copied(const Part& part) const { return copies_experts(part) ? part.host.bytes() : part.dense; }
  void send_home(std::int64_t layer, void*& data, DeviceKind& device) const;

  std::unique_ptr<CopyQueue> queue_;
  std::vector<Part> parts_;
  std::byte* buffers_;
  std::int64_t buffer_bytes_;
  MoeConfig moe_;
  std::mutex mutex_;
  bool few_rows_ = false;
  StepRows steps_;
  std::unique_ptr<ops::HostExperts> host_;
};

}  // namespace palimpsest
