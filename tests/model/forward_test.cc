// Whole models against recorded outputs of the published modelling code (float64), and against themselves: chunking, batching, threads.

#include "model/forward.h"

#include <gtest/gtest.h>

#include <cmath>

#include "support/forward_runner.h"
#include "support/golden.h"
#include "support/shared_data.h"
#include "support/test_model.h"

namespace palimpsest {
namespace {

using test::ForwardRunner;
using test::Golden;

struct Fixture {
  std::string name;
  std::filesystem::path folder;  // empty: shared data absent
  bool value_first = false;      // recorded pages are [H, V, K]
};

std::vector<Fixture> fixtures() {
  std::vector<Fixture> all = {{"kimi_k3_text", test::project_path("tests/golden/kimi_k3_text")}};
  for (const char* name : {"kimi_linear", "gpt2", "llama", "llama_tied", "fla_linear_attn", "fla_delta_net", "fla_gated_deltanet", "fla_kda",
                           "qwen3_next", "qwen3_5"}) {
    all.push_back({name, test::shared_path(std::string("golden/") + name)});
  }
  all[7].value_first = all[8].value_first = true;
  return all;
}

// The recorded values are float64; a float32 run of the recording code differs from them by about 1.1e-5 of the largest logit
// (golden READMEs). Our sums run in other orders, so allow ten times that.
constexpr double kRelative = 1e-4;

void expect_close(const std::vector<float>& got, const std::vector<float>& want, const std::string& what) {
  const auto worst = test::worst_difference(got, want);
  EXPECT_LE(worst.value, kRelative * worst.largest) << what << ", element " << worst.index << ", largest value " << worst.largest;
  testing::Test::RecordProperty(what, std::to_string(worst.value / worst.largest));
}

class GoldenModel : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    const Fixture fixture = fixtures()[static_cast<std::size_t>(GetParam())];
    if (fixture.folder.empty()) GTEST_SKIP() << "shared data absent: golden/" << fixture.name;
    value_first = fixture.value_first;
    model = test::load_model(fixture.folder);
    golden = std::make_unique<Golden>(fixture.folder / "golden.safetensors");
  }
  std::shared_ptr<const Model> model;
  std::unique_ptr<Golden> golden;
  bool value_first = false;

  void expect_rows(const std::vector<float>& got, const std::string& key, const std::string& what) const {
    const auto [mine, want] = golden->rows(key, got);
    expect_close(mine, want, what);
  }

  /// Memories of `slot` against the recorded ones.
  void expect_page(const StatePool& states, std::int32_t slot, std::int64_t layer, const std::string& key) const;
  void expect_tails(const StatePool& states, std::int32_t slot, std::int64_t layer, const std::string& key) const;
  void expect_latents(const StatePool& states, std::int32_t slot, std::int64_t layer, const std::string& key) const;
};
INSTANTIATE_TEST_SUITE_P(Families, GoldenModel, testing::Range(0, 11), [](const testing::TestParamInfo<int>& fixture) {
  return fixtures()[static_cast<std::size_t>(fixture.param)].name;
});

void GoldenModel::expect_page(const StatePool& states, std::int32_t slot, std::int64_t layer, const std::string& key) const {
  const auto stored = golden->floats(key);
  const auto shape = golden->shape(key);  // [H, K, V], or [H, V, K]
  const std::vector<float> page = test::floats_of(*model, states.pages(layer).rows(slot, 1));
  std::vector<float> mine = page;
  if (!value_first) {
    for (std::int64_t h = 0, i = 0; h < shape[0]; ++h)
      for (std::int64_t k = 0; k < shape[1]; ++k)
        for (std::int64_t v = 0; v < shape[2]; ++v, ++i) mine[static_cast<std::size_t>(i)] = page[static_cast<std::size_t>((h * shape[2] + v) * shape[1] + k)];
  }
  // For its size a repository may hold the first head alone of one page.
  const auto head = static_cast<std::size_t>(shape[1] * shape[2]);
  ASSERT_TRUE(stored.size() == mine.size() || (key == "decode.final_state.layer6.recurrent" && stored.size() == head)) << key << ": " << stored.size() << " numbers, expected " << mine.size();
  mine.resize(stored.size());
  expect_close(mine, stored, key);
}

