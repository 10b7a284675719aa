#include "tools/synthetic_checkpoint.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "model/weight_spec.h"

namespace palimpsest::synthetic {
namespace {

using formats::SafetensorsWriter;
using Item = SafetensorsWriter::Item;

/// splitmix64 (Steele, Lea, Flood 2014): fast enough to keep up with a disk.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {
    std::uint64_t z = (state_ += 0x9E3779B97F4A7C15ull);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
  }

 private:
  std::uint64_t state_;
};

/// A power of two 2^-n with n about log2(sqrt(columns)): the size of a matrix element.
int element_exponent(const Item& item) {
  const double columns = item.shape.size() >= 2 ? static_cast<double>(item.shape.back()) : 4;
  return -static_cast<int>(std::lround(std::log2(std::max(columns, 1.0)) / 2));
}

/// Fills one block with random words whose sign and mantissa are random and whose exponent is fixed (or 1 + small for norms).
void fill_block(const Item& item, Random& random, std::vector<std::uint64_t>& block) {
  const int exponent = element_exponent(item);
  const bool norm = item.name.find("norm") != item.name.npos;
  const auto field = static_cast<std::uint64_t>(127 + (norm ? 0 : exponent));
  for (std::uint64_t& word : block) {
    word = random.next();
    switch (item.dtype) {
      case DType::kBF16: {
        const std::uint64_t keep = norm ? 0x0007ull : 0x807Full;  // norms: 1 + less than 1/16
        word = (word & (keep * 0x0001000100010001ull)) | (field << 7) * 0x0001000100010001ull;
        break;
      }
      case DType::kF32: {
        const std::uint64_t keep = norm ? 0x0007FFFFull : 0x807FFFFFull;
        word = (word & (keep * 0x0000000100000001ull)) | (field << 23) * 0x0000000100000001ull;
        break;
      }
      default:
        // E8M0 bytes around 2^(exponent - 1), one in four doubled; E2M1 codes need no shaping.
        if (item.name.ends_with("_scale")) {
          word = (word & 0x0101010101010101ull & (word >> 8)) + static_cast<std::uint64_t>(124 + exponent) * 0x0101010101010101ull;
        }
    }
  }
}

void write_a_log(const Item& item, std::int64_t heads, Random& random, SafetensorsWriter& writer) {
  std::vector<float> values;
  for (std::int64_t n : item.shape) values.resize(std::max<std::size_t>(values.size(), 1) * static_cast<std::size_t>(n));
  for (std::int64_t i = 0; i < std::min<std::int64_t>(heads, std::ssize(values)); ++i) {
    values[static_cast<std::size_t>(i)] = static_cast<float>(static_cast<double>(random.next() >> 11) * 0x1.0p-52);
  }
  writer.append(std::as_bytes(std::span(values)));
}

std::uint64_t bytes_of(const Item& item) {
  std::uint64_t bytes = static_cast<std::uint64_t>(dtype_size(item.dtype));
  for (const std::int64_t n : item.shape) bytes *= static_cast<std::uint64_t>(n);
  return bytes;
}

/// `on_block(bytes)` after each block.
void write_item(const Item& item, const ModelConfig& config, Random& random, SafetensorsWriter& writer, const std::function<void(std::uint64_t)>& on_block) {
  if (item.name.ends_with("A_log") && item.dtype == DType::kF32) {
    return write_a_log(item, config.kda.num_heads, random, writer);
  }
  std::uint64_t left = bytes_of(item);
  std::vector<std::uint64_t> block(1 << 15);
  while (left > 0) {
    block.resize(std::min<std::uint64_t>(block.size(), (left + 7) / 8));
    fill_block(item, random, block);
    const auto bytes = std::as_bytes(std::span(block));
    const auto count = std::min<std::uint64_t>(left, bytes.size());
    writer.append(bytes.first(static_cast<std::size_t>(count)));
    left -= count;
    on_block(count);
  }
}

void write_text(const std::filesystem::path& path, std::string_view text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file) throw make_error(ErrorCode::kIo, "cannot write '{}'", path.string());
}

std::string shard_name(int shard, int shards) {
  return shards == 1 ? "model.safetensors" : fmt::format("model-{:05}-of-{:05}.safetensors", shard + 1, shards);
}

}  // namespace

