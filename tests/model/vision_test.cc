// The vision tower against recorded outputs of the published code (float64), and against itself: threads, chunks, other pictures. With
// PALIMPSEST_TEST_DEVICE=cuda it computes there.

#include <gtest/gtest.h>

#include <cstring>
#include <map>

#include "base/error.h"
#include "media/patches.h"
#include "model/vision/vision_tower.h"
#include "ops/device.h"
#include "support/fake_device.h"
#include "support/golden.h"
#include "support/numeric.h"
#include "support/shared_data.h"
#include "support/test_model.h"

namespace palimpsest {
namespace {

using test::Golden;

Device& device() { return ops::device(test::test_device()); }
std::shared_ptr<const VisionTower> load_tower(const std::filesystem::path& folder, std::optional<double> eps = std::nullopt) { return VisionTower::load(folder, eps, device()); }

/// Rows on the device, and copied from there.
struct Rows {
  Rows(const VisionTower& tower, const PatchGridSize& grid)
      : tokens(vision_tokens(tower.config(), grid)), width(tower.config().text_hidden_size), memory(tokens * width * 4, device()) {}
  Tensor view() const { return Tensor::contiguous(memory.data(), DType::kF32, {tokens, width}, device().kind()); }
  std::vector<float> read() const {
    std::vector<float> out(static_cast<std::size_t>(tokens * width));
    device().copy(out.data(), memory.data(), memory.bytes());
    return out;
  }
  std::int64_t tokens, width;
  Buffer memory;
};

/// A run of the tower: the projected rows and what the observer saw, by name.
struct TowerRun {
  std::vector<float> projected;
  std::map<std::string, std::vector<float>> seen;
};

TowerRun run_tower(const VisionTower& tower, const PatchGridSize& grid, const float* pixels, int threads = 2) {
  ExecContext ctx(threads, device());
  ctx.workspace.reserve(vision_workspace_bytes(tower, grid));
  TowerRun run;
  const Rows rows(tower, grid);
  const std::int64_t values = tower.config().patch_values();
  encode_picture(
      ctx, tower, grid, [&](std::int64_t first, std::int64_t count, float* out) { std::copy_n(pixels + first * values, count * values, out); },
      rows.view(),
      [&](const std::string& what, const Tensor& t) {
        auto& all = run.seen[what];
        all.insert(all.end(), t.as<const float>(), t.as<const float>() + t.numel());
      });
  // A plan for a device has room for every form in which weights may lie there.
  if (ctx.on_device()) EXPECT_LE(ctx.workspace.peak(), ctx.workspace.capacity());
  else EXPECT_EQ(ctx.workspace.peak(), ctx.workspace.capacity()) << "the plan says exactly what is needed";
  run.projected = rows.read();
  return run;
}

/// Patches and grids of one recorded case.
struct Case {
  std::vector<PatchGridSize> grids;
  std::vector<float> pixels;
};

Case recorded_case(const Golden& golden, int number) {
  const std::string prefix = "case" + std::to_string(number) + ".";
  Case out;
  out.pixels = golden.floats(prefix + "pixel_values");
  const auto thw = golden.ids(prefix + "grid_thw");
  for (std::size_t i = 0; i < thw.size(); i += 3) out.grids.push_back({thw[i], thw[i + 1], thw[i + 2]});
  return out;
}

class GoldenVision : public testing::Test {
 protected:
  void SetUp() override {
    folder = test::shared_path("golden/kimi_k3_vision");
    if (folder.empty()) GTEST_SKIP() << "shared data absent: golden/kimi_k3_vision";
    golden = std::make_unique<Golden>(folder / "golden.safetensors");
  }
  std::filesystem::path folder;
  std::unique_ptr<Golden> golden;
};

/// The recorded values are float64. A float32 run of the recording code is off by at most 3.3e-6 in values of about 4 (golden README), some 14 units of
/// float32's roundoff there; our sums run in other orders, so allow four times that, in proportion to the largest value.
constexpr double kRoundoffs = 64 * 0x1.0p-24;

TEST_F(GoldenVision, TowerAndProjector) {
  for (const auto& [variant, eps] : {std::pair{"eps_f32", 1.1920928955078125e-07}, {"eps_2m7", 0x1.0p-7}}) {
    const auto tower = load_tower(folder, eps);
    ASSERT_NE(tower, nullptr);
    for (int number = 0; number < 4; ++number) {
      const Case recorded = recorded_case(*golden, number);
      // Pictures are independent: each alone, joined as they were recorded.
      TowerRun all;
      const float* pixels = recorded.pixels.data();
      for (const PatchGridSize& grid : recorded.grids) {
        const TowerRun run = run_tower(*tower, grid, pixels);
        pixels += grid.patches() * tower->config().patch_values();
        all.projected.insert(all.projected.end(), run.projected.begin(), run.projected.end());
        for (const auto& [what, values] : run.seen) all.seen[what].insert(all.seen[what].end(), values.begin(), values.end());
      }
      all.seen["projected"] = all.projected;
      for (const auto& [what, got] : all.seen) {
        const auto want = golden->floats("case" + std::to_string(number) + "." + variant + "." + what);
        const auto worst = test::worst_difference(got, want);
        EXPECT_LE(worst.value, kRoundoffs * worst.largest) << variant << ", case " << number << ", " << what << ", element " << worst.index;
      }
      EXPECT_EQ(all.seen.size(), 6u);
    }
  }
}

TEST_F(GoldenVision, ThreadsChangeNoBit) {
  const auto tower = load_tower(folder);
  const Case recorded = recorded_case(*golden, 1);
  const TowerRun one = run_tower(*tower, recorded.grids[0], recorded.pixels.data(), 1);
  for (const int threads : {2, 3, 7}) EXPECT_EQ(run_tower(*tower, recorded.grids[0], recorded.pixels.data(), threads).projected, one.projected) << threads;
}

/// More patches than are computed at once: everything has its place, and the plan is exact (run_tower checks it).
TEST_F(GoldenVision, PicturesLargerThanAChunk) {
  const auto tower = load_tower(folder);
  const PatchGridSize grid{1, 26, 42};
  std::vector<float> pixels(static_cast<std::size_t>(grid.patches() * tower->config().patch_values()));
  for (std::size_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<float>(i * 2654435761u % 256) / 127.5f - 1;
  const TowerRun run = run_tower(*tower, grid, pixels.data());
  for (const float x : run.projected) ASSERT_TRUE(std::isfinite(x));
}

/// Attention in pieces of 16 rows, and of all rows of a chunk.
TEST_F(GoldenVision, PiecesChangeNoBit) {
  const auto tower = load_tower(folder);
  const PatchGridSize grid{1, 26, 42};
  std::vector<std::vector<float>> rows;
  std::vector<int> steps;
  for (const double piece : {1.0, 1e8, 1e30}) {
    ExecContext ctx(2, device());
    ctx.workspace.reserve(vision_workspace_bytes(*tower, grid));
    const Rows made(*tower, grid);
    PictureEncoder encoder(
        ctx, *tower, grid,
        [&](std::int64_t first, std::int64_t count, float* out) {
          for (std::int64_t i = 0; i < count * tower->config().patch_values(); ++i) out[i] = static_cast<float>((first * 588 + i) * 40503 % 256) / 127.5f - 1;
        },
        made.view());
    encoder.set_piece(piece);
    steps.push_back(0);
    while (encoder.step()) ++steps.back();
    EXPECT_FALSE(encoder.step()) << "it is done";
    rows.push_back(made.read());
    EXPECT_EQ(rows.back(), rows.front()) << piece;
  }
  if (test::test_device() != DeviceKind::kCpu) return;  // which takes all rows of a chunk at once
  EXPECT_GT(steps[0], steps[1]);
  EXPECT_GT(steps[1], steps[2]);
}

/// What a plan assumes is never less than a picture can be.
TEST(VisionConfig, MostPatchesBoundEveryPicture) {
  for (const std::int64_t limit : {4, 16, 1000, 65536}) {
    VisionConfig config;
    config.patch_size = 14;
    config.merge = 2;
    config.patch_limit = limit;
    std::int64_t most = 0;
    for (std::int64_t w = 1; w < 60000; w += 1 + w / 17) {
      for (std::int64_t h = 1; h < 60000; h += 1 + h / 19) {
        most = std::max(most, media::patch_grid(w, h, {.patch_limit = limit}).patches());
      }
    }
    EXPECT_LE(most, config.most_patches()) << limit;
    EXPECT_GE(grid_of(config, config.most_patches()).patches(), config.most_patches());
  }
  // The published processor pads what the limit has let through.
  EXPECT_EQ(media::patch_grid(4096, 4096, {}).patches(), 4 * 16641);
}

/// The same bytes, and no more of the device than plans count.
TEST_F(GoldenVision, WeightsGoToADevice) {
  const auto host = VisionTower::load(folder);
  test::FakeDevice fake;
  const auto there = VisionTower::load(folder, std::nullopt, fake);
  EXPECT_EQ(there->device(), DeviceKind::kCuda);
  EXPECT_EQ(host->device_bytes(), 0);
  EXPECT_GT(there->device_bytes(), host->file_bytes());
  EXPECT_LE(there->device_bytes(), VisionTower::outline(host->config())->upload_bytes());
  const auto same = [](const Tensor& a, const Tensor& b) {
    EXPECT_EQ(b.device, DeviceKind::kCuda);
    EXPECT_NE(a.data, b.data);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(b.data) % 256, 0u);
    return a.bytes() == b.bytes() && std::memcmp(a.data, b.data, static_cast<std::size_t>(a.bytes())) == 0;
  };
  const VisionWeights &a = host->weights(), &b = there->weights();
  EXPECT_TRUE(same(a.positions, b.positions) && same(a.final_layernorm, b.final_layernorm) && same(a.post_norm, b.post_norm));
  EXPECT_TRUE(same(a.patch_embed.dense, b.patch_embed.dense) && same(a.projector0.dense, b.projector0.dense) && same(a.projector2.dense, b.projector2.dense));
  for (std::size_t i = 0; i < a.blocks.size(); ++i) {
    const VisionBlock &x = a.blocks[i], &y = b.blocks[i];
    EXPECT_TRUE(same(x.norm0, y.norm0) && same(x.norm1, y.norm1)) << i;
    for (const auto& [m, n] : {std::pair(&x.wq, &y.wq), {&x.wk, &y.wk}, {&x.wv, &y.wv}, {&x.wo, &y.wo}, {&x.fc0, &y.fc0}, {&x.fc1, &y.fc1}}) EXPECT_TRUE(same(m->dense, n->dense)) << i;
  }
  test::FakeDevice full(host->file_bytes());
  EXPECT_THROW(VisionTower::load(folder, std::nullopt, full), Error);
}

TEST_F(GoldenVision, CountsAndOutline) {
  const auto tower = load_tower(folder);
  const auto outline = VisionTower::outline(tower->config());
  EXPECT_EQ(outline->tensors(), 6 + 2 * 6);
  EXPECT_EQ(outline->tensors(), tower->tensors());
  EXPECT_EQ(outline->parameters(), tower->parameters());
  EXPECT_EQ(outline->file_bytes(), tower->file_bytes());
  EXPECT_EQ(vision_workspace_bytes(*outline, {1, 8, 8}, tower->device()), vision_workspace_bytes(*tower, {1, 8, 8}));
}

constexpr const char* kPublished = R"({"media_placeholder_token_id": 163605, "vision_config": {
  "patch_size": 14, "vt_hidden_size": 1024, "vt_intermediate_size": 4096, "vt_num_hidden_layers": 27, "vt_num_attention_heads": 12,
  "qkv_hidden_size": 1536, "norm_type": "rmsnorm", "mlp_type": "mlp2", "activation_func": "gelu_pytorch_tanh", "attn_bias": false,
  "linear_bias": false, "patch_embed_proj_bias": false, "init_pos_emb_height": 64, "init_pos_emb_width": 64, "init_pos_emb_time": 4,
  "pos_emb_type": "divided_fixed", "pos_emb_interpolation_mode": "bilinear", "merge_kernel_size": [2, 2], "merge_type": "sd2_tpool",
  "mm_projector_type": "patchmergerv2", "mm_hidden_size": 1024, "projector_hidden_act": "gelu", "projector_ln_eps": 1e-05,
  "text_hidden_size": 7168}})";

