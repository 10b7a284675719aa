#include "model/vision/vision_tower.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "formats/quote.h"
#include "model/tensor_problems.h"
#include "model/weights_check.h"
#include "ops/ops.h"
#include "ops/vision_ops.h"

namespace palimpsest {
namespace {

/// Rows that are in flight at once. Bounds activations beside what must be kept of every patch: the stream, keys and values.
constexpr std::int64_t kChunk = 512;

std::string shape_text(std::initializer_list<std::int64_t> shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

/// Calls f(first, count) for the chunks of `rows` rows.
template <class F>
void for_each_chunk(std::int64_t rows, F f) {
  for (std::int64_t first = 0; first < rows; first += kChunk) f(first, std::min(kChunk, rows - first));
}

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

std::shared_ptr<const VisionTower> VisionTower::load(const std::filesystem::path& model, std::optional<double> norm_eps) {
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
  return tower;
}

std::shared_ptr<const VisionTower> VisionTower::outline(const VisionConfig& config) {
  const std::shared_ptr<VisionTower> tower(new VisionTower);
  tower->config_ = config;
  Loader{*tower, {}}.load();
  return tower;
}

std::int64_t vision_tokens(const VisionConfig& config, const PatchGridSize& grid) { return grid.rows * grid.columns / config.cell_patches(); }

namespace {

/// The tower over one picture: what every chunk of rows needs.
class PictureEncoder {
 public:
  PictureEncoder(ExecContext& ctx, const VisionTower& tower, const PatchGridSize& grid)
      : ctx_(ctx), config_(tower.config()), weights_(tower.weights()), grid_(grid) {
    const std::int64_t heads = config_.num_heads, width = config_.head_dim();
    x_ = ctx.workspace.allocate(DType::kF32, {grid.patches(), config_.hidden_size});
    k_ = ctx.workspace.allocate(DType::kF32, {grid.patches(), heads, width});
    v_ = ctx.workspace.allocate(DType::kF32, {grid.patches(), heads, width});
    turns_ = ctx.workspace.allocate(DType::kF32, {std::max(grid.rows, grid.columns), width / 4, 2});
    ops::patch_turns(ctx, {.head_dim = width, .turns = turns_});
  }

  const Tensor& stream() const { return x_; }

  void embed(const PatchSource& patches) {
    for_each_chunk(grid_.patches(), [&](std::int64_t first, std::int64_t count) {
      const ArenaScope scope(ctx_.workspace);
      const Tensor values = allocate(count, config_.patch_values());
      if (!ctx_.planning()) patches(first, count, values.as<float>());
      ops::matmul(ctx_, {.x = values, .w = weights_.patch_embed, .y = x_.rows(first, count)});
    });
    ops::patch_positions(ctx_, {.table = weights_.positions, .grid = grid_, .x = x_});
  }

  void run_block(const VisionBlock& block) {
    // Keys and values of all patches before any of them changes.
    for_each_chunk(grid_.patches(), [&](std::int64_t first, std::int64_t count) {
      const ArenaScope scope(ctx_.workspace);
      const Tensor h = normalised(block.norm0, first, count);
      project_heads(h, block.wk, k_.rows(first, count), first, true);
      project_heads(h, block.wv, v_.rows(first, count), first, false);
    });
    for_each_chunk(grid_.patches(), [&](std::int64_t first, std::int64_t count) {
      const ArenaScope scope(ctx_.workspace);
      attend(block, first, count);
      feed_forward(block, first, count);
    });
  }

  void finish() {
    for_each_chunk(grid_.patches(), [&](std::int64_t first, std::int64_t count) {
      const Tensor rows = x_.rows(first, count);
      ops::rms_norm(ctx_, {.x = rows, .weight = weights_.final_layernorm, .eps = eps(), .y = rows});
    });
  }

  void project(const Tensor& out, const VisionObserver& observer) {
    const std::int64_t merged_width = config_.cell_patches() * config_.hidden_size;
    for_each_chunk(out.size(0), [&](std::int64_t first, std::int64_t count) {
      const ArenaScope scope(ctx_.workspace);
      const Tensor merged = allocate(count, merged_width), hidden = allocate(count, merged_width), rows = out.rows(first, count);
      ops::patch_merge(ctx_, {.x = x_, .grid = grid_, .side = config_.merge, .first = first, .y = merged});
      if (observer && !ctx_.planning()) observer("merged", merged);
      ops::matmul(ctx_, {.x = merged, .w = weights_.projector0, .y = hidden});
      ops::gelu_erf(ctx_, {.x = hidden, .y = hidden});
      ops::matmul(ctx_, {.x = hidden, .w = weights_.projector2, .y = rows});
      ops::rms_norm(ctx_, {.x = rows, .weight = weights_.post_norm, .eps = static_cast<float>(config_.projector_eps), .y = rows});
    });
  }

 private:
  Tensor allocate(std::int64_t rows, std::int64_t width) { return ctx_.workspace.allocate(DType::kF32, {rows, width}); }
  float eps() const { return static_cast<float>(config_.norm_eps); }

  Tensor normalised(const Tensor& weight, std::int64_t first, std::int64_t count) {
    const Tensor h = allocate(count, config_.hidden_size);
    ops::rms_norm(ctx_, {.x = x_.rows(first, count), .weight = weight, .eps = eps(), .y = h});
    return h;
  }

  /// heads [count, heads, head_dim] = W h, turned where wanted.
  void project_heads(const Tensor& h, const Matrix& w, const Tensor& heads, std::int64_t first, bool turned) {
    ops::matmul(ctx_, {.x = h, .w = w, .y = heads.reshape({heads.size(0), config_.attention_size})});
    if (turned) ops::patch_rotary(ctx_, {.x = heads, .first = first, .grid = grid_, .turns = turns_});
  }

  void attend(const VisionBlock& block, std::int64_t first, std::int64_t count) {
    const ArenaScope scope(ctx_.workspace);
    const Tensor h = normalised(block.norm0, first, count);
    const std::int64_t heads = config_.num_heads, width = config_.head_dim();
    const Tensor q = ctx_.workspace.allocate(DType::kF32, {count, heads, width}), o = ctx_.workspace.allocate(DType::kF32, {count, heads, width});
    project_heads(h, block.wq, q, first, true);
    ops::patch_attention(ctx_, {.q = q, .k = k_, .v = v_, .scale = 1 / std::sqrt(static_cast<float>(width)), .o = o});
    ops::matmul(ctx_, {.x = o.reshape({count, config_.attention_size}), .w = block.wo, .y = h});
    ops::add(ctx_, {.x = h, .y = x_.rows(first, count)});
  }

  void feed_forward(const VisionBlock& block, std::int64_t first, std::int64_t count) {
    const ArenaScope scope(ctx_.workspace);
    const Tensor h = normalised(block.norm1, first, count), wide = allocate(count, config_.intermediate_size);
    ops::matmul(ctx_, {.x = h, .w = block.fc0, .y = wide});
    ops::unary(ctx_, {.x = wide, .function = Unary::kGeluTanh, .y = wide});
    ops::matmul(ctx_, {.x = wide, .w = block.fc1, .y = h});
    ops::add(ctx_, {.x = h, .y = x_.rows(first, count)});
  }

  ExecContext& ctx_;
  const VisionConfig& config_;
  const VisionWeights& weights_;
  PatchGridSize grid_;
  Tensor x_, k_, v_, turns_;
};

}  // namespace

void encode_picture(ExecContext& ctx, const VisionTower& tower, const PatchGridSize& grid, const PatchSource& patches, const Tensor& out,
                    const VisionObserver& observer) {
  const VisionConfig& config = tower.config();
  PALIMPSEST_CHECK(grid.rows % config.merge == 0 && grid.columns % config.merge == 0 && grid.frames >= 1 && grid.frames <= config.max_frames,
                   "a grid of whole tokens");
  PALIMPSEST_CHECK(out.dtype == DType::kF32 && out.size(0) == vision_tokens(config, grid) && out.size(1) == config.text_hidden_size, "a row a token");
  const auto watch = [&](const std::string& what, const Tensor& values) {
    if (observer && !ctx.planning()) observer(what, values);
  };
  const ArenaScope scope(ctx.workspace);
  PictureEncoder encoder(ctx, tower, grid);
  encoder.embed(patches);
  watch("patch_embed", encoder.stream());
  for (std::size_t i = 0; i < tower.weights().blocks.size(); ++i) {
    encoder.run_block(tower.weights().blocks[i]);
    watch(fmt::format("block{}", i), encoder.stream());
  }
  encoder.finish();
  watch("features", encoder.stream());
  encoder.project(out, observer);
}

std::int64_t vision_workspace_bytes(const VisionTower& tower, const PatchGridSize& grid) {
  ExecContext ctx(1);
  ctx.workspace = Arena::measuring_only();
  const Tensor out = Tensor::contiguous(reinterpret_cast<void*>(std::uintptr_t{64}), DType::kF32, {vision_tokens(tower.config(), grid), tower.config().text_hidden_size});
  encode_picture(ctx, tower, grid, {}, out);
  return ctx.workspace.peak();
}

}  // namespace palimpsest
