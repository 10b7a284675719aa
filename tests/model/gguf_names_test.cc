// Our names of GGUF tensors against those of PyPI gguf, recorded by tools/record_gguf_names.py.

#include "model/gguf/gguf_names.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <sstream>

#include "model/gguf/gguf_config.h"
#include "model/published_configs.h"
#include "support/shared_data.h"
#include "support/temp_folder.h"

namespace palimpsest {
namespace {

using Names = std::map<std::string, std::string>;  // Hugging Face's name of layer 5 -> gguf's

Names recorded(std::string_view architecture) {
  std::istringstream lines(test::read_file(test::project_path("tests/data/gguf/tensor_names.txt")));
  Names names;
  for (std::string arch, theirs, gguf; lines >> arch >> theirs >> gguf;) {
    if (arch == architecture) names[theirs] = gguf;
  }
  return names;
}

/// The numbers of a layer and of an expert out of a name, as the recording has it.
std::string general(std::string name, const WeightSpec& spec) {
  const auto replace = [&](const std::string& from, const std::string& to) {
    if (const auto at = name.find(from); at != name.npos) name.replace(at, from.size(), to);
  };
  replace("layers." + std::to_string(spec.layer) + ".", "layers.5.");
  replace("h." + std::to_string(spec.layer) + ".", "h.5.");
  replace("blk." + std::to_string(spec.layer) + ".", "blk.5.");
  replace("experts." + std::to_string(spec.expert) + ".", "experts.");
  return name;
}

/// Every weight that both know has the same name; returns how many different ones that were.
std::size_t compare(const ModelConfig& config, const Names& theirs) {
  std::set<std::string> seen;
  for (const WeightSpec& spec : gguf_weight_spec(config)) {
    const auto at = theirs.find(general(weight_name(config, spec), spec));
    if (at == theirs.end()) continue;
    seen.insert(at->first);
    EXPECT_EQ(general(gguf_name(config, spec), spec), at->second) << at->first;
  }
  return seen.size();
}

constexpr std::string_view kLlama = R"({"model_type": "llama", "vocab_size": 320, "hidden_size": 64, "num_hidden_layers": 6, "rms_norm_eps": 1e-5,
  "max_position_embeddings": 64, "hidden_act": "silu", "num_attention_heads": 4, "intermediate_size": 96})";
constexpr std::string_view kGpt2 = R"({"model_type": "gpt2", "vocab_size": 320, "n_embd": 64, "n_layer": 6, "n_head": 4, "n_positions": 64,
  "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new"})";
constexpr std::string_view kQwen3Next = R"({"model_type": "qwen3_next", "vocab_size": 320, "hidden_size": 64, "num_hidden_layers": 8,
  "rms_norm_eps": 1e-6, "max_position_embeddings": 64, "hidden_act": "silu", "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
  "partial_rotary_factor": 0.25, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 32, "linear_value_head_dim": 32,
  "linear_conv_kernel_dim": 4, "num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32})";

TEST(GgufNames, AreThoseOfPyPiGguf) {
  // All recorded names occur in the models but these: what is split here lies whole in checkpoints, or the other way round.
  EXPECT_EQ(compare(parse_model_config(kLlama), recorded("llama")), recorded("llama").size());
  EXPECT_EQ(compare(parse_model_config(kGpt2), recorded("gpt2")), recorded("gpt2").size());
  EXPECT_EQ(compare(parse_model_config(kQwen3Next), recorded("qwen3next")), recorded("qwen3next").size());
  // q_a_proj and its norm and q_b_proj are K3's; k_b_proj and v_b_proj no checkpoint's.
  EXPECT_EQ(compare(parse_model_config(test::kimi_linear_config()), recorded("kimi-linear")), recorded("kimi-linear").size() - 5);
}

TEST(GgufNames, OfK3AreThoseOfKimiLinearWhereThereIsOne) {
  Names theirs;
  for (const auto& [name, gguf] : recorded("kimi-linear")) theirs["language_model." + name] = gguf;
  const ModelConfig k3 = parse_model_config(test::kimi_k3_config());
  // Without the low-rank output gate (2), a direct q_proj is KDA's, and k_b_proj and v_b_proj are no checkpoint's.
  EXPECT_EQ(compare(k3, theirs), theirs.size() - 4);
}

TEST(GgufNames, HalvesAbsorbedIntoOneMatrixAreThoseOfPyPiGguf) {
  const Names theirs = recorded("kimi-linear");
  EXPECT_EQ(theirs.at("model.layers.5.self_attn.k_b_proj.weight"), gguf_layer_name(5, "attn_k_b.weight"));
  EXPECT_EQ(theirs.at("model.layers.5.self_attn.v_b_proj.weight"), gguf_layer_name(5, "attn_v_b.weight"));
}

TEST(GgufNames, EveryWeightOfAnArchitectureHasItsOwn) {
  for (const std::string& text : {std::string(kLlama), std::string(kGpt2), std::string(kQwen3Next), test::kimi_linear_config()}) {
    const ModelConfig config = parse_model_config(text);
    std::set<std::string> names;
    for (const WeightSpec& spec : gguf_weight_spec(config)) {
      if (spec.expert <= 0) { EXPECT_TRUE(names.insert(gguf_name(config, spec)).second) << gguf_name(config, spec); }
    }
  }
}

TEST(GgufNames, RotatedRowsOfAHeadLieSideBySide) {
  // Heads of four: channels 0 and 2 rotate together, and 1 and 3.
  const std::int64_t want[] = {0, 2, 1, 3, 4, 6, 5, 7};
  for (std::int64_t row = 0; row < 8; ++row) EXPECT_EQ(llama_rope_row(row, 4), want[row]);
}

}  // namespace
}  // namespace palimpsest
