#include "model/weight_stream.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "ops/host_experts.h"

namespace palimpsest {

WeightStream::WeightStream(std::unique_ptr<CopyQueue> queue, std::vector<Part> parts, std::byte* buffers, std::int64_t buffer_bytes, const MoeConfig& moe)
    : queue_(std::move(queue)), parts_(std::move(parts)), buffers_(buffers), buffer_bytes_(buffer_bytes), moe_(moe) {}

WeightStream::~WeightStream() {
  host_.reset();
  queue_.reset();
}

void WeightStream::compute_steps(std::unique_ptr<ops::HostExperts> host) { host_ = std::move(host); }

bool WeightStream::has_experts() const {
  return std::any_of(parts_.begin(), parts_.end(), [](const Part& part) { return part.host.bytes() > part.dense; });
}

std::size_t WeightStream::part_of(std::int64_t layer) const {
  const auto found = std::lower_bound(parts_.begin(), parts_.end(), layer, [](const Part& part, std::int64_t l) { return part.layer < l; });
  return found != parts_.end() && found->layer == layer ? static_cast<std::size_t>(found - parts_.begin()) : parts_.size();
}

void WeightStream::begin(std::int64_t rows, const StepRows& steps) {
  steps_ = steps;
  few_rows_ = !host_ && fetches_chosen(moe_, rows);
  for (std::size_t i = 0; i < CopyQueue::kLanes; ++i) ask(i);
}

void WeightStream::ask(std::size_t i) {
  if (i >= parts_.size() || copied(parts_[i]) == 0) return;
  queue_->copy(static_cast<int>(i % CopyQueue::kLanes), buffer(i), parts_[i].host.data(), copied(parts_[i]));
}

void WeightStream::enter(std::int64_t layer) {
  const std::size_t i = part_of(layer);
  if (i == parts_.size()) return;
  if (copied(parts_[i]) > 0) queue_->await(static_cast<int>(i % CopyQueue::kLanes));
  if (i > 0) ask(i + 1);  // over the part before this one, of which all kernels have been asked for
}

void WeightStream::fetch(std::int64_t layer, const Tensor& ids) {
  const std::size_t i = part_of(layer);
  if (i == parts_.size() || !chosen_only(parts_[i])) return;
  const Part& part = parts_[i];
  queue_->copy_chosen(ids, buffer(i) + part.dense, part.host.data() + part.dense, part.expert_bytes);
}

HostRows WeightStream::host_rows(std::int64_t layer) const {
  const std::size_t i = part_of(layer);
  if (!host_ || i == parts_.size() || parts_[i].host.bytes() == parts_[i].dense) return HostRows::kNone;
  return steps_.all ? HostRows::kAll : steps_.rows.defined() ? HostRows::kSome : HostRows::kNone;
}

void WeightStream::compute(ExecContext& ctx, std::int64_t layer, const ExpertsArgs& args) { host_->compute(ctx, *queue_, layer, args, steps_.rows); }

std::int64_t WeightStream::host_bytes() const {
  std::int64_t sum = 0;
  for (const Part& part : parts_) sum += part.host.bytes();
  return sum;
}

void WeightStream::send_home(std::int64_t layer, void*& data, DeviceKind& device) const {
  const std::size_t i = part_of(layer);
  if (i == parts_.size()) return;
  const auto* at = static_cast<const std::byte*>(data);
  if (std::less<>()(at, buffer(i)) || !std::less<>()(at, buffer(i) + parts_[i].host.bytes())) return;
  data = parts_[i].host.data() + (at - buffer(i));
  device = DeviceKind::kCpu;
}

void WeightStream::send_home(std::int64_t layer, Tensor& t) const {
  if (t.defined()) send_home(layer, t.data, t.device);
}

void WeightStream::send_home(std::int64_t layer, Matrix& m) const {
  for (Tensor* t : {&m.dense, &m.mx.codes, &m.mx.scales, &m.int8.codes, &m.int8.scales}) send_home(layer, *t);
  if (m.is_blocks()) send_home(layer, m.blocks.data, m.blocks.device);
}

}  // namespace palimpsest
