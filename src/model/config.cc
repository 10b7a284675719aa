#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iterator>

#include "base/mapped_file.h"
#include "model/families/config_reading.h"
#include "model/quantization_config.h"
#include "palimpsest/model_config.h"

namespace palimpsest {
namespace {

using namespace config_reading;

/// Kimi K3 is told by its own keys. One of them is enough: then all the others are required, so that a damaged K3 config
/// is an error and never a Kimi-Linear model.
bool has_k3_keys(const JsonObject& text, const JsonObject& linear) {
  constexpr std::string_view kTextKeys[] = {"attn_res_block_size",     "activation_situ_beta", "activation_situ_linear_beta",
                                            "routed_expert_hidden_size", "latent_moe_use_norm",  "mla_use_output_gate"};
  return linear.has("gate_lower_bound") || linear.has("use_full_rank_gate") ||
         std::any_of(std::begin(kTextKeys), std::end(kTextKeys), [&](auto key) { return text.has(key); });
}

KdaConfig read_kda(const JsonObject& linear, Family family) {
  KdaConfig kda;
  kda.num_heads = linear.integer("num_heads", kSize);
  kda.head_dim = linear.integer("head_dim", {1, 4096});
  kda.conv_kernel = linear.integer("short_conv_kernel_size", {1, 8});
  if (family == Family::kKimiK3) {
    kda.gate = KdaGate::kBounded;
    kda.gate_lower_bound = linear.number("gate_lower_bound", {-100, 0});
    if (kda.gate_lower_bound == 0) throw bad(linear.where("gate_lower_bound"), "must be negative, found 0");
    require_boolean(linear, "use_full_rank_gate", true);
    kda.output_gate = KdaOutputGate::kFullRank;
  }
  return kda;
}

MlaConfig read_mla(const JsonObject& text, Family family) {
  MlaConfig mla;
  mla.num_heads = text.integer("num_attention_heads", kSize);
  if (const auto kv_heads = text.find_integer("num_key_value_heads"); kv_heads && *kv_heads != mla.num_heads) {
    throw bad(text.where("num_key_value_heads"),
              fmt::format("latent attention needs num_attention_heads = {}, found {}", mla.num_heads, *kv_heads));
  }
  mla.q_lora_rank = family == Family::kKimiK3 ? text.integer("q_lora_rank", kSize)
                                              : text.find_integer("q_lora_rank", kSize).value_or(0);
  mla.kv_lora_rank = text.integer("kv_lora_rank", kSize);
  mla.qk_nope_head_dim = text.integer("qk_nope_head_dim", {1, 4096});
  mla.qk_rope_head_dim = text.integer("qk_rope_head_dim", {1, 4096});
  mla.v_head_dim = text.integer("v_head_dim", {1, 4096});
  require_boolean(text, "mla_use_nope", true);
  mla.output_gate = family == Family::kKimiK3 && text.boolean("mla_use_output_gate");
  return mla;
}

Activation read_activation(const JsonObject& text, Family family) {
  if (family == Family::kKimiLinear) {
    require_string(text, "hidden_act", "silu");
    return {ActivationKind::kSwiglu, 0, 0};
  }
  require_string(text, "hidden_act", "situ");
  const formats::NumberRange positive{1e-6, 1e6};
  return {ActivationKind::kSitu, text.number("activation_situ_beta", positive),
          text.number("activation_situ_linear_beta", positive)};
}

void check_experts(const JsonObject& text, const MoeConfig& moe) {
  if (moe.num_experts % moe.n_group != 0) {
    throw bad(text.where("num_expert_group"),
              fmt::format("{} groups do not divide {} experts", moe.n_group, moe.num_experts));
  }
  if (moe.topk_group > moe.n_group) {
    throw bad(text.where("topk_group"), fmt::format("{} of {} groups", moe.topk_group, moe.n_group));
  }
  const std::int64_t eligible = moe.num_experts / moe.n_group * moe.topk_group;
  if (moe.experts_per_token > eligible) {
    throw bad(text.where("num_experts_per_token"),
              fmt::format("{} experts a token, but only {} can be chosen", moe.experts_per_token, eligible));
  }
}

MoeConfig read_moe(const JsonObject& text, Family family) {
  MoeConfig moe;
  moe.num_experts = text.integer("num_experts", kExperts);
  moe.experts_per_token = text.integer("num_experts_per_token", kExperts);
  moe.num_shared_experts = text.integer("num_shared_experts", {0, 1024});
  moe.intermediate_size = text.integer("moe_intermediate_size", kSize);
  require_string(text, "moe_router_activation_func", "sigmoid");
  if (text.has("topk_method")) require_string(text, "topk_method", "noaux_tc");
  moe.renormalize = text.boolean("moe_renormalize");
  moe.routed_scaling = text.number("routed_scaling_factor", {1e-6, 1e6});
  moe.n_group = text.find_integer("num_expert_group", kExperts).value_or(1);
  moe.topk_group = text.find_integer("topk_group", kExperts).value_or(1);
  if (family == Family::kKimiK3) {
    moe.latent_size = text.integer("routed_expert_hidden_size", kSize);
    moe.latent_norm = text.boolean("latent_moe_use_norm");
  }
  check_experts(text, moe);
  return moe;
}

/// The two 1-based lists must together name every layer once.
std::vector<Mixer> read_mixers(const JsonObject& linear, std::int64_t num_layers) {
  std::vector<std::optional<Mixer>> chosen(static_cast<std::size_t>(num_layers));
  const auto mark = [&](std::string_view key, Mixer mixer) {
    for (const std::int64_t layer : linear.integers(key)) {
      if (layer < 1 || layer > num_layers) {
        throw bad(linear.where(key), fmt::format("layer {} is outside 1 .. num_hidden_layers = {}", layer, num_layers));
      }
      auto& slot = chosen[static_cast<std::size_t>(layer - 1)];
      if (slot) throw bad(linear.where(key), fmt::format("layer {} is listed twice", layer));
      slot = mixer;
    }
  };
  mark("kda_layers", Mixer::kKimiDeltaAttention);
  mark("full_attn_layers", Mixer::kLatentAttention);
  std::vector<Mixer> mixers;
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    if (!chosen[i]) {
      throw bad(linear.where("kda_layers"), fmt::format("layer {} of {} is in neither kda_layers nor full_attn_layers",
                                                        i + 1, num_layers));
    }
    mixers.push_back(*chosen[i]);
  }
  return mixers;
}

/// Layer l is MoE iff l >= first_k_dense_replace and moe_layer_freq divides l.
std::vector<LayerSpec> read_layers(const JsonObject& text, const JsonObject& linear, Family family) {
  const std::int64_t num_layers = text.integer("num_hidden_layers", kLayers);
  const std::int64_t first_moe = text.integer("first_k_dense_replace", {0, num_layers});
  const std::int64_t frequency = text.find_integer("moe_layer_freq", {1, kLayers.max}).value_or(1);
  const auto mixers = read_mixers(linear, num_layers);
  std::vector<LayerSpec> layers;
  for (std::int64_t l = 0; l < num_layers; ++l) {
    layers.push_back({mixers[static_cast<std::size_t>(l)],
                      l >= first_moe && l % frequency == 0 ? Ffn::kMixtureOfExperts : Ffn::kDense,
                      family == Family::kKimiK3 ? Residual::kBlockAttention : Residual::kSum});
  }
  return layers;
}

}  // namespace