void GoldenModel::expect_tails(const StatePool& states, std::int32_t slot, std::int64_t layer, const std::string& key) const {
  // Recorded [channels, 4], newest last, for q, k and v or for all in one; ours keeps 3 rows, oldest first.
  std::vector<float> got, expect;
  const bool joint = golden->has(key + "conv");
  if (!joint && !golden->has(key + "conv_q")) return;
  const std::vector<std::string> names = joint ? std::vector<std::string>{"conv"} : std::vector<std::string>{"conv_q", "conv_k", "conv_v"};
  for (const auto& name : names) {
    const auto conv = golden->floats(key + name);
    for (std::size_t c = 0; c < conv.size() / 4; ++c) expect.insert(expect.end(), {conv[c * 4 + 1], conv[c * 4 + 2], conv[c * 4 + 3]});
  }
  for (int which = 0; which < 3; ++which) {
    const Tensor there = states.tails(layer, which).rows(slot, 1);
    const std::vector<float> tail = test::floats_of(*model, there);
    const std::int64_t channels = there.size(2);
    for (std::int64_t c = 0; c < channels; ++c)
      for (std::int64_t t = 0; t < 3; ++t) got.push_back(tail[static_cast<std::size_t>(t * channels + c)]);
  }
  expect_close(got, expect, key + "conv");
}

void GoldenModel::expect_latents(const StatePool& states, std::int32_t slot, std::int64_t layer, const std::string& key) const {
  const auto latent = golden->floats(key + "latent"), kpe = golden->floats(key + "kpe");
  const PagedList list = states.list(layer);
  const std::int64_t r = model->config().mla.kv_lora_rank, p = model->config().mla.qk_rope_head_dim;
  std::vector<float> got, expect;
  for (std::int64_t t = 0; t < states.length(slot); ++t) {
    const std::int32_t block = list.table.on_host<std::int32_t>()[slot * list.table.stride(0) + t / list.block_tokens()];
    Tensor row = list.blocks.rows(block, 1).reshape({list.block_tokens(), r + p}).rows(t % list.block_tokens(), 1);
    const std::vector<float> values = test::floats_of(*model, row);
    got.insert(got.end(), values.begin(), values.end());
    expect.insert(expect.end(), latent.begin() + t * r, latent.begin() + (t + 1) * r);
    expect.insert(expect.end(), kpe.begin() + t * p, kpe.begin() + (t + 1) * p);
  }
  expect_close(got, expect, key + "latent and kpe");
}

TEST_P(GoldenModel, LogitsAndHiddenStatesMatchTheRecording) {
  for (int n = 0; n < 4; ++n) {
    const std::string seq = "seq" + std::to_string(n);
    ForwardRunner runner(model);
    test::HiddenRecorder recorder;
    expect_rows(runner.run(golden->ids(seq + ".input_ids"), 512, &recorder), seq + ".logits", seq + ".logits");
    // Of long texts some are left out of the repository for their size; of short ones there are all.
    for (std::size_t i = 0; i < recorder.hidden.size(); ++i) {
      const std::string key = seq + ".hidden." + std::to_string(i);
      if (n < 2 || golden->has(key) || golden->has(key + ".every5")) expect_rows(recorder.hidden[i], key, key);
    }
    EXPECT_FALSE(golden->has(seq + ".hidden." + std::to_string(recorder.hidden.size()))) << "a state that was not computed";
  }
}

TEST_P(GoldenModel, AnyChunkSizeGivesTheSameLogits) {
  const auto ids = golden->ids("seq3.input_ids");
  for (const std::size_t chunk : {1, 2, 3, 5, 16, 64, 131}) {
    ForwardRunner runner(model);
    expect_rows(runner.run(ids, chunk), "seq3.logits", "chunks of " + std::to_string(chunk));
  }
}

TEST_P(GoldenModel, OnADeviceChunksChangeNoBit) {
  if (model->device().kind() == DeviceKind::kCpu) GTEST_SKIP() << "the CPU has forms for long and for short passes";
  const auto ids = golden->ids("seq3.input_ids");
  ForwardRunner runner(model);  // with activations as they are, which no kernel for prompts takes
  const auto want = runner.run(ids, 512);
  for (const std::size_t chunk : {1, 7, 64}) EXPECT_EQ(runner.run(ids, chunk), want) << "chunks of " << chunk;
}

