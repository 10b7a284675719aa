#include "model/weight_spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "model/published_configs.h"
#include "model/state_spec.h"

namespace palimpsest {
namespace {

std::int64_t stored_tensors(const std::vector<WeightSpec>& specs) {
  std::int64_t count = 0;
  for (const WeightSpec& spec : specs) count += spec.expert >= 0 ? 2 : 1;
  return count;
}

/// Sum over the weights of one layer whose role lies in [first, last].
std::int64_t layer_parameters(const std::vector<WeightSpec>& specs, int layer, WeightRole first, WeightRole last) {
  std::int64_t sum = 0;
  for (const WeightSpec& spec : specs) {
    if (spec.layer == layer && spec.role >= first && spec.role <= last) sum += spec.parameters();
  }
  return sum;
}

TEST(WeightSpec, AddsUpToThePublishedKimiK3) {
  const ModelConfig config = parse_model_config(test::kimi_k3_config());
  const auto specs = weight_spec(config);
  EXPECT_EQ(stored_tensors(specs), 497'052);
  const ParameterCount count = count_parameters(config, specs);
  EXPECT_EQ(count.total, 2'779'484'476'000);
  EXPECT_EQ(count.routed_experts, 92LL * 896 * 33'030'144);
  EXPECT_NEAR(static_cast<double>(count.active), 104.19e9, 0.005e9);
  EXPECT_NEAR(static_cast<double>(count.total - count.routed_experts), 56.74e9, 0.005e9);

  EXPECT_NEAR(static_cast<double>(layer_parameters(specs, 1, WeightRole::kKdaQ, WeightRole::kKdaOutput)), 443.74e6, 0.005e6);
  EXPECT_NEAR(static_cast<double>(layer_parameters(specs, 3, WeightRole::kMlaQ, WeightRole::kMlaOutput)), 232.20e6, 0.005e6);
  EXPECT_NEAR(static_cast<double>(layer_parameters(specs, 0, WeightRole::kMlpGate, WeightRole::kMlpDown)), 726.66e6, 0.005e6);
  EXPECT_NEAR(static_cast<double>(layer_parameters(specs, 1, WeightRole::kRouter, WeightRole::kSharedDown)), 189.93e6, 0.005e6);
}

TEST(WeightSpec, ExpertsOfKimiK3TakeThePublishedBytes) {
  const ModelConfig config = parse_model_config(test::kimi_k3_config());
  std::int64_t bytes = 0, one_expert = 0;
  for (const WeightSpec& spec : weight_spec(config)) {
    if (spec.expert < 0) continue;
    const std::int64_t size = spec.parameters() / 2 + spec.parameters() / 32;
    bytes += size;
    if (spec.layer == 1 && spec.expert == 0) one_expert += size;
  }
  EXPECT_EQ(one_expert, 17'547'264);
  EXPECT_EQ(bytes, 1'446'456'066'048);
}

TEST(WeightSpec, AddsUpToThePublishedKimiLinear) {
  const ModelConfig config = parse_model_config(test::kimi_linear_config());
  const ParameterCount count = count_parameters(config, weight_spec(config));
  EXPECT_NEAR(static_cast<double>(count.total), 49.12e9, 0.005e9);
  EXPECT_NEAR(static_cast<double>(count.active), 3.1e9, 0.05e9);
}

std::string line_of(const ModelConfig& config, WeightRole role, int layer, int expert = -1) {
  for (const WeightSpec& spec : weight_spec(config)) {
    if (spec.role == role && spec.layer == layer && spec.expert == expert) return weight_name(config, spec) + " " + describe(spec);
  }
  return "absent";
}

TEST(WeightSpec, SpellsKimiK3AsPublished) {
  const ModelConfig c = parse_model_config(test::kimi_k3_config());
  EXPECT_EQ(line_of(c, WeightRole::kEmbedTokens, -1), "language_model.model.embed_tokens.weight BF16 [163840, 7168]");
  EXPECT_EQ(line_of(c, WeightRole::kLmHead, -1), "language_model.lm_head.weight BF16 [163840, 7168]");
  EXPECT_EQ(line_of(c, WeightRole::kOutputResProj, -1), "language_model.model.output_attn_res_proj.weight BF16 [1, 7168]");
  EXPECT_EQ(line_of(c, WeightRole::kKdaConvK, 2), "language_model.model.layers.2.self_attn.k_conv1d.weight F32 [12288, 1, 4]");
  EXPECT_EQ(line_of(c, WeightRole::kKdaDecayUp, 2), "language_model.model.layers.2.self_attn.f_b_proj.weight BF16 [12288, 128]");
  EXPECT_EQ(line_of(c, WeightRole::kKdaBeta, 2), "language_model.model.layers.2.self_attn.b_proj.weight BF16 [96, 7168]");
  EXPECT_EQ(line_of(c, WeightRole::kMlaQUp, 3), "language_model.model.layers.3.self_attn.q_b_proj.weight BF16 [18432, 1536]");
  EXPECT_EQ(line_of(c, WeightRole::kMlaKvDown, 3), "language_model.model.layers.3.self_attn.kv_a_proj_with_mqa.weight BF16 [576, 7168]");
  EXPECT_EQ(line_of(c, WeightRole::kMlaKvUp, 92), "language_model.model.layers.92.self_attn.kv_b_proj.weight BF16 [24576, 512]");
  EXPECT_EQ(line_of(c, WeightRole::kMlaGate, 3), "language_model.model.layers.3.self_attn.g_proj.weight BF16 [12288, 7168]");
  EXPECT_EQ(line_of(c, WeightRole::kMlpDown, 0), "language_model.model.layers.0.mlp.down_proj.weight BF16 [7168, 33792]");
  EXPECT_EQ(line_of(c, WeightRole::kRouterBias, 1), "language_model.model.layers.1.block_sparse_moe.gate.e_score_correction_bias F32 [896]");
  EXPECT_EQ(line_of(c, WeightRole::kLatentDown, 1), "language_model.model.layers.1.block_sparse_moe.routed_expert_down_proj.weight BF16 [3584, 7168]");
  EXPECT_EQ(line_of(c, WeightRole::kSharedUp, 1), "language_model.model.layers.1.block_sparse_moe.shared_experts.up_proj.weight BF16 [6144, 7168]");
  EXPECT_EQ(line_of(c, WeightRole::kExpertDown, 92, 895), "language_model.model.layers.92.block_sparse_moe.experts.895.w2.weight BF16 [3584, 3072]");
  EXPECT_EQ(line_of(c, WeightRole::kRouter, 0), "absent");
  EXPECT_EQ(line_of(c, WeightRole::kKdaQ, 3), "absent");
}

TEST(WeightSpec, SpellsKimiLinearAsPublished) {
  const ModelConfig c = parse_model_config(test::kimi_linear_config());
  EXPECT_EQ(line_of(c, WeightRole::kMlaQ, 3), "model.layers.3.self_attn.q_proj.weight BF16 [6144, 2304]");
  EXPECT_EQ(line_of(c, WeightRole::kKdaGateDown, 0), "model.layers.0.self_attn.g_a_proj.weight BF16 [128, 2304]");
  EXPECT_EQ(line_of(c, WeightRole::kKdaGateUp, 0), "model.layers.0.self_attn.g_b_proj.weight BF16 [4096, 128]");
  EXPECT_EQ(line_of(c, WeightRole::kExpertGate, 26, 255), "model.layers.26.block_sparse_moe.experts.255.w1.weight BF16 [1024, 2304]");
  for (const WeightRole role : {WeightRole::kKdaGate, WeightRole::kMlaGate, WeightRole::kLatentDown, WeightRole::kLatentNorm, WeightRole::kAttentionResNorm}) {
    EXPECT_EQ(line_of(c, role, 3), "absent");
    EXPECT_EQ(line_of(c, role, 0), "absent");
  }
}

TEST(WeightSpec, NamesAreUniqueAndTiedHeadsAbsent) {
  ModelConfig config = parse_model_config(test::kimi_linear_config());
  std::set<std::string> names;
  const auto specs = weight_spec(config);
  for (const WeightSpec& spec : specs) names.insert(weight_name(config, spec));
  EXPECT_EQ(names.size(), specs.size());
  const std::int64_t active = count_parameters(config, specs).active;
  config.tie_word_embeddings = true;
  EXPECT_EQ(line_of(config, WeightRole::kLmHead, -1), "absent");
  EXPECT_EQ(count_parameters(config, weight_spec(config)).active, active) << "a tied table is read as the head";
}

TEST(StateSpec, KimiK3KeepsWhatItsShapesSay) {
  const ModelConfig config = parse_model_config(test::kimi_k3_config());
  const StateSpec spec = state_spec(config);
  std::int64_t pages = 0, tails = 0;
  for (const StateEntry& entry : spec.entries) {
    if (entry.kind == StateKind::kPage) pages += entry.bytes();
    if (entry.kind == StateKind::kConvTail) tails += entry.bytes();
  }
  EXPECT_EQ(pages, 434'110'464);                  // 69 x 96 x 128 x 128 F32
  EXPECT_EQ(tails, 69 * 221'184 * 2);             // three taps of q, k and v: F32 is twice BF16
  EXPECT_EQ(spec.bytes_per_sequence(), pages + tails);
  EXPECT_EQ(spec.bytes_per_token(), 27'648);      // 24 x 576 BF16
  EXPECT_EQ(state_spec(config, DType::kF32).bytes_per_token(), 2 * 27'648);
  EXPECT_EQ(state_spec(config, DType::kF32).bytes_per_sequence(), spec.bytes_per_sequence());
  EXPECT_THAT(spec.entries[0].shape, testing::ElementsAre(96, 128, 128));
  EXPECT_THAT(spec.entries[1].shape, testing::ElementsAre(3, 12288));
}

TEST(StateSpec, KimiLinearKeepsWhatItsShapesSay) {
  const ModelConfig config = parse_model_config(test::kimi_linear_config());
  const StateSpec spec = state_spec(config);
  EXPECT_EQ(spec.bytes_per_token(), 8'064);
  EXPECT_EQ(spec.bytes_per_sequence(), 20 * ((2 << 20) + 3 * 3 * 4096 * 4));
}

TEST(StateSpec, ComparesWithACacheOfKeysAndValues) {
  // 24 MLA layers of 96 x (192 + 128) values, 69 KDA layers of 96 x 256, two bytes each.
  EXPECT_EQ(kv_cache_bytes_per_token(parse_model_config(test::kimi_k3_config())), 1'474'560 + 69 * 96 * 256 * 2);
}

}  // namespace
}  // namespace palimpsest