ModelConfig parse_model_config(std::string_view json, std::string_view file) {
  const JsonObject root = JsonObject::parse(json, file);
  const auto wrapped = root.find_object("text_config");
  const JsonObject text = wrapped.value_or(root);
  check_quantization(root, text);
  const auto linear = text.find_object("linear_attn_config");
  if (!linear) {
    const auto type = text.has("model_type") ? text.find_string("model_type") : root.find_string("model_type");
    if (const FamilyReader reader = type ? find_family_reader(*type) : nullptr) return reader(root, text);
    if (type && *type != "kimi_k3" && *type != "kimi_linear") {
      throw make_error(ErrorCode::kUnsupported, "{}: '{}' is not supported, only {}", root.where("model_type"), *type,
                       supported_model_types());
    }
    throw bad(text.where("linear_attn_config"), "required, but missing");
  }

  ModelConfig config;
  config.family = wrapped || has_k3_keys(text, *linear) ? Family::kKimiK3 : Family::kKimiLinear;
  config.weight_prefix = wrapped ? "language_model." : "";
  config.has_vision = root.find_object("vision_config").has_value();
  config.vocab_size = text.integer("vocab_size", kVocabulary);
  config.hidden_size = text.integer("hidden_size", kSize);
  config.max_position_embeddings = text.has("max_position_embeddings") ? text.integer("max_position_embeddings", kPositions)
                                                                       : text.integer("model_max_length", kPositions);
  config.rms_norm_eps = text.number("rms_norm_eps", {0, 1});
  config.tie_word_embeddings = text.find_boolean("tie_word_embeddings").value_or(false);
  read_token_ids(root, text, config);

  config.layers = read_layers(text, *linear, config.family);
  config.kda = read_kda(*linear, config.family);
  config.mla = read_mla(text, config.family);
  config.activation = read_activation(text, config.family);
  config.mlp.intermediate_size = text.integer("intermediate_size", kSize);
  config.moe = read_moe(text, config.family);
  if (config.family == Family::kKimiK3) config.attn_res_block_size = text.integer("attn_res_block_size", kLayers);
  if (const auto drafts = text.find_integer("num_nextn_predict_layers"); drafts.value_or(0) != 0) {
    throw make_error(ErrorCode::kUnsupported, "{}: {} multi-token prediction layers are not supported",
                     text.where("num_nextn_predict_layers"), *drafts);
  }
  return config;
}

ModelConfig load_model_config(const std::string& folder) {
  const auto file = value_or_throw(base::MappedFile::open(std::filesystem::path(folder) / "config.json"));
  return parse_model_config({reinterpret_cast<const char*>(file.bytes().data()), file.size()});
}

}  // namespace palimpsest