TEST_P(GoldenModel, AnySplitOfAPromptGivesTheSameLogits) {
  const auto ids = golden->ids("seq2.input_ids");
  ForwardRunner runner(model);
  for (std::size_t split = 1; split < ids.size(); ++split) {
    const std::int32_t slot = runner.states.acquire();
    const auto middle = ids.begin() + static_cast<std::ptrdiff_t>(split);
    const std::vector<std::int32_t> parts[2] = {{ids.begin(), middle}, {middle, ids.end()}};
    auto got = runner.pass(std::span(&parts[0], 1), std::span(&slot, 1));
    const auto rest = runner.pass(std::span(&parts[1], 1), std::span(&slot, 1));
    got.insert(got.end(), rest.begin(), rest.end());
    runner.states.release(slot);
    expect_rows(got, "seq2.logits", "split at " + std::to_string(split));
  }
}

TEST_P(GoldenModel, GreedyDecodingGivesTheRecordedTokens) {
  const auto prompt = golden->ids("decode.prompt_ids");
  const auto tokens = golden->ids("decode.tokens");
  const auto want = golden->floats("decode.logits");
  const auto vocab = static_cast<std::size_t>(model->config().vocab_size);
  ForwardRunner runner(model);
  const std::int32_t slot = runner.states.acquire();
  auto logits = runner.pass(std::span(&prompt, 1), std::span(&slot, 1));
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const std::vector<float> last(logits.end() - static_cast<std::ptrdiff_t>(vocab), logits.end());
    expect_close(last, {want.begin() + static_cast<std::ptrdiff_t>(i * vocab), want.begin() + static_cast<std::ptrdiff_t>((i + 1) * vocab)},
                 "decode step " + std::to_string(i));
    ASSERT_EQ(test::argmax(last), tokens[i]) << "step " << i;
    const std::vector<std::int32_t> next = {tokens[i]};
    if (i + 1 < tokens.size()) logits = runner.pass(std::span(&next, 1), std::span(&slot, 1));
  }

  // The memories after the prompt and tokens 0..22.
  for (std::int64_t l = 0; l < model->config().num_layers(); ++l) {
    const std::string key = "decode.final_state.layer" + std::to_string(l) + ".";
    if (golden->has(key + "recurrent")) {
      expect_page(runner.states, slot, l, key + "recurrent");
      expect_tails(runner.states, slot, l, key);
    } else if (golden->has(key + "latent")) {
      expect_latents(runner.states, slot, l, key);
    }
  }
}

/// Types of lists and pages.
struct Types {
  DType cache, pages;
};
constexpr Types kTypes[] = {{DType::kF32, DType::kF32}, {DType::kI8, DType::kBF16}};

ForwardRunner runner_with(const std::shared_ptr<const Model>& model, int threads, Types types) {
  return ForwardRunner(model, threads, 4, 512, 1024, types.cache, types.pages);
}

TEST_P(GoldenModel, ThreadsDoNotChangeABit) {
  const auto ids = golden->ids("seq3.input_ids");
  for (const Types types : kTypes) {
    for (const std::size_t chunk : {std::size_t{1}, std::size_t{40}}) {
      ForwardRunner one = runner_with(model, 1, types), two = runner_with(model, 2, types), three = runner_with(model, 3, types);
      const auto want = one.run(ids, chunk);
      EXPECT_EQ(two.run(ids, chunk), want) << "2 threads, chunks of " << chunk;
      EXPECT_EQ(three.run(ids, chunk), want) << "3 threads, chunks of " << chunk;
    }
  }
}

class GoldenModelTypes : public GoldenModel {
 protected:
  void expect_alone_as_together(Types types);
};

INSTANTIATE_TEST_SUITE_P(Families, GoldenModelTypes, testing::Range(0, 11), [](const testing::TestParamInfo<int>& fixture) {
  return fixtures()[static_cast<std::size_t>(fixture.param)].name;
});

