#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "model/published_configs.h"
#include "palimpsest/model_config.h"
#include "support/shared_data.h"

namespace palimpsest {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

struct Outcome {
  ErrorCode code = ErrorCode::kInternal;
  std::string text = "no error";
};

Outcome outcome(const std::string& text) {
  try {
    parse_model_config(text);
    return {};
  } catch (const Error& error) {
    return {error.code(), error.text()};
  }
}

/// The error of a published config after one change. Paths are JSON pointers; null deletes the key.
Outcome changed(const std::string& config, const std::string& pointer, const json& value) {
  json document = json::parse(config);
  const json::json_pointer path(pointer);
  if (value.is_null()) {
    document[path.parent_pointer()].erase(path.back());
  } else {
    document[path] = value;
  }
  return outcome(document.dump());
}
Outcome changed_k3(const std::string& key, const json& value) {
  return changed(test::kimi_k3_config(), "/text_config/" + key, value);
}
Outcome changed_kl(const std::string& key, const json& value) { return changed(test::kimi_linear_config(), "/" + key, value); }

TEST(ModelConfig, ReadsKimiK3) {
  const ModelConfig c = parse_model_config(test::kimi_k3_config());
  EXPECT_EQ(c.family, Family::kKimiK3);
  EXPECT_EQ(c.weight_prefix, "language_model.");
  EXPECT_TRUE(c.has_vision);
  EXPECT_EQ(c.num_layers(), 93);
  EXPECT_EQ(c.kda.gate, KdaGate::kBounded);
  EXPECT_EQ(c.kda.gate_lower_bound, -5.0);
  EXPECT_EQ(c.kda.output_gate, KdaOutputGate::kFullRank);
  EXPECT_EQ(c.kda.projection_size(), 12288);
  EXPECT_EQ(c.mla.qk_head_dim(), 192);
  EXPECT_EQ(c.mla.cache_width(), 576);
  EXPECT_EQ(c.mla.q_lora_rank, 1536);
  EXPECT_TRUE(c.mla.output_gate);
  EXPECT_EQ(c.mla.latent_norm_eps, 1e-6);
  EXPECT_EQ(c.activation.kind, ActivationKind::kSitu);
  EXPECT_EQ(c.activation.beta, 4.0);
  EXPECT_EQ(c.activation.linear_beta, 25.0);
  EXPECT_EQ(c.attn_res_block_size, 12);
  EXPECT_EQ(c.moe.latent_size, 3584);
  EXPECT_TRUE(c.moe.latent_norm);
  EXPECT_EQ(c.moe.shared_intermediate_size(), 6144);
  EXPECT_EQ(c.expert_width(), 3584);
  EXPECT_THAT(c.eos_token_ids, ElementsAre(163586));
  std::vector<int> full;
  for (int l = 0; l < 93; ++l) {
    const LayerSpec& layer = c.layers[static_cast<std::size_t>(l)];
    if (layer.mixer == Mixer::kLatentAttention) full.push_back(l);
    EXPECT_EQ(layer.ffn, l == 0 ? Ffn::kDense : Ffn::kMixtureOfExperts);
    EXPECT_EQ(layer.residual, Residual::kBlockAttention);
  }
  EXPECT_EQ(full.size(), 24u);
  EXPECT_EQ(full[22], 91);
  EXPECT_EQ(full[23], 92);
}

TEST(ModelConfig, ReadsKimiLinear) {
  const ModelConfig c = parse_model_config(test::kimi_linear_config());
  EXPECT_EQ(c.family, Family::kKimiLinear);
  EXPECT_EQ(c.weight_prefix, "");
  EXPECT_FALSE(c.has_vision);
  EXPECT_EQ(c.kda.gate, KdaGate::kSoftplus);
  EXPECT_EQ(c.kda.output_gate, KdaOutputGate::kLowRank);
  EXPECT_EQ(c.mla.q_lora_rank, 0);
  EXPECT_FALSE(c.mla.output_gate);
  EXPECT_EQ(c.activation.kind, ActivationKind::kSwiglu);
  EXPECT_EQ(c.attn_res_block_size, 0);
  EXPECT_EQ(c.max_position_embeddings, 1048576);
  EXPECT_EQ(c.moe.routed_scaling, 2.446);
  EXPECT_EQ(c.moe.latent_size, 0);
  EXPECT_EQ(c.expert_width(), 2304);
  EXPECT_EQ(c.layers[26], (LayerSpec{Mixer::kLatentAttention, Ffn::kMixtureOfExperts, Residual::kSum}));
}

TEST(ModelConfig, LoadsTheFoldersOfTheTree) {
  EXPECT_EQ(load_model_config(test::project_path("models/demo").string()).hidden_size, 384);
  EXPECT_EQ(load_model_config(test::project_path("tests/golden/kimi_k3_text").string()).num_layers(), 9);
  for (const char* name : {"golden/kimi_linear", "golden/kimi_k3_vision"}) {
    if (const auto folder = test::shared_path(name); !folder.empty()) {
      EXPECT_EQ(load_model_config(folder.string()).has_vision, std::string(name).ends_with("vision"));
    }
  }
  try {
    load_model_config("/nowhere");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kIo);
    EXPECT_THAT(error.text(), HasSubstr("/nowhere/config.json"));
  }
}

