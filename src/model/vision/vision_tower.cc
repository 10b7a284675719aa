#include "model/vision/vision_tower.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "formats/quote.h"
#include "model/tensor_problems.h"
#include "model/weight_upload.h"
#include "model/weights_check.h"
#include "ops/ops.h"
#include "ops/vision_ops.h"
#include "tensor/measuring_device.h"

namespace palimpsest {
namespace {

/// Rows that are in flight at once. Bounds activations beside what must be kept of every patch: the stream, keys and values.
constexpr std::int64_t kChunk = 512;
constexpr std::int64_t kTokenChunk = 128;  // of merged patches: the projector's products are four times as wide
constexpr double kPieceFlops = 8e9;
/// Each piece of attention turns all keys once: of the largest picture 16 rows at a time ran at 20 GFLOP/s, 64 at 52 (docs/vision.md).
constexpr std::int64_t kFewestRows = 64;

std::string shape_text(std::initializer_list<std::int64_t> shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

}  // namespace

/// Finds every tensor of the tower once, by name and shape.
struct VisionTower::Loader {
  VisionTower& tower;
  TensorProblems problems;

  /// A tensor as stored; without a checkpoint one without values.
  Tensor find(const std::string& name, std::initializer_list<std::int64_t> shape) {
    std::int64_t numel = 1;
    for (const std::int64_t size : shape) numel *= size;
    ++tower.tensors_;
    tower.parameters_ += numel;
    if (!tower.checkpoint_) {
      tower.bytes_ += numel * dtype_size(DType::kBF16);
      return Tensor::contiguous(reinterpret_cast<void*>(std::uintptr_t{64}), DType::kBF16, shape);  // nobody reads it
    }
    const formats::TensorEntry* entry = tower.checkpoint_->find(name);
    if (entry == nullptr) {
      problems.add(fmt::format("tensor {}: expected {}, found nothing", formats::quote(name), shape_text(shape)));
      return {};
    }
    const bool floats = entry->dtype == DType::kBF16 || entry->dtype == DType::kF16 || entry->dtype == DType::kF32;
    if (!floats || !std::equal(shape.begin(), shape.end(), entry->shape().begin(), entry->shape().end())) {
      problems.add(fmt::format("tensor {}: expected {} in BF16, F16 or F32, found {}", formats::quote(name), shape_text(shape), formats::describe(*entry)));
      return {};
    }
    tower.bytes_ += static_cast<std::int64_t>(entry->bytes());
    return tower.checkpoint_->view(*entry);
  }
  Matrix matrix(const std::string& name, std::int64_t rows, std::int64_t columns) { return {.dense = find(name, {rows, columns})}; }
  /// As F32, since norms compute with that.
  Tensor vector(const std::string& name, std::int64_t size) {
    const Tensor stored = find(name, {size});
    if (!tower.checkpoint_ || !stored.defined()) return stored;
    auto& copy = tower.vectors_.emplace_back(static_cast<std::size_t>(size));
    for (std::int64_t i = 0; i < size; ++i) copy[static_cast<std::size_t>(i)] = load_float(stored, i);
    return Tensor::contiguous(copy.data(), DType::kF32, {size});
  }

  void load() {
    const VisionConfig& c = tower.config_;
    VisionWeights& w = tower.weights_;
    const std::int64_t hidden = c.hidden_size, p = c.attention_size, merged = c.cell_patches() * hidden;
    w.patch_embed = {.dense = find("vision_tower.patch_embed.proj.weight", {hidden, 3, c.patch_size, c.patch_size})};
    if (w.patch_embed.defined()) w.patch_embed.dense = w.patch_embed.dense.reshape({hidden, c.patch_values()});
    w.positions = find("vision_tower.patch_embed.pos_emb.weight", {c.position_rows, c.position_columns, hidden});
    for (std::int64_t i = 0; i < c.num_layers; ++i) {
      const std::string block = fmt::format("vision_tower.encoder.blocks.{}.", i);
      VisionBlock& b = w.blocks.emplace_back();
      b.norm0 = vector(block + "norm0.weight", hidden);
      b.norm1 = vector(block + "norm1.weight", hidden);
      const Matrix wqkv = matrix(block + "wqkv.weight", 3 * p, hidden);
      if (wqkv.defined()) {
        b.wq = wqkv.row_range(0, p);
        b.wk = wqkv.row_range(p, p);
        b.wv = wqkv.row_range(2 * p, p);
      }
      b.wo = matrix(block + "wo.weight", hidden, p);
      b.fc0 = matrix(block + "mlp.fc0.weight", c.intermediate_size, hidden);
      b.fc1 = matrix(block + "mlp.fc1.weight", hidden, c.intermediate_size);
    }
    w.final_layernorm = vector("vision_tower.encoder.final_layernorm.weight", hidden);
    w.projector0 = matrix("mm_projector.proj.0.weight", merged, merged);
    w.projector2 = matrix("mm_projector.proj.2.weight", c.text_hidden_size, merged);
    w.post_norm = vector("mm_projector.post_norm.weight", c.text_hidden_size);
  }

