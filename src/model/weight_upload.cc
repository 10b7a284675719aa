#include "model/weight_upload.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "model/weight_visit.h"
#include "ops/device.h"

namespace palimpsest {
namespace {

constexpr std::int64_t kAlignment = 256, kPieceBytes = WeightUpload::kStagingBytes / 2;

/// From the first element to the last.
std::int64_t extent(const Tensor& t) {
  if (t.numel() == 0) return 0;
  std::int64_t last = 0;
  for (int d = 0; d < t.rank; ++d) last += (t.sizes[d] - 1) * t.strides[d];
  return (last + 1) * dtype_size(t.dtype);
}

}  // namespace

WeightUpload::WeightUpload(Weights& weights, std::vector<std::vector<ExpertMatrices>>& experts) {
  visit_weights(weights, [&](Matrix& m) { add(m); }, [&](Tensor& t) { add(t); });
  for (auto& layer : experts) {
    for (ExpertMatrices& e : layer) {
      for (Matrix* m : {&e.w1, &e.w3, &e.w2}) add(*m);
    }
  }
}

void WeightUpload::add(void*& data, DeviceKind& device, std::int64_t bytes) {
  const auto [seen, is_new] = offsets_.try_emplace({data, bytes}, bytes_);
  views_.push_back({&data, &device, seen->second});
  if (!is_new) return;
  pieces_.push_back({static_cast<const std::byte*>(data), bytes, bytes_});
  const std::int64_t taken = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  bytes_ += taken;
  padding_ += taken - bytes;
}

void WeightUpload::add(Tensor& t) {
  if (t.defined()) add(t.data, t.device, extent(t));
}

void WeightUpload::add(Matrix& m) {
  for (Tensor* t : {&m.dense, &m.mx.codes, &m.mx.scales, &m.int8.codes, &m.int8.scales}) add(*t);
  if (m.is_blocks()) add(m.blocks.data, m.blocks.device, m.blocks.rows * m.blocks.row_bytes);
}

Buffer WeightUpload::run(Device& device, const std::function<void(std::int64_t, std::int64_t)>& on_progress, const Make& make) {
  if (const std::int64_t free = device.free_memory(); bytes_ > free)
    throw make_error(ErrorCode::kOutOfMemory, "the weights take {} bytes of the device's memory, {} are free", bytes_, free);
  Buffer memory(bytes_, device);
  Buffer halves[2] = {Buffer(kPieceBytes, device, MemoryKind::kPinnedHost), Buffer(kPieceBytes, device, MemoryKind::kPinnedHost)};
  std::int64_t begin = 0, end = 0;  // of the reservation, what lies in `half`
  int half = 0;
  const auto flush = [&] {
    if (begin == end) return;
    device.wait();  // for the other half, whose place is needed next
    device.copy(memory.data() + begin, halves[half].data(), end - begin);
    if (on_progress) on_progress(end, bytes_);
    half = 1 - half;
    begin = end;
  };
  for (const Piece& piece : pieces_) {
    if (make && make(piece.from, piece.bytes, memory.data() + piece.offset)) continue;
    if (begin != end && piece.offset - end >= kAlignment) flush();  // behind pieces that were made
    for (std::int64_t done = 0; done < piece.bytes;) {
      const std::int64_t at = piece.offset + done;
      if (at - begin >= kPieceBytes) flush();
      if (begin == end) begin = at;
      const std::int64_t count = std::min(piece.bytes - done, kPieceBytes - (at - begin));
      std::memcpy(halves[half].data() + (at - begin), piece.from + done, static_cast<std::size_t>(count));
      done += count;
      end = at + count;
    }
  }
  flush();
  device.wait();
  if (on_progress) on_progress(bytes_, bytes_);
  for (const View& view : views_) {
    *view.data = memory.data() + view.offset;
    *view.device = device.kind();
  }
  return memory;
}

DeviceWeights device_weights(const Model& model) {
  Weights weights = model.weights();
  std::vector<std::vector<ExpertMatrices>> experts;
  DeviceWeights sum;
  for (std::int64_t l = 0; l < model.config().num_layers(); ++l) {
    auto& layer = experts.emplace_back();
    if (!std::holds_alternative<MoeWeights>(weights.layers[static_cast<std::size_t>(l)].ffn)) continue;
    const ExpertMatrices* all = weights.experts->acquire(l, {});
    layer.assign(all, all + model.config().moe.num_experts);
    weights.experts->release(l, {});
    sum.expert_tables += ops::expert_table_bytes(model.config().moe.num_experts);
  }
  const WeightUpload upload(weights, experts);
  sum.reserved = upload.bytes();
  sum.padding = upload.padding();
  return sum;
}

}  // namespace palimpsest
