// The vision tower of the published Kimi K3 (its first layers, with random weights) on one picture, against the rate of its own products: processor
// time over what its floating-point operations would take at the rate that a product of 512 x 1024 by 4096 x 1024 (BF16) reaches, measured in between.
// Arguments: side of a square picture in pixels, layers of the tower, threads. `tower_on_device`: the same on the GPU, in seconds of the clock, with 16
// bits of activations as text models have there.

#include <time.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "bench_support.h"
#include "formats/safetensors.h"
#include "model/vision/vision_tower.h"
#include "ops/device.h"
#include "ops/ops.h"

namespace palimpsest::bench {
namespace {

constexpr std::int64_t kHidden = 1024, kAttention = 1536, kWide = 4096, kText = 7168;

double processor_seconds() {
  timespec now;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// A checkpoint with nothing but a tower, in a folder of its own that is removed at the end.
class TowerFolder {
 public:
  explicit TowerFolder(std::int64_t layers) {
    std::string name = (std::filesystem::temp_directory_path() / "palimpsest-bench-XXXXXX").string();
    path_ = ::mkdtemp(name.data());
    std::ofstream(path_ / "config.json") << R"({"media_placeholder_token_id": 1, "vision_config": {"patch_size": 14, "vt_hidden_size": 1024,
      "vt_intermediate_size": 4096, "vt_num_attention_heads": 12, "qkv_hidden_size": 1536, "norm_type": "rmsnorm", "mlp_type": "mlp2",
      "activation_func": "gelu_pytorch_tanh", "attn_bias": false, "linear_bias": false, "patch_embed_proj_bias": false, "init_pos_emb_height": 64,
      "init_pos_emb_width": 64, "init_pos_emb_time": 4, "pos_emb_type": "divided_fixed", "pos_emb_interpolation_mode": "bilinear",
      "merge_kernel_size": [2, 2], "merge_type": "sd2_tpool", "mm_projector_type": "patchmergerv2", "projector_hidden_act": "gelu",
      "projector_ln_eps": 1e-05, "text_hidden_size": 7168, "vt_num_hidden_layers": )"
                                         << layers << "}}";
    std::vector<formats::SafetensorsWriter::Item> items;
    const auto add = [&](const std::string& name_of, std::vector<std::int64_t> shape) { items.push_back({name_of, DType::kBF16, std::move(shape)}); };
    add("vision_tower.patch_embed.proj.weight", {kHidden, 3, 14, 14});
    add("vision_tower.patch_embed.pos_emb.weight", {64, 64, kHidden});
    for (std::int64_t i = 0; i < layers; ++i) {
      const std::string block = "vision_tower.encoder.blocks." + std::to_string(i) + ".";
      for (const char* norm : {"norm0.weight", "norm1.weight"}) add(block + norm, {kHidden});
      add(block + "wqkv.weight", {3 * kAttention, kHidden});
      add(block + "wo.weight", {kHidden, kAttention});
      add(block + "mlp.fc0.weight", {kWide, kHidden});
      add(block + "mlp.fc1.weight", {kHidden, kWide});
    }
    add("vision_tower.encoder.final_layernorm.weight", {kHidden});
    add("mm_projector.proj.0.weight", {4 * kHidden, 4 * kHidden});
    add("mm_projector.proj.2.weight", {kText, 4 * kHidden});
    add("mm_projector.post_norm.weight", {kText});
    formats::SafetensorsWriter writer(path_ / "model.safetensors", items);
    for (const auto& item : items) {
      std::int64_t numel = 1;
      for (const std::int64_t size : item.shape) numel *= size;
      std::vector<std::uint16_t> values(static_cast<std::size_t>(numel));
      for (std::size_t i = 0; i < values.size(); ++i) values[i] = float_to_bf16(static_cast<float>(base::uniform(1, i % 65536, 0) - 0.5) / 16);
      writer.append(std::as_bytes(std::span(values)));
    }
    writer.commit();
  }
  ~TowerFolder() { std::filesystem::remove_all(path_); }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

/// Floating-point operations a second of processor time of a large product, the best of some.
double product_rate(ExecContext& ctx) {
  constexpr std::int64_t kRows = 512;
  const std::vector<float> x = random_floats(kRows * kHidden, 3);
  std::vector<std::uint16_t> w(static_cast<std::size_t>(kWide * kHidden));
  for (std::size_t i = 0; i < w.size(); ++i) w[i] = float_to_bf16(static_cast<float>(base::uniform(2, i % 65536, 0) - 0.5));
  std::vector<float> y(static_cast<std::size_t>(kRows * kWide));
  double best = 0;
  for (int round = 0; round < 8; ++round) {
    const double start = processor_seconds();
    ops::matmul(ctx, {.x = Tensor::contiguous(const_cast<float*>(x.data()), DType::kF32, {kRows, kHidden}),
                      .w = {.dense = Tensor::contiguous(w.data(), DType::kBF16, {kWide, kHidden})},
                      .y = Tensor::contiguous(y.data(), DType::kF32, {kRows, kWide})});
    best = std::max(best, 2.0 * kRows * kWide * kHidden / (processor_seconds() - start));
  }
  return best;
}

/// Multiply-adds, twice, of everything that is a product: patches, attention, feed-forward parts, projector.
double tower_flops(double patches, double layers) {
  const double block = 2 * patches * (4.0 * kHidden * kAttention + 2.0 * kHidden * kWide) + 4 * patches * patches * kAttention;
  const double tokens = patches / 4;
  return 2 * patches * 588 * kHidden + layers * block + 2 * tokens * (16.0 * kHidden * kHidden + 4.0 * kHidden * kText);
}

void tower(benchmark::State& state) {
  const std::int64_t side = state.range(0) / 28 * 2, layers = state.range(1);
  const TowerFolder folder(layers);
  const auto model = VisionTower::load(folder.path());
  const PatchGridSize grid{1, side, side};
  ExecContext ctx(static_cast<int>(state.range(2)));
  ctx.workspace.reserve(vision_workspace_bytes(*model, grid));
  std::vector<float> out(static_cast<std::size_t>(vision_tokens(model->config(), grid) * kText));
  const PatchSource pixels = [](std::int64_t, std::int64_t count, float* to) {
    for (std::int64_t i = 0; i < count * 588; ++i) to[i] = static_cast<float>(i % 255) / 127 - 1;
  };
  double best = 1e30, rate = 0;
  for (auto _ : state) {
    state.PauseTiming();
    rate = std::max(rate, product_rate(ctx));
    state.ResumeTiming();
    const double start = processor_seconds();
    encode_picture(ctx, *model, grid, pixels, Tensor::contiguous(out.data(), DType::kF32, {vision_tokens(model->config(), grid), kText}));
    best = std::min(best, processor_seconds() - start);
  }
  const double flops = tower_flops(static_cast<double>(grid.patches()), static_cast<double>(layers));
  state.counters["processor_s"] = best;
  state.counters["GFLOP/s"] = flops / best / 1e9;
  state.counters["product GFLOP/s"] = rate / 1e9;
  state.counters["times its products"] = best * rate / flops;
}
void tower_on_device(benchmark::State& state) {
  const std::int64_t side = state.range(0) / 28 * 2, layers = state.range(1);
  Device* device = nullptr;
  try {
    device = &ops::device(DeviceKind::kCuda);
  } catch (const Error& error) {
    state.SkipWithError(error.what());
    return;
  }
  const TowerFolder folder(layers);
  const auto model = VisionTower::load(folder.path(), std::nullopt, *device);
  const PatchGridSize grid{1, side, side};
  ExecContext ctx(1, *device);
  ctx.activations = kDefaultActivations;
  ctx.workspace.reserve(vision_workspace_bytes(*model, grid));
  const std::int64_t tokens = vision_tokens(model->config(), grid);
  const Buffer out(tokens * kText * 4, *device);
  const PatchSource pixels = [](std::int64_t, std::int64_t count, float* to) {
    for (std::int64_t i = 0; i < count * 588; ++i) to[i] = static_cast<float>(i % 255) / 127 - 1;
  };
  for (auto _ : state) {
    encode_picture(ctx, *model, grid, pixels, Tensor::contiguous(out.data(), DType::kF32, {tokens, kText}, device->kind()));
    device->wait();
  }
  state.counters["TFLOP/s"] = benchmark::Counter(tower_flops(static_cast<double>(grid.patches()), static_cast<double>(layers)) / 1e12, benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(tower_on_device)->Args({448, 27})->Args({1792, 27})->Args({4088, 1})->ArgNames({"side", "layers"})->UseRealTime()->Unit(benchmark::kMillisecond);

BENCHMARK(tower)->Args({448, 3, 1})->Args({448, 3, 2})->Args({448, 27, 2})->ArgNames({"side", "layers", "threads"})->UseRealTime()->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace palimpsest::bench

BENCHMARK_MAIN();