void GoldenModelTypes::expect_alone_as_together(Types types) {
  const auto a = golden->ids("seq2.input_ids"), b = golden->ids("seq1.input_ids"), c = golden->ids("seq3.input_ids");
  ForwardRunner alone = runner_with(model, 2, types), together = runner_with(model, 2, types);
  const auto want_a = alone.run(a, 512), want_b = alone.run(b, 512), want_c = alone.run(c, 512);

  const std::vector<std::int32_t> slots = {together.states.acquire(), together.states.acquire(), together.states.acquire(),
                                           together.states.acquire()};
  const std::vector<std::vector<std::int32_t>> batch = {b, a, {}, c};
  auto got = together.pass(batch, slots);
  std::vector<float> want = want_b;
  want.insert(want.end(), want_a.begin(), want_a.end());
  want.insert(want.end(), want_c.begin(), want_c.end());
  EXPECT_EQ(got, want);

  // One decode, one prefill of a second part, one sequence that has just begun, in a batch: each as if alone.
  const std::vector<std::vector<std::int32_t>> mixed = {{7}, {3, 1, 4, 1, 5}, {2, 7, 1}, {8}};
  got = together.pass(mixed, slots);
  want.clear();
  for (std::size_t n = 0; n < 4; ++n) {
    const std::int32_t slot = alone.states.acquire();
    if (!batch[n].empty()) alone.pass(std::span(&batch[n], 1), std::span(&slot, 1));
    const auto rows = alone.pass(std::span(&mixed[n], 1), std::span(&slot, 1));
    want.insert(want.end(), rows.begin(), rows.end());
    alone.states.release(slot);
  }
  EXPECT_EQ(got, want);

  // Appended tokens: the first rows of a longer prompt are the rows of the shorter one.
  auto longer = a;
  longer.insert(longer.end(), {5, 6, 7, 8, 9, 10, 11});
  auto prefix = alone.run(longer, 512);
  prefix.resize(want_a.size());
  EXPECT_EQ(prefix, want_a);
}

TEST_P(GoldenModelTypes, BatchMatesAndLaterTokensDoNotChangeABit) {
  for (const Types types : kTypes) expect_alone_as_together(types);
}

double rms_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += (static_cast<double>(a[i]) - b[i]) * (static_cast<double>(a[i]) - b[i]);
  return std::sqrt(sum / static_cast<double>(a.size()));
}

TEST_P(GoldenModelTypes, ChunkingMovesSmallTypesNoMoreThanTheirRounding) {
  // A sum in another order can become another code or another BF16 number, and then choose another expert: on the whole no more than what
  // rounding does itself.
  const auto ids = golden->ids("seq3.input_ids");
  const auto exact = runner_with(model, 1, kTypes[0]).run(ids, 512), whole = runner_with(model, 1, kTypes[1]).run(ids, 512);
  ASSERT_EQ(whole.size(), exact.size());
  const double drift = rms_difference(whole, exact);
  EXPECT_GT(drift, 0) << "small types are in use";
  for (const std::size_t chunk : {1, 7, 64}) {
    const double moved = rms_difference(runner_with(model, 1, kTypes[1]).run(ids, chunk), whole);
    EXPECT_LE(moved, drift) << "chunks of " << chunk;
    RecordProperty("chunks_" + std::to_string(chunk), std::to_string(moved / drift));
  }
}

TEST_P(GoldenModel, ManyDecodesAreOneForward) {
  const auto count = [&](std::size_t sequences) {
    ForwardRunner runner(model);
    std::vector<std::int32_t> slots;
    std::vector<std::vector<std::int32_t>> prompts, tokens;
    for (std::size_t n = 0; n < sequences; ++n) {
      slots.push_back(runner.states.acquire());
      prompts.push_back({static_cast<std::int32_t>(n + 1), 2, 3});
      tokens.push_back({static_cast<std::int32_t>(n + 5)});
    }
    runner.pass(prompts, slots);
    const std::int64_t before = runner.ctx.calls();
    runner.pass(tokens, slots);
    return runner.ctx.calls() - before;
  };
  EXPECT_EQ(count(1), count(4));
  EXPECT_GT(count(1), model->config().num_layers() * 5);
}

TEST_P(GoldenModel, ASlotUsedBeforeGivesTheSameBits) {
  const auto ids = golden->ids("seq2.input_ids");
  ForwardRunner fresh(model, 1, 1), used(model, 1, 1);
  used.run(golden->ids("seq3.input_ids"), 7);
  EXPECT_EQ(used.run(ids, 512), fresh.run(ids, 512));
}

TEST_P(GoldenModel, TheBf16CacheIsReadAsItWasRoundedWhateverTheChunking) {
  // Rounded before the first use, also inside the chunk: so one pass and single steps see the same list, and agree as closely as with F32.
  const auto ids = golden->ids("seq2.input_ids");
  ForwardRunner whole(model, 1, 1, 512, 1024, DType::kBF16), steps(model, 1, 1, 512, 1024, DType::kBF16);
  expect_close(steps.run(ids, 1), whole.run(ids, 512), "bf16 cache, steps against one pass");
}

}  // namespace
}  // namespace palimpsest
