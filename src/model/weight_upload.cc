#include "model/weight_upload.h"

#include <algorithm>
#include <functional>

#include "base/error.h"
#include "model/staged_copy.h"
#include "model/weight_visit.h"
#include "ops/device.h"

namespace palimpsest {
namespace {

constexpr std::int64_t kAlignment = 256;

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

Buffer WeightUpload::run(Device& device, const std::function<void(std::int64_t, std::int64_t)>& on_progress, const Make& make,
                         std::span<const WeightSource::Mapping> mappings) {
  static_assert(StagedOptions{}.buffers * StagedOptions{}.buffer_bytes == kStagingBytes);
  if (const std::int64_t free = device.free_memory(); bytes_ > free)
    throw make_error(ErrorCode::kOutOfMemory, "the weights take {} bytes of the device's memory, {} are free", bytes_, free);
  std::vector<StagedFile> files;
  for (const auto& mapping : mappings) files.push_back({mapping.path, static_cast<std::int64_t>(mapping.bytes.size())});
  Buffer memory(bytes_, device);
  std::vector<StagedPiece> pieces;
  for (const Piece& piece : pieces_) {
    if (make && make(piece.from, piece.bytes, memory.data() + piece.offset)) continue;
    StagedPiece& staged = pieces.emplace_back(StagedPiece{.to = piece.offset, .bytes = piece.bytes, .from = piece.from});
    const auto in = std::find_if(mappings.begin(), mappings.end(), [&](const auto& m) {
      return std::less_equal<>()(m.bytes.data(), piece.from) && std::less<>()(piece.from, m.bytes.data() + m.bytes.size());
    });
    if (in == mappings.end()) continue;
    staged.file = static_cast<int>(in - mappings.begin());
    staged.at = piece.from - in->bytes.data();
  }
  copy_staged(device, memory.data(), pieces, files, {}, [&](std::int64_t end) {
    if (on_progress) on_progress(end, bytes_);
  });
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