std::vector<Item> checkpoint_items(const ModelConfig& config, bool mxfp4_experts) {
  std::vector<Item> items;
  for (const WeightSpec& spec : weight_spec(config)) {
    const std::string name = weight_name(config, spec);
    std::vector<std::int64_t> shape(spec.shape().begin(), spec.shape().end());
    if (spec.expert >= 0 && mxfp4_experts) {
      items.push_back({name + "_packed", DType::kU8, {shape[0], shape[1] / 2}});
      items.push_back({name + "_scale", DType::kU8, {shape[0], shape[1] / 32}});
      continue;
    }
    if (spec.stored_as_heads) {  // as the two families publish it
      shape = config.family == Family::kKimiK3 ? std::vector<std::int64_t>{(shape[0] + 127) / 128 * 128}
                                               : std::vector<std::int64_t>{1, 1, shape[0], 1};
    }
    items.push_back({name, spec.dtype, std::move(shape)});
  }
  return items;
}

void write_checkpoint(const std::filesystem::path& folder, std::string_view config_text, const Options& options) {
  const ModelConfig config = parse_model_config(config_text);
  std::filesystem::create_directories(folder);
  write_text(folder / "config.json", config_text);
  std::vector<Item> items = checkpoint_items(config, options.mxfp4_experts);
  if (options.edit) options.edit(items);

  std::uint64_t total = 0, done = 0;
  for (const Item& item : items) total += bytes_of(item);
  const auto on_block = [&](std::uint64_t bytes) {
    done += bytes;
    if (options.on_progress) options.on_progress(static_cast<std::int64_t>(done), static_cast<std::int64_t>(total));
  };

  std::string index = R"({"metadata": {}, "weight_map": {)";
  const auto shards = static_cast<std::size_t>(options.shards);
  for (std::size_t shard = 0; shard < shards; ++shard) {
    const std::size_t begin = items.size() * shard / shards, end = items.size() * (shard + 1) / shards;
    const std::span<const Item> part(items.data() + begin, end - begin);
    const std::string name = shard_name(static_cast<int>(shard), options.shards);
    SafetensorsWriter writer(folder / name, part);
    Random random(options.seed + 0x1000003 * shard);
    for (std::size_t i = begin; i < end; ++i) {
      write_item(items[i], config, random, writer, on_block);
      index += fmt::format("{}{}: \"{}\"", i == 0 ? "" : ",\n", nlohmann::json(items[i].name).dump(), name);
    }
    writer.commit();
  }
  if (shards > 1) write_text(folder / "model.safetensors.index.json", index + "}}\n");
}

namespace {

std::string llama_config_json(const Shape& s) {
  return nlohmann::ordered_json{{"architectures", {"LlamaForCausalLM"}}, {"model_type", "llama"}, {"vocab_size", s.vocab_size},
                                {"hidden_size", s.hidden_size}, {"intermediate_size", s.intermediate_size}, {"num_hidden_layers", s.num_layers},
                                {"num_attention_heads", s.num_heads}, {"num_key_value_heads", s.num_kv_heads}, {"head_dim", s.head_dim},
                                {"hidden_act", "silu"}, {"rms_norm_eps", 1e-5}, {"rope_theta", 100000.0}, {"max_position_embeddings", 131072},
                                {"tie_word_embeddings", true}, {"bos_token_id", 1}, {"eos_token_id", 2}}
      .dump(1);
}

}  // namespace

const Shape* published_shape(std::string_view name) {
  static const std::map<std::string_view, Shape> kShapes = {
      {"kimi-linear", {.family = Family::kKimiLinear, .num_layers = 27, .hidden_size = 2304, .num_heads = 32, .head_dim = 128, .kv_lora_rank = 512, .intermediate_size = 9216,
                       .num_experts = 256, .experts_per_token = 8, .expert_intermediate_size = 1024, .vocab_size = 163840}},
      {"llama", {.family = Family::kLlama, .num_layers = 16, .hidden_size = 2048, .num_heads = 32, .num_kv_heads = 8, .head_dim = 64, .intermediate_size = 8192,
                 .vocab_size = 128256}},
      {"smollm2", {.family = Family::kLlama, .num_layers = 30, .hidden_size = 576, .num_heads = 9, .num_kv_heads = 3, .head_dim = 64, .intermediate_size = 1536,
                   .vocab_size = 49152}}};
  const auto found = kShapes.find(name);
  return found == kShapes.end() ? nullptr : &found->second;
}