  static bool is_ours(std::string_view name) { return name.starts_with("vision_tower.") || name.starts_with("mm_projector."); }
};

std::shared_ptr<const VisionTower> VisionTower::load(const std::filesystem::path& model, std::optional<double> norm_eps, Device& device) {
  const auto config = load_vision_config(model);
  if (!config) return nullptr;
  const std::shared_ptr<VisionTower> tower(new VisionTower);
  tower->config_ = *config;
  if (norm_eps) tower->config_.norm_eps = *norm_eps;
  tower->checkpoint_ = std::make_unique<formats::Checkpoint>(value_or_throw(formats::Checkpoint::open(model), model.string()));
  const auto entries = tower->checkpoint_->entries();
  const auto stored = std::count_if(entries.begin(), entries.end(), [](const auto& entry) { return Loader::is_ours(entry.name); });
  if (stored == 0) return nullptr;  // a text model made of a checkpoint that had one
  Loader loader{*tower, {}};
  loader.load();
  if (loader.problems.empty() && stored != tower->tensors_) {
    loader.problems.add(fmt::format("{} tensors of a vision tower: config.json describes one of {}", stored, tower->tensors_));
  }
  if (!loader.problems.empty()) {
    Error error = loader.problems.error("config.json");
    throw error.add_context(model.string());
  }
  if (device.kind() != DeviceKind::kCpu) tower->upload(device);
  return tower;
}

void VisionTower::upload(Device& device) {
  WeightUpload upload;
  upload.add(weights_.patch_embed);
  upload.add(weights_.positions);
  for (VisionBlock& b : weights_.blocks) {
    for (Matrix* m : {&b.wq, &b.wk, &b.wv, &b.wo, &b.fc0, &b.fc1}) upload.add(*m);
    for (Tensor* t : {&b.norm0, &b.norm1}) upload.add(*t);
  }
  for (Tensor* t : {&weights_.final_layernorm, &weights_.post_norm}) upload.add(*t);
  for (Matrix* m : {&weights_.projector0, &weights_.projector2}) upload.add(*m);
  on_device_ = upload.run(device, {});
  device_ = device.kind();
  checkpoint_.reset();
  vectors_.clear();
}

std::int64_t VisionTower::upload_bytes() const {
  constexpr std::int64_t kGap = 256;  // a tensor, and a third of wqkv, begins at a multiple of it
  const std::int64_t vectors = 2 * config_.num_layers * config_.hidden_size + config_.hidden_size + config_.text_hidden_size;
  return bytes_ + vectors * static_cast<std::int64_t>(sizeof(float)) + kGap * (tensors_ + 2 * config_.num_layers);
}

std::shared_ptr<const VisionTower> VisionTower::outline(const VisionConfig& config) {
  const std::shared_ptr<VisionTower> tower(new VisionTower);
  tower->config_ = config;
  Loader{*tower, {}}.load();
  return tower;
}

std::int64_t vision_tokens(const VisionConfig& config, const PatchGridSize& grid) { return grid.rows * grid.columns / config.cell_patches(); }

PictureEncoder::PictureEncoder(ExecContext& ctx, const VisionTower& tower, const PatchGridSize& grid, PatchSource patches, const Tensor& out, VisionObserver observer)
    : ctx_(ctx), config_(tower.config()), weights_(tower.weights()), grid_(grid), patches_(std::move(patches)), out_(out), observer_(std::move(observer)), piece_flops_(kPieceFlops) {
  PALIMPSEST_CHECK(grid.rows % config_.merge == 0 && grid.columns % config_.merge == 0 && grid.frames >= 1 && grid.frames <= config_.max_frames, "a grid of whole tokens");
  PALIMPSEST_CHECK(ctx.planning() || (ctx.device.kind() == tower.device() && out.device == tower.device()), "the tower computes where its weights lie");
  PALIMPSEST_CHECK(out.dtype == DType::kF32 && out.size(0) == vision_tokens(config_, grid) && out.size(1) == config_.text_hidden_size, "a row a token");
  const std::int64_t heads = config_.num_heads, width = config_.head_dim(), chunk = std::min(kChunk, grid.patches());
  const auto take = [&](std::initializer_list<std::int64_t> shape) { return ctx.workspace.allocate(DType::kF32, shape); };
  x_ = take({grid.patches(), config_.hidden_size});
  k_ = take({grid.patches(), heads, width});
  v_ = take({grid.patches(), heads, width});
  turns_ = take({std::max(grid.rows, grid.columns), width / 4, 2});
  q_ = take({chunk, heads, width});
  o_ = take({chunk, heads, width});
  ops::patch_turns(ctx, {.head_dim = width, .turns = turns_});
  count_ = chunk;
}

bool PictureEncoder::step() {
  const ArenaScope scope(ctx_.workspace);
  switch (stage_) {
    case Stage::kEmbed:
      embed();
      if (!next_chunk(grid_.patches(), kChunk)) stage_ = Stage::kPositions;
      return true;
    case Stage::kPositions:
      ops::patch_positions(ctx_, {.table = weights_.positions, .grid = grid_, .x = x_});
      watch("patch_embed", x_);
      stage_ = Stage::kKeys;
      return true;
    case Stage::kKeys:  // keys and values of all patches before any of them changes
      keys_and_values();
      if (!next_chunk(grid_.patches(), kChunk)) stage_ = Stage::kQueries;
      return true;
    case Stage::kQueries:
      queries();
      stage_ = Stage::kAttend;
      return true;
    case Stage::kAttend:
      attend();
      if (attended_ == count_) stage_ = Stage::kFeedForward;
      return true;
    case Stage::kFeedForward:
      feed_forward();
      stage_ = Stage::kQueries;
      if (next_chunk(grid_.patches(), kChunk)) return true;
      watch(fmt::format("block{}", block_), x_);
      stage_ = ++block_ < weights_.blocks.size() && !ctx_.planning() ? Stage::kKeys : Stage::kFinish;  // a plan has seen them all
      return true;
    case Stage::kFinish:
      finish();
      first_ = count_ = 0;
      next_chunk(out_.size(0), kTokenChunk);
      stage_ = Stage::kProject;
      return true;
    case Stage::kProject:
      project();
      if (!next_chunk(out_.size(0), kTokenChunk)) stage_ = Stage::kDone;
      return true;
    case Stage::kDone:
      break;
  }
  return false;
}

/// Goes on to the next chunk of `rows` rows, or back to the first: false. A plan has seen the largest with the first.
bool PictureEncoder::next_chunk(std::int64_t rows, std::int64_t chunk) {
  first_ += count_;
  const bool more = first_ < rows && !ctx_.planning();
  if (!more) first_ = 0;
  count_ = std::min(chunk, rows - first_);
  return more;
}

void PictureEncoder::watch(const std::string& what, const Tensor& values) const {
  if (observer_ && !ctx_.planning()) observer_(what, ctx_.to_host(values));
}

Tensor PictureEncoder::allocate(std::int64_t rows, std::int64_t width) const { return ctx_.workspace.allocate(DType::kF32, {rows, width}); }

Tensor PictureEncoder::normalised(const Tensor& weight) const {
  const Tensor h = allocate(count_, config_.hidden_size);
  ops::rms_norm(ctx_, {.x = chunk_of(x_), .weight = weight, .eps = eps(), .y = h});
  return h;
}

/// heads [count, heads, head_dim] = W h, turned where wanted.
void PictureEncoder::project_heads(const Tensor& h, const Matrix& w, const Tensor& heads, bool turned) const {
  ops::matmul(ctx_, {.x = h, .w = w, .y = heads.reshape({heads.size(0), config_.attention_size})});
  if (turned) ops::patch_rotary(ctx_, {.x = heads, .first = first_, .grid = grid_, .turns = turns_});
}

void PictureEncoder::embed() {
  const Tensor values = allocate(count_, config_.patch_values());
  if (ctx_.on_device() && !ctx_.planning()) {
    std::vector<float> cut(static_cast<std::size_t>(values.numel()));
    patches_(first_, count_, cut.data());
    ctx_.device.copy(values.data, cut.data(), values.bytes());
  } else if (!ctx_.planning()) {
    patches_(first_, count_, values.as<float>());
  }
  ops::matmul(ctx_, {.x = values, .w = weights_.patch_embed, .y = chunk_of(x_)});
}

void PictureEncoder::keys_and_values() {
  const VisionBlock& block = weights_.blocks[block_];
  const Tensor h = normalised(block.norm0);
  project_heads(h, block.wk, chunk_of(k_), true);
  project_heads(h, block.wv, chunk_of(v_), false);
}

void PictureEncoder::queries() {
  const VisionBlock& block = weights_.blocks[block_];
  project_heads(normalised(block.norm0), block.wq, q_.rows(0, count_), true);
  attended_ = 0;
}

/// Some rows of the chunk against all patches: the longest of the pieces, since it grows with the picture. A device takes all of them at once.
void PictureEncoder::attend() {
  const double row = 4 * static_cast<double>(grid_.patches() * config_.attention_size);
  const auto most = static_cast<std::int64_t>(std::min(piece_flops_ * ctx_.pool.size() / row, static_cast<double>(kChunk)));
  const std::int64_t left = count_ - attended_, rows = ctx_.planning() || ctx_.on_device() ? left : std::min(std::max<std::int64_t>(most / kFewestRows, 1) * kFewestRows, left);
  ops::patch_attention(ctx_, {.q = q_.rows(attended_, rows), .k = k_, .v = v_, .scale = 1 / std::sqrt(static_cast<float>(config_.head_dim())), .o = o_.rows(attended_, rows)});
  attended_ += rows;
}

void PictureEncoder::feed_forward() {
  const VisionBlock& block = weights_.blocks[block_];
  const Tensor rows = chunk_of(x_), attended = allocate(count_, config_.hidden_size);
  ops::matmul(ctx_, {.x = o_.rows(0, count_).reshape({count_, config_.attention_size}), .w = block.wo, .y = attended});
  ops::add(ctx_, {.x = attended, .y = rows});
  const Tensor h = normalised(block.norm1), wide = allocate(count_, config_.intermediate_size);
  ops::matmul(ctx_, {.x = h, .w = block.fc0, .y = wide});
  ops::unary(ctx_, {.x = wide, .function = Unary::kGeluTanh, .y = wide});
  ops::matmul(ctx_, {.x = wide, .w = block.fc1, .y = h});
  ops::add(ctx_, {.x = h, .y = rows});
}

void PictureEncoder::finish() {
  ops::rms_norm(ctx_, {.x = x_, .weight = weights_.final_layernorm, .eps = eps(), .y = x_});
  watch("features", x_);
}

void PictureEncoder::project() {
  const std::int64_t merged_width = config_.cell_patches() * config_.hidden_size;
  const Tensor merged = allocate(count_, merged_width), hidden = allocate(count_, merged_width), rows = chunk_of(out_);
  ops::patch_merge(ctx_, {.x = x_, .grid = grid_, .side = config_.merge, .first = first_, .y = merged});
  watch("merged", merged);
  ops::matmul(ctx_, {.x = merged, .w = weights_.projector0, .y = hidden});
  ops::gelu_erf(ctx_, {.x = hidden, .y = hidden});
  ops::matmul(ctx_, {.x = hidden, .w = weights_.projector2, .y = rows});
  ops::rms_norm(ctx_, {.x = rows, .weight = weights_.post_norm, .eps = static_cast<float>(config_.projector_eps), .y = rows});
}

void encode_picture(ExecContext& ctx, const VisionTower& tower, const PatchGridSize& grid, const PatchSource& patches, const Tensor& out,
                    const VisionObserver& observer) {
  const ArenaScope scope(ctx.workspace);
  PictureEncoder encoder(ctx, tower, grid, patches, out, observer);
  while (encoder.step()) {
  }
}

std::int64_t vision_workspace_bytes(const VisionTower& tower, const PatchGridSize& grid) { return vision_workspace_bytes(tower, grid, tower.device()); }

std::int64_t vision_workspace_bytes(const VisionTower& tower, const PatchGridSize& grid, DeviceKind where) {
  MeasuringDevice device(where);
  ExecContext ctx(1, device);
  ctx.workspace = Arena::measuring_only(device);
  const Tensor out = Tensor::contiguous(reinterpret_cast<void*>(std::uintptr_t{64}), DType::kF32, {vision_tokens(tower.config(), grid), tower.config().text_hidden_size}, where);
  encode_picture(ctx, tower, grid, {}, out);
  return ctx.workspace.peak();
}

PatchGridSize grid_of(const VisionConfig& config, std::int64_t patches) {
  const auto whole = [&](std::int64_t n, std::int64_t by) { return (n + by * config.merge - 1) / (by * config.merge) * config.merge; };
  const std::int64_t columns = std::min(whole(static_cast<std::int64_t>(std::ceil(std::sqrt(static_cast<double>(patches)))), 1), whole(config.side_patch_limit, 1));
  return {1, whole(patches, columns), columns};
}

std::int64_t kept_rows_bytes(const VisionTower& tower, std::int64_t patches, std::int64_t rows) {
  // Two pictures in part and small ones in a pass, and the pass's copy.
  const std::int64_t held = 2 * vision_tokens(tower.config(), grid_of(tower.config(), patches)) + 2 * rows;
  return held * tower.config().text_hidden_size * static_cast<std::int64_t>(sizeof(float));
}

std::int64_t picture_rows_bytes(const VisionTower& tower, std::int64_t patches, std::int64_t rows, DeviceKind device) {
  const PatchGridSize grid = grid_of(tower.config(), patches);
  const std::int64_t made = vision_tokens(tower.config(), grid) * tower.config().text_hidden_size * static_cast<std::int64_t>(sizeof(float));
  return vision_workspace_bytes(tower, grid, device) + (device == DeviceKind::kCpu ? kept_rows_bytes(tower, patches, rows) : made);
}

}  // namespace palimpsest
