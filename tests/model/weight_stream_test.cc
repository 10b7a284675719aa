// Weights that visit a device: each layer's are there when it computes, whatever is late, and results are the bits of weights that stay. On the host
// they visit memory of the host; with PALIMPSEST_TEST_DEVICE=cuda the device.

#include "model/weight_stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <limits>
#include <random>

#include "base/error.h"
#include "formats/checkpoint.h"
#include "model/weights.h"
#include "ops/device.h"
#include "ops/host_experts.h"
#include "ops/ops.h"
#include "support/forward_runner.h"
#include "support/shared_data.h"
#include "support/temp_folder.h"
#include "support/test_model.h"
#include "tools/synthetic_checkpoint.h"

namespace palimpsest {
namespace {

/// Two streams that run when they are told to: kernels in order, copies in order, each no sooner than the interface promises.
class Simulated final : public CopyQueue {
 public:
  void copy(int lane, void* to, const void* from, std::int64_t bytes) override {
    copies_.push_back({kernels_.size(), [=] { std::copy_n(static_cast<const std::byte*>(from), bytes, static_cast<std::byte*>(to)); }});
    last_[lane] = copies_.size();
  }
  void await(int lane) override { awaited_ = std::max(awaited_, last_[lane]); }
  void settle() noexcept override { awaited_ = copies_.size(); }
  void copy_chosen(const Tensor& ids, std::byte* to, const std::byte* from, std::int64_t stride) override {
    const std::vector<std::int32_t> chosen(ids.as<std::int32_t>(), ids.as<std::int32_t>() + ids.numel());
    kernel([=] {
      for (const std::int32_t id : chosen) std::copy_n(from + id * stride, stride, to + id * stride);
    });
  }
  void gather(std::span<const RowMove>, const std::int32_t*, std::int64_t) override { FAIL(); }
  void scatter(std::span<const RowMove>, const std::int32_t*, std::int64_t) override { FAIL(); }
  void call(void (*)(void*), void*) override { FAIL(); }
  void kernel(std::function<void()> run) { kernels_.push_back({awaited_, std::move(run)}); }

  /// All that was asked for; of 16 times that either may go on, copies do so `copies` times.
  void run(unsigned copies, std::mt19937& random) {
    std::size_t kernel = 0, copy = 0;
    while (kernel < kernels_.size() || copy < copies_.size()) {
      const bool may_copy = copy < copies_.size() && copies_[copy].after <= kernel, may_compute = kernel < kernels_.size() && kernels_[kernel].after <= copy;
      ASSERT_TRUE(may_copy || may_compute) << "each waits for the other";
      if (may_copy && (!may_compute || random() % 16 < copies)) copies_[copy++].run();
      else kernels_[kernel++].run();
    }
  }