std::string cut_to_layers(std::string_view config_json, std::int64_t layers) {
  const ModelConfig whole = parse_model_config(config_json);
  if (layers < 1 || layers > whole.num_layers()) throw make_error(ErrorCode::kUsage, "cannot cut {} layers to {}", whole.num_layers(), layers);
  auto root = nlohmann::ordered_json::parse(config_json);
  auto& text = root.contains("text_config") ? root["text_config"] : root;
  for (const char* count : {"num_hidden_layers", "n_layer"}) {
    if (text.contains(count)) text[count] = layers;
  }
  if (text.contains("layer_types")) text["layer_types"].erase(text["layer_types"].begin() + layers, text["layer_types"].end());
  if (text.contains("linear_attn_config")) {
    for (const char* list : {"full_attn_layers", "kda_layers"}) {  // numbered from 1
      auto kept = nlohmann::ordered_json::array();
      for (const auto& layer : text["linear_attn_config"][list]) {
        if (layer <= layers) kept.push_back(layer);
      }
      text["linear_attn_config"][list] = kept;
    }
  }
  return root.dump(1);
}

std::string config_json(const Shape& s) {
  using nlohmann::ordered_json;
  if (s.family == Family::kLlama) return llama_config_json(s);
  if (s.family != Family::kKimiK3 && s.family != Family::kKimiLinear)
    throw make_error(ErrorCode::kUsage, "no config.json is made up for the family {}; give one", family_name(s.family));
  ordered_json linear = {{"num_heads", s.num_heads}, {"head_dim", s.head_dim}, {"short_conv_kernel_size", 4}};
  ordered_json full = ordered_json::array(), kda = ordered_json::array();
  for (std::int64_t l = 1; l <= s.num_layers; ++l) (l % 4 == 0 || l == s.num_layers ? full : kda).push_back(l);
  linear["full_attn_layers"] = full;
  linear["kda_layers"] = kda;
  const bool k3 = s.family == Family::kKimiK3;
  ordered_json text = {
      {"model_type", "kimi_linear"}, {"vocab_size", s.vocab_size}, {"hidden_size", s.hidden_size},
      {"intermediate_size", s.intermediate_size}, {"num_hidden_layers", s.num_layers},
      {"num_attention_heads", s.num_heads}, {"num_key_value_heads", s.num_heads}, {"rms_norm_eps", 1e-5},
      {"hidden_act", k3 ? "situ" : "silu"}, {"max_position_embeddings", 1048576}, {"tie_word_embeddings", false},
      {"bos_token_id", s.vocab_size - 3}, {"eos_token_id", s.vocab_size - 2}, {"pad_token_id", s.vocab_size - 1},
      {"q_lora_rank", k3 ? ordered_json(s.kv_lora_rank) : ordered_json()}, {"kv_lora_rank", s.kv_lora_rank},
      {"qk_nope_head_dim", s.head_dim}, {"qk_rope_head_dim", s.head_dim / 2}, {"v_head_dim", s.head_dim},
      {"mla_use_nope", true}, {"num_experts", s.num_experts}, {"num_experts_per_token", s.experts_per_token},
      {"num_shared_experts", 1}, {"moe_intermediate_size", s.expert_intermediate_size}, {"first_k_dense_replace", 1},
      {"moe_layer_freq", 1}, {"moe_router_activation_func", "sigmoid"}, {"moe_renormalize", true},
      {"routed_scaling_factor", k3 ? 1.0 : 2.446}, {"num_expert_group", 1}, {"topk_group", 1}};
  if (!k3) {
    text["linear_attn_config"] = linear;
    return text.dump(1);
  }
  linear["gate_lower_bound"] = -5.0;
  linear["use_full_rank_gate"] = true;
  text.update(ordered_json{{"activation_situ_beta", 4.0}, {"activation_situ_linear_beta", 25.0}, {"attn_res_block_size", 4},
                           {"routed_expert_hidden_size", s.latent_size}, {"latent_moe_use_norm", true},
                           {"mla_use_output_gate", true}, {"linear_attn_config", linear}});
  return ordered_json{{"model_type", "kimi_k3"}, {"text_config", text}}.dump(1);
}

}  // namespace palimpsest::synthetic
