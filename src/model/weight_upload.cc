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

/// Of layers that visit: buffers of the largest for as many as there are lanes.
std::int64_t buffers_for(std::int64_t count, std::int64_t largest) { return std::min<std::int64_t>(count, CopyQueue::kLanes) * largest; }

}  // namespace

bool stays(const WeightOffload& offload, std::int64_t layer) { return offload.device_layers && layer >= *offload.device_layers; }

ops::ExpertShapes expert_shapes(const ModelConfig& config) {
  const MoeConfig& moe = config.moe;
  return {moe.num_experts, moe.experts_per_token, moe.latent_size > 0 ? moe.latent_size : config.hidden_size, moe.intermediate_size};
}

void check_offload(const WeightOffload& offload, const ModelConfig& config) {
  const auto has_experts = [](const LayerSpec& layer) { return layer.ffn == Ffn::kMixtureOfExperts; };
  if (offload.device_layers && (*offload.device_layers < 0 || *offload.device_layers > config.num_layers()))
    throw make_error(ErrorCode::kUsage, "--gpu-layers must be between 0 and {}, the layers of this model, not {}", config.num_layers(), *offload.device_layers);
  if (offload.experts && std::none_of(config.layers.begin(), config.layers.end(), has_experts))
    throw make_error(ErrorCode::kUsage, "--cpu-moe: this model has no routed experts");
}

WeightUpload::WeightUpload(Weights& weights, std::vector<std::vector<ExpertMatrices>>& experts, const WeightOffload& offload) {
  const auto matrix = [&](Matrix& m) { add(m); };
  const auto vector = [&](Tensor& t) { add(t); };
  visit_ends(weights, matrix, vector);
  for (std::size_t l = 0; l < weights.layers.size(); ++l) {
    const auto layer = static_cast<std::int64_t>(l);
    const bool all = stays(offload, layer), of_experts = (all || offload.experts) && !experts[l].empty();
    if (all || of_experts) visiting_.emplace_back().layer = layer;
    const std::ptrdiff_t here = static_cast<std::ptrdiff_t>(visiting_.size()) - 1;
    into_ = all ? here : -1;
    visit_layer(weights.layers[l], matrix, vector);
    if (all) region().dense = region().bytes;
    into_ = of_experts ? here : -1;
    add_experts(experts[l]);
  }
  into_ = -1;
}

/// Notes how far apart they are, where they are alike.
void WeightUpload::add_experts(std::vector<ExpertMatrices>& experts) {
  std::int64_t first = -1, begin = 0;
  bool alike = true;
  for (ExpertMatrices& e : experts) {
    begin = region().bytes;
    for (Matrix* m : {&e.w1, &e.w3, &e.w2}) add(*m);
    if (first < 0) first = region().bytes - begin;
    alike = alike && region().bytes - begin == first;
  }
  if (into_ >= 0 && alike) region().expert_bytes = std::max<std::int64_t>(first, 0);
}

void WeightUpload::add(void*& data, DeviceKind& device, std::int64_t bytes) {
  Region& r = region();
  const auto [seen, is_new] = offsets_.try_emplace({into_, data, bytes}, r.bytes);
  views_.push_back({&data, &device, seen->second, into_});
  if (!is_new) return;
  r.pieces.push_back({static_cast<const std::byte*>(data), bytes, r.bytes});
  const std::int64_t taken = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  r.bytes += taken;
  padding_ += taken - bytes;
}

void WeightUpload::add(Tensor& t) {
  if (t.defined()) add(t.data, t.device, extent(t));
}

void WeightUpload::add(Matrix& m) {
  for (Tensor* t : {&m.dense, &m.mx.codes, &m.mx.scales, &m.int8.codes, &m.int8.scales}) add(*t);
  if (m.is_blocks()) add(m.blocks.data, m.blocks.device, m.blocks.rows * m.blocks.row_bytes);
}

std::int64_t WeightUpload::host_bytes() const {
  std::int64_t sum = 0;
  for (const Region& r : visiting_) sum += r.bytes;
  return sum;
}

std::int64_t WeightUpload::buffer_bytes() const {
  std::int64_t most = 0;
  for (const Region& r : visiting_) most = std::max(most, r.bytes);
  return most;
}

std::vector<WeightUpload::LayerBytes> WeightUpload::layer_bytes() const {
  std::vector<LayerBytes> layers;
  for (const Region& r : visiting_) {
    layers.resize(static_cast<std::size_t>(r.layer) + 1);
    layers.back() = {r.dense, r.bytes - r.dense};
  }
  return layers;
}

std::int64_t WeightUpload::place_of(const View& view) const {
  return view.region < 0 ? view.offset : resident_.bytes + view.region % CopyQueue::kLanes * buffer_bytes() + view.offset;
}