TEST(ModelConfig, IsPrintable) {
  const std::string text = to_string(parse_model_config(test::kimi_k3_config()));
  EXPECT_THAT(text, AllOf(HasSubstr("kimi_k3: 93 layers, hidden 7168"), HasSubstr("layer 0: kda, dense, residual block attention"),
                          HasSubstr("layers 1-2: kda, moe"), HasSubstr("layers 91-92: mla, moe"), HasSubstr("bounded (-5)")));
}

/// What K3 must say itself: the defaults of other projects give a wrong model in silence.
TEST(ModelConfig, NeverDefaultsTheKeysOfKimiK3) {
  for (const std::string key : {"attn_res_block_size", "activation_situ_beta", "activation_situ_linear_beta",
                                "routed_expert_hidden_size", "latent_moe_use_norm", "linear_attn_config/gate_lower_bound",
                                "linear_attn_config/use_full_rank_gate", "mla_use_output_gate", "q_lora_rank"}) {
    std::string dotted = key;
    std::replace(dotted.begin(), dotted.end(), '/', '.');
    EXPECT_EQ(changed_k3(key, nullptr).text, "config.json: text_config." + dotted + ": required, but missing");
  }
  // The same without the wrapper: one key of K3 is enough to ask for the others.
  json text = json::parse(test::kimi_k3_config())["text_config"];
  text["linear_attn_config"].erase("gate_lower_bound");
  EXPECT_EQ(outcome(text.dump()).text, "config.json: linear_attn_config.gate_lower_bound: required, but missing");
}

TEST(ModelConfig, RequiresWhatBothFamiliesNeed) {
  for (const std::string key : {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
                                "rms_norm_eps", "hidden_act", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim",
                                "v_head_dim", "mla_use_nope", "num_experts", "num_experts_per_token", "num_shared_experts",
                                "moe_intermediate_size", "first_k_dense_replace", "moe_router_activation_func",
                                "moe_renormalize", "routed_scaling_factor", "linear_attn_config", "model_max_length"}) {
    EXPECT_EQ(changed_kl(key, nullptr).text, "config.json: " + key + ": required, but missing");
  }
  for (const std::string key : {"num_heads", "head_dim", "short_conv_kernel_size", "full_attn_layers", "kda_layers"}) {
    EXPECT_EQ(changed_kl("linear_attn_config/" + key, nullptr).text,
              "config.json: linear_attn_config." + key + ": required, but missing");
  }
}

TEST(ModelConfig, RefusesWrongLayerLists) {
  const auto with = [](const json& full, const json& kda) {
    json document = json::parse(test::kimi_linear_config());
    document["num_hidden_layers"] = 4;
    document["linear_attn_config"]["full_attn_layers"] = full;
    document["linear_attn_config"]["kda_layers"] = kda;
    return outcome(document.dump()).text;
  };
  EXPECT_EQ(with({4}, {1, 2, 3}), "no error");
  EXPECT_THAT(with({4}, {1, 3}), AllOf(HasSubstr("layer 2 of 4"), HasSubstr("neither")));
  EXPECT_THAT(with({3, 4}, {1, 2, 3}), AllOf(HasSubstr("linear_attn_config.full_attn_layers"), HasSubstr("layer 3 is listed twice")));
  EXPECT_THAT(with({4}, {1, 2, 3, 3}), AllOf(HasSubstr("kda_layers"), HasSubstr("layer 3 is listed twice")));
  EXPECT_THAT(with({4, 5}, {1, 2, 3}), AllOf(HasSubstr("layer 5 is outside 1 .. num_hidden_layers = 4")));
  EXPECT_THAT(with({3}, {0, 1, 2}), HasSubstr("layer 0 is outside 1"));
  EXPECT_THAT(with({"x"}, {1, 2, 3}), HasSubstr("full_attn_layers[0]: expected an integer, found a string"));
}