 private:
  struct Asked {
    std::size_t after;  ///< of the other stream, so many
    std::function<void()> run;
  };
  std::vector<Asked> kernels_, copies_;
  std::size_t last_[kLanes] = {}, awaited_ = 0;
};

TEST(WeightStreams, BringWhatALayerReadsAndNoSoonerThanItsBufferIsFree) {
  constexpr std::int64_t kExperts = 6, kExpertBytes = 512, kMost = 256 * 7 + kExperts * kExpertBytes;
  MoeConfig moe;
  moe.num_experts = kExperts, moe.experts_per_token = 2;
  std::mt19937 random(5);
  for (const unsigned copies : {0, 16, 1, 1, 1, 1, 2, 2, 4, 4, 4, 8}) {
    for (const auto& [rows, dense_too] : {std::pair(1, true), {3, true}, {4, true}, {100, true}, {1, false}, {4, false}}) {  // up to three rows fetch the chosen
      std::string bytes[8], there(2 * kMost, '\0');
      std::int64_t dense[8] = {}, expert_bytes[8] = {};
      std::vector<WeightStream::Part> parts;
      for (const int l : {1, 2, 4, 5, 6, 7}) {
        dense[l] = l % 4 == 2 || (!dense_too && l != 5) ? 0 : 256 * l;
        expert_bytes[l] = l == 5 || l == 7 ? 0 : kExpertBytes;  // 5 has none, those of 7 are not alike
        bytes[l].resize(static_cast<std::size_t>(dense[l] + (l == 5 ? 0 : kExperts * kExpertBytes)));
        for (char& byte : bytes[l]) byte = static_cast<char>(random() % 255 + 1);
        parts.push_back({l, Buffer(static_cast<std::int64_t>(bytes[l].size())), dense[l], expert_bytes[l]});
        std::copy(bytes[l].begin(), bytes[l].end(), reinterpret_cast<char*>(parts.back().host.data()));
      }
      auto queue = std::make_unique<Simulated>();
      Simulated& device = *queue;
      WeightStream stream(std::move(queue), std::move(parts), reinterpret_cast<std::byte*>(there.data()), kMost, moe);
      // A pass that ended within a layer has asked for more than it awaited.
      stream.begin(100);
      for (int l = 0; l < 7; ++l) stream.enter(l);
      stream.settle();
      int checked = 0, lane = 0;
      for (int pass = 0; pass < 2; ++pass, lane = 0) {
        stream.begin(rows);
        for (int l = 0; l < 8; ++l) {
          stream.enter(l);
          if (bytes[l].empty()) continue;
          const char* at = there.data() + lane++ % 2 * kMost;
          const auto reads = [&, at, l](std::int64_t first, std::int64_t count) {
            device.kernel([&, at, l, first, count] { checked += std::equal(at + first, at + first + count, bytes[l].data() + first); });
          };
          reads(0, dense[l]);
          std::int32_t ids[] = {static_cast<std::int32_t>(random() % kExperts), static_cast<std::int32_t>(random() % kExperts)};
          stream.fetch(l, Tensor::contiguous(ids, DType::kI32, {1, 2}));
          const bool chosen = rows <= 3 && expert_bytes[l] > 0;
          reads(chosen ? dense[l] + ids[0] * kExpertBytes : 0, chosen ? kExpertBytes : static_cast<std::int64_t>(bytes[l].size()));
          reads(chosen ? dense[l] + ids[1] * kExpertBytes : 0, chosen ? kExpertBytes : 0);
        }
      }
      device.run(copies, random);
      EXPECT_EQ(checked, 2 * 6 * 3) << rows << " rows" << (dense_too ? "" : ", experts alone");
    }
  }
}

class VisitingWeights : public testing::TestWithParam<const char*> {
 protected:
  std::shared_ptr<const Model> load(const WeightOffload& offload) const {
    LoadOptions options;
    options.device = test::test_device();
    options.offload = offload;
    return Model::load(test::project_path(GetParam()), options);
  }
  /// Logits of prompts read in pieces of each size, then of a few steps of five sequences at once.
  static std::vector<float> logits(const std::shared_ptr<const Model>& model) {
    test::ForwardRunner runner(model, 1, 8, 128, 256);
    std::vector<std::int32_t> ids(80);
    for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>(i * 71 % static_cast<std::size_t>(model->config().vocab_size));
    std::vector<float> all;
    const auto add = [&](const std::vector<float>& more) { all.insert(all.end(), more.begin(), more.end()); };
    for (const std::size_t chunk : {80, 7}) add(runner.run(ids, chunk));
    add(runner.run({ids.begin(), ids.begin() + 12}, 1));
    std::vector<std::int32_t> slots(5);
    for (auto& slot : slots) slot = runner.states.acquire();
    for (int t = 0; t < 4; ++t) add(runner.pass(std::vector<std::vector<std::int32_t>>(5, {ids[static_cast<std::size_t>(t)]}), slots));
    return all;
  }
};
INSTANTIATE_TEST_SUITE_P(Models, VisitingWeights, testing::Values("models/demo", "tests/golden/kimi_k3_text", "tests/golden/fla_options/gated_grouped"));

TEST_P(VisitingWeights, ChangeNoBit) {
  const auto resident = load({});
  const auto want = logits(resident);
  const std::int64_t layers = resident->config().num_layers();
  const bool has_experts = resident->config().moe.num_experts > 0;
  for (const WeightOffload& offload : {WeightOffload{0, false}, {1, false}, {layers / 2, false}, {layers - 1, false}, {{}, true}, {1, true}, {layers, true}}) {
    if (offload.experts && !has_experts) continue;
    SCOPED_TRACE(testing::Message() << offload.device_layers.value_or(-1) << (offload.experts ? " and experts" : ""));
    const auto model = load(offload);
    ASSERT_TRUE(model->weights().stream);
    EXPECT_EQ(logits(model), want);
    if (test::test_device() == DeviceKind::kCpu) continue;
    ::setenv("PALIMPSEST_NO_GRAPHS", "1", 1);
    EXPECT_EQ(logits(model), want) << "not recorded";
    ::unsetenv("PALIMPSEST_NO_GRAPHS");
  }
}

TEST(VisitingWeightsOfFiles, AreCheckedAsTheyPass) {
  const test::TempFolder folder;
  synthetic::write_checkpoint(folder.path(), synthetic::config_json({}));
  std::string bytes = test::read_file(folder / "model.safetensors");
  LoadOptions options;
  options.device = test::test_device();
  options.offload = {0, false};
  EXPECT_NO_THROW(Model::load(folder.path(), options));
  const std::string name = "language_model.model.layers.1.block_sparse_moe.experts.2.w3.weight_scale";
  bytes[value_or_throw(formats::Checkpoint::open(folder.path())).find(name)->offset + 5] = '\xff';
  folder.write("model.safetensors", bytes);
  try {
    Model::load(folder.path(), options);
    ADD_FAILURE() << "a scale that is no number";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidFile);
    EXPECT_THAT(error.text(), testing::AllOf(testing::HasSubstr("experts.2.w3.weight_scale'"), testing::HasSubstr("is 255")));
  }
}

/// Experts that the host computes in steps: within rounding those of the device, and as much a function of the row and its position.
TEST_P(VisitingWeights, AreComputedWhereTheyLie) {
  const auto resident = load({});
  if (resident->config().moe.num_experts == 0) GTEST_SKIP() << "no routed experts";
  const auto want = logits(resident);
  float largest = 0;
  for (const float x : want) largest = std::max(largest, std::abs(x));
  std::vector<std::int32_t> ids(150);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>(i * 31 % static_cast<std::size_t>(resident->config().vocab_size));
  const auto part = [&](std::size_t begin, std::size_t end) { return std::vector<std::int32_t>(ids.begin() + static_cast<std::ptrdiff_t>(begin), ids.begin() + static_cast<std::ptrdiff_t>(end)); };
  std::vector<float> first;
  for (const WeightOffload& offload : {WeightOffload{.experts = true, .compute = true, .threads = 1}, {.experts = true, .compute = true, .threads = 3}, {.device_layers = 2, .compute = true}}) {
    const auto model = load(offload);
    ASSERT_TRUE(model->weights().stream->computes_steps());
    const auto got = logits(model);
    for (std::size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got[i], want[i], test::test_device() == DeviceKind::kCpu ? 0 : 1e-4 * largest) << i;
    ::setenv("PALIMPSEST_NO_GRAPHS", "1", 1);
    EXPECT_EQ(logits(model), got) << "not recorded";
    ::unsetenv("PALIMPSEST_NO_GRAPHS");

    // Prompts' rows visit, the others do not, whoever is in the pass and wherever it is cut at a multiple of 64.
    test::ForwardRunner runner(model, 1, 4, 400, 256);
    runner.fixed_forms = true;
    EXPECT_EQ(runner.run(ids, ids.size()), runner.run(ids, 64)) << "more steps than are computed at a time";
    runner.ctx.activations = Activations::kQ16;
    const auto alone = runner.run(ids, ids.size());
    EXPECT_EQ(runner.run(ids, 64), alone);
    const std::vector<std::int32_t> slots = {runner.states.acquire(), runner.states.acquire(), runner.states.acquire()};
    auto together = runner.pass(std::vector{part(0, 128), part(0, 40), part(0, 150)}, slots);
    const auto vocab = static_cast<std::ptrdiff_t>(model->config().vocab_size);
    EXPECT_TRUE(std::equal(alone.begin(), alone.begin() + 128 * vocab, together.begin()));
    EXPECT_TRUE(std::equal(alone.begin(), alone.end(), together.begin() + 168 * vocab));
    together = runner.pass(std::vector{part(128, 150), part(40, 41)}, std::span(slots).first(2));
    EXPECT_TRUE(std::equal(alone.begin() + 128 * vocab, alone.end(), together.begin()));
    for (const std::int32_t slot : slots) runner.states.release(slot);
    if (offload.threads == 1) first = alone;
    if (offload.threads == 3) {
      EXPECT_EQ(alone, first) << "threads change no bit";
    }
    if (test::test_device() == DeviceKind::kCpu) {
      test::ForwardRunner there(resident, 1, 4, 400, 256);
      there.ctx.activations = Activations::kQ16, there.fixed_forms = true;
      EXPECT_EQ(there.run(ids, ids.size()), alone);
    }
  }
}

/// More steps in a pass than are computed at a time, and numbers that are not finite, which go on as they are in their row alone.
TEST(HostExperts, ComputeRowsInPiecesAndForwardWhatIsNotFinite) {
  constexpr std::int64_t kWidth = 64, kInter = 32, kExperts = 6, kRows = 2 * ops::HostExperts::kRows + 44, kTop = 2;
  const auto random = [](std::int64_t n) {
    std::vector<float> numbers(static_cast<std::size_t>(n));
    std::mt19937 engine(static_cast<unsigned>(n));
    for (float& x : numbers) x = std::normal_distribution<float>()(engine);
    return numbers;
  };
  auto w1 = random(kExperts * kInter * kWidth), w3 = random(kExperts * kInter * kWidth + 1), w2 = random(kExperts * kInter * kWidth + 2), x = random(kRows * kWidth), weights = random(kRows * kTop);
  x[5 * kWidth + 3] = std::numeric_limits<float>::quiet_NaN();
  std::vector<ExpertMatrices> experts;
  for (std::int64_t e = 0; e < kExperts; ++e) {
    const auto matrix = [&](std::vector<float>& w, std::int64_t rows, std::int64_t columns) { return Matrix{.dense = Tensor::contiguous(w.data() + e * rows * columns, DType::kF32, {rows, columns})}; };
    experts.push_back({matrix(w1, kInter, kWidth), matrix(w3, kInter, kWidth), matrix(w2, kWidth, kInter)});
  }
  std::vector<std::int32_t> ids(kRows * kTop), chosen;
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>(i * 7 % kExperts);
  for (std::int32_t row = 0; row < kRows; ++row) {
    if (row % 9 != 2) chosen.push_back(row);
  }
  std::vector<float> want(x.size()), got(x.size(), 7);
  ExecContext ctx(2);
  ExpertsArgs args = {.x = Tensor::contiguous(x.data(), DType::kF32, {kRows, kWidth}), .ids = Tensor::contiguous(ids.data(), DType::kI32, {kRows, kTop}),
                      .weights = Tensor::contiguous(weights.data(), DType::kF32, {kRows, kTop}), .experts = experts.data(), .num_experts = kExperts, .y = Tensor::contiguous(want.data(), DType::kF32, {kRows, kWidth})};
  ctx.workspace.reserve(1 << 22);
  ops::experts(ctx, args);
  args.y.data = got.data();
  const auto queue = ops::copy_queue(host_device());
  ops::HostExperts host(host_device(), {kExperts, kTop, kWidth, kInter}, [](std::int64_t, Matrix&) {}, 3);
  host.compute(ctx, *queue, 0, args, Tensor::contiguous(chosen.data(), DType::kI32, {static_cast<std::int64_t>(chosen.size())}));
  for (std::int64_t row = 0; row < kRows; ++row) {
    for (std::int64_t c = 0; c < kWidth; ++c) {
      const auto i = static_cast<std::size_t>(row * kWidth + c);
      if (row == 5) ASSERT_TRUE(std::isnan(got[i]));
      else ASSERT_EQ(got[i], row % 9 == 2 ? 7 : want[i]) << row;
    }
  }
  host.compute(ctx, *queue, 0, args, {});
  for (std::size_t i = 0; i < want.size(); ++i) ASSERT_TRUE(got[i] == want[i] || std::isnan(want[i])) << "all rows";
}

TEST_P(VisitingWeights, AreOfLayersThatAreThere) {
  const std::int64_t layers = load({})->config().num_layers();
  const auto refusal = [&](const WeightOffload& offload) -> std::string {
    try {
      load(offload);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUsage);
      return error.text();
    }
    return "";
  };
  EXPECT_EQ(refusal({layers, false}), "");
  EXPECT_THAT(refusal({layers + 1, false}), testing::HasSubstr("between 0 and " + std::to_string(layers)));
  EXPECT_THAT(refusal({-1, false}), testing::HasSubstr("not -1"));
  EXPECT_EQ(refusal({{}, true}).find("no routed experts") != std::string::npos, load({})->config().moe.num_experts == 0);
}

}  // namespace
}  // namespace palimpsest