TEST(VisionConfig, PublishedModel) {
  const auto config = parse_vision_config(kPublished, R"({"media_proc_cfg": {"patch_size": 14, "merge_kernel_size": 2, "in_patch_limit": 4096}})");
  ASSERT_TRUE(config.has_value());
  EXPECT_EQ(config->head_dim(), 128);
  EXPECT_EQ(config->patch_limit, 4096);
  EXPECT_EQ(config->side_patch_limit, 512);
  const auto tower = VisionTower::outline(*parse_vision_config(kPublished));
  EXPECT_EQ(tower->tensors(), 168);
  EXPECT_EQ(tower->parameters(), 447'358'976);
  // 16,384 tokens: the stream, keys and values of 65,536 patches, and one chunk's activations.
  const std::int64_t bytes = vision_workspace_bytes(*tower, {1, 256, 256}), kept = 65536 * (1024 + 2 * 1536) * 4;
  EXPECT_GE(bytes, kept);
  EXPECT_LE(bytes, kept + (64 << 20));
}

TEST(VisionConfig, RefusesWhatItCannotCompute) {
  const auto with = [](std::string_view from, std::string_view to) {
    std::string text = kPublished;
    text.replace(text.find(from), from.size(), to);
    try {
      parse_vision_config(text);
      return std::string("accepted");
    } catch (const Error& error) {
      return error.text();
    }
  };
  EXPECT_NE(with("\"rmsnorm\"", "\"layernorm\"").find("vision_config.norm_type"), std::string::npos);
  EXPECT_NE(with("\"attn_bias\": false", "\"attn_bias\": true").find("attn_bias"), std::string::npos);
  EXPECT_NE(with("1536", "1538").find("qkv_hidden_size"), std::string::npos);
  EXPECT_NE(with("[2, 2]", "[2, 3]").find("merge_kernel_size"), std::string::npos);
  EXPECT_NE(with("\"patch_size\": 14, ", "").find("patch_size"), std::string::npos);
  EXPECT_EQ(with("vt_hidden_size", "other_tower"), "accepted");
  EXPECT_FALSE(parse_vision_config("{}").has_value());
}

TEST(VisionConfig, RefusesPixelsThatItDoesNotMake) {
  const auto said = [](const std::string& media) {
    try {
      parse_vision_config(kPublished, "{\"media_proc_cfg\": {" + media + "}}");
      return std::string("accepted");
    } catch (const Error& error) {
      return error.text();
    }
  };
  EXPECT_EQ(said(R"("image_mean": [0.5, 0.5, 0.5], "image_std": 0.5, "fixed_output_tokens": null, "transparent_bg_fill_stage": "after_resize")"), "accepted");
  EXPECT_EQ(said(R"("image_mean": [0.48, 0.5, 0.5])"), "preprocessor_config.json: media_proc_cfg.image_mean: [0.48,0.5,0.5] is not supported, only [0.5,0.5,0.5]");
  for (const char* other : {R"("image_std": [0.5, 0.5])", R"("image_std": "0.5")", R"("fixed_output_tokens": 256)", R"("transparent_bg_fill_stage": "before_resize")"})
    EXPECT_NE(said(other).find("is not supported, only"), std::string::npos) << other;
}

}  // namespace
}  // namespace palimpsest