Buffer WeightUpload::run(Device& device, const std::function<void(std::int64_t, std::int64_t)>& on_progress, const Make& make,
                         std::span<const WeightSource::Mapping> mappings, const Checks& checks) {
  static_assert(StagedOptions::kBuffers * StagedOptions::kBufferBytes == kStagingBytes);
  if (device.kind() != DeviceKind::kCpu && bytes() > device.free_memory())
    throw make_error(ErrorCode::kOutOfMemory, "the weights take {} bytes of the device's memory, {} are free", bytes(), device.free_memory());
  std::vector<StagedFile> files;
  for (const auto& mapping : mappings) files.push_back({mapping.path, static_cast<std::int64_t>(mapping.bytes.size())});
  const std::int64_t total = resident_.bytes + host_bytes();
  std::int64_t before = 0;
  StagedOptions options;
  options.when_read = checks.check;
  const auto fill = [&](const Region& r, std::byte* memory, bool staged) {
    std::vector<StagedPiece> pieces;
    for (const Piece& piece : r.pieces) {
      if (make && make(piece.from, piece.bytes, memory + piece.offset)) continue;
      StagedPiece& one = pieces.emplace_back(StagedPiece{.to = piece.offset, .bytes = piece.bytes, .from = piece.from});
      if (const auto mark = checks.marks.find(piece.from); mark != checks.marks.end()) one.mark = mark->second;
      const auto in = std::find_if(mappings.begin(), mappings.end(), [&](const auto& m) {
        return std::less_equal<>()(m.bytes.data(), piece.from) && std::less<>()(piece.from, m.bytes.data() + m.bytes.size());
      });
      if (in == mappings.end()) continue;
      one.file = static_cast<int>(in - mappings.begin());
      one.at = piece.from - in->bytes.data();
    }
    const auto progress = [&](std::int64_t end) {
      if (on_progress) on_progress(before + end, total);
    };
    if (staged) copy_staged(device, memory, pieces, files, options, progress);
    else read_staged(memory, pieces, files, options, progress);
    before += r.bytes;
    progress(0);
  };
  Buffer memory(bytes(), device);
  fill(resident_, memory.data(), true);
  for (Region& r : visiting_) {
    r.host = Buffer(r.bytes, device, MemoryKind::kPinnedHost);
    fill(r, r.host.data(), false);
  }
  device.wait();  // for what was made
  for (const View& view : views_) {
    *view.data = memory.data() + place_of(view);
    *view.device = device.kind();
  }
  return memory;
}

std::unique_ptr<WeightStream> WeightUpload::stream(const Buffer& reservation, std::unique_ptr<CopyQueue> queue, const MoeConfig& moe) {
  if (visiting_.empty()) return nullptr;
  std::vector<WeightStream::Part> parts;
  for (Region& r : visiting_) parts.push_back({r.layer, std::move(r.host), r.dense, r.expert_bytes});
  return std::make_unique<WeightStream>(std::move(queue), std::move(parts), reservation.data() + resident_.bytes, buffer_bytes(), moe);
}

WeightSizes weight_sizes(const Model& model) {
  Weights weights = model.weights();
  std::vector<std::vector<ExpertMatrices>> experts;
  WeightSizes sizes;
  for (std::int64_t l = 0; l < model.config().num_layers(); ++l) {
    auto& layer = experts.emplace_back();
    if (!std::holds_alternative<MoeWeights>(weights.layers[static_cast<std::size_t>(l)].ffn)) continue;
    const ExpertMatrices* all = weights.experts->acquire(l, {});
    layer.assign(all, all + model.config().moe.num_experts);
    weights.experts->release(l, {});
    sizes.expert_tables += ops::expert_table_bytes(model.config().moe.num_experts);
  }
  const WeightUpload upload(weights, experts, {.device_layers = 0});
  sizes.ends = upload.resident_bytes();
  sizes.padding = upload.padding();
  sizes.layers = upload.layer_bytes();
  return sizes;
}

DeviceWeights device_weights(const WeightSizes& sizes, const WeightOffload& offload) {
  DeviceWeights sum{.reserved = sizes.ends, .expert_tables = sizes.expert_tables, .padding = sizes.padding};
  std::int64_t count = 0, largest = 0;
  for (std::size_t l = 0; l < sizes.layers.size(); ++l) {
    const auto [dense, experts] = sizes.layers[l];
    const bool all = stays(offload, static_cast<std::int64_t>(l));
    const std::int64_t visits = (all ? dense : 0) + (all || offload.experts ? experts : 0);
    sum.reserved += dense + experts - visits;
    sum.host += visits;
    count += visits > 0;
    largest = std::max(largest, visits);
  }
  sum.buffers = buffers_for(count, largest);
  return sum;
}

DeviceWeights device_weights(const Model& model, const WeightOffload& offload) { return device_weights(weight_sizes(model), offload); }

}  // namespace palimpsest