TEST(ModelConfig, RefusesNumbersThatContradictEachOther) {
  EXPECT_THAT(changed_k3("num_key_value_heads", 8).text, AllOf(HasSubstr("num_key_value_heads"), HasSubstr("96"), HasSubstr("8")));
  EXPECT_THAT(changed_k3("num_experts_per_token", 897).text, AllOf(HasSubstr("num_experts_per_token"), HasSubstr("897"), HasSubstr("896")));
  EXPECT_THAT(changed_k3("num_expert_group", 3).text, AllOf(HasSubstr("num_expert_group"), HasSubstr("3 groups"), HasSubstr("896")));
  EXPECT_THAT(changed_k3("topk_group", 2).text, AllOf(HasSubstr("topk_group"), HasSubstr("2 of 1")));
  EXPECT_THAT(changed_k3("first_k_dense_replace", 94).text, HasSubstr("94 is outside 0 .. 93"));
  EXPECT_THAT(changed_k3("eos_token_id", 163840).text, HasSubstr("163840 is outside 0 .. 163839"));
  EXPECT_THAT(changed_k3("linear_attn_config/gate_lower_bound", 0).text, HasSubstr("must be negative"));
  EXPECT_THAT(changed_k3("linear_attn_config/gate_lower_bound", 5).text, HasSubstr("5 is outside -100 .. 0"));
  EXPECT_THAT(changed_k3("hidden_size", 0).text, HasSubstr("text_config.hidden_size: 0 is outside"));
  EXPECT_THAT(changed_k3("hidden_size", -1).text, HasSubstr("-1 is outside"));
  EXPECT_THAT(changed_k3("hidden_size", 1LL << 40).text, HasSubstr("1099511627776 is outside"));
  EXPECT_THAT(changed_k3("hidden_size", "7168").text, HasSubstr("expected an integer, found a string"));
  EXPECT_THAT(changed_k3("moe_layer_freq", 0).text, HasSubstr("moe_layer_freq: 0 is outside"));
}

TEST(ModelConfig, SaysWhatIsNotSupported) {
  const auto unsupported = [](const Outcome& found, std::string_view key) {
    EXPECT_EQ(found.code, ErrorCode::kUnsupported) << found.text;
    EXPECT_THAT(found.text, AllOf(HasSubstr(std::string(key)), HasSubstr("not supported"))) << found.text;
  };
  unsupported(changed_k3("mla_use_nope", false), "mla_use_nope");
  unsupported(changed_k3("hidden_act", "silu"), "'silu'");
  unsupported(changed_kl("hidden_act", "gelu"), "'gelu'");
  unsupported(changed_k3("moe_router_activation_func", "softmax"), "'softmax'");
  unsupported(changed_k3("topk_method", "greedy"), "topk_method");
  unsupported(changed_k3("num_nextn_predict_layers", 1), "num_nextn_predict_layers");
  unsupported(changed_k3("linear_attn_config/use_full_rank_gate", false), "use_full_rank_gate");
  unsupported(changed_k3("quantization_config/format", "nvfp4"), "quantization_config.format");
  unsupported(changed(test::kimi_k3_config(), "/quantization_config", {{"quant_method", "gptq"}}), "quantization_config.quant_method");
  unsupported(outcome(R"({"model_type": "mixtral", "hidden_size": 64})"), "'mixtral'");
}

TEST(ModelConfig, SurvivesDamage) {
  std::mt19937_64 random(77);
  const std::string valid = test::kimi_linear_config();
  for (int round = 0; round < 5'000; ++round) {
    std::string text = valid;
    for (int e = 0; e < 3; ++e) {
      const std::size_t at = random() % text.size();
      switch (random() % 4) {
        case 0: text[at] = static_cast<char>(text[at] ^ (1 << random() % 8)); break;
        case 1: text[at] = "0123456789{}[],:\"-e."[random() % 20]; break;
        case 2: text.erase(at, 1 + random() % 4); break;
        case 3: text.insert(at, text.substr(random() % text.size(), random() % 32)); break;
      }
    }
    const std::string error = outcome(text).text;
    EXPECT_THAT(error, testing::AnyOf(testing::Eq("no error"), testing::StartsWith("config.json: ")));
  }
}

}  // namespace
}  // namespace palimpsest
