#include "model/state_spec.h"

#include <utility>

namespace palimpsest {

namespace {

/// Histories of the convolutions of q, k and v; none without convolutions.
void add_tails(StateSpec& spec, std::int32_t layer, std::int64_t taps, std::int64_t keys, std::int64_t values) {
  if (taps == 0) return;
  for (const char* name : {"conv_q", "conv_k"}) spec.entries.push_back({StateKind::kConvTail, layer, name, DType::kF32, {taps - 1, keys}});
  spec.entries.push_back({StateKind::kConvTail, layer, "conv_v", DType::kF32, {taps - 1, values}});
}

constexpr std::pair<std::string_view, DType> kListTypes[] = {{"f32", DType::kF32}, {"bf16", DType::kBF16}, {"q8", DType::kI8}};

void add_page(StateSpec& spec, std::int32_t layer, std::vector<std::int64_t> shape, DType at_border) {
  spec.entries.push_back({StateKind::kPage, layer, "page", DType::kF32, std::move(shape), {}, at_border});
}

/// A list whose rows are as q8 says where they have 8 bits.
void add_list(StateSpec& spec, std::int32_t layer, const char* name, DType dtype, const Q8Rows& q8) {
  spec.entries.push_back({StateKind::kList, layer, name, dtype, {q8.width()}, dtype == DType::kI8 ? q8 : Q8Rows{}});
}

}  // namespace

std::string_view list_type_name(DType list_dtype) {
  for (const auto& [name, dtype] : kListTypes) {
    if (dtype == list_dtype) return name;
  }
  return dtype_name(list_dtype);
}

std::optional<DType> parse_list_type(std::string_view name) {
  for (const auto& [known, dtype] : kListTypes) {
    if (known == name) return dtype;
  }
  return std::nullopt;
}

StateSpec state_spec(const ModelConfig& config, DType list_dtype, DType page_dtype) {
  StateSpec spec;
  const KdaConfig& kda = config.kda;
  for (std::int32_t layer = 0; layer < config.num_layers(); ++layer) {
    switch (config.layers[static_cast<std::size_t>(layer)].mixer) {
      case Mixer::kKimiDeltaAttention:
        add_page(spec, layer, {kda.value_heads(), kda.values(), kda.head_dim}, page_dtype);
        add_tails(spec, layer, kda.conv_kernel, kda.projection_size(), kda.value_size());
        break;
      case Mixer::kLatentAttention:
        add_list(spec, layer, "latent", list_dtype, q8_latent_rows(config.mla.kv_lora_rank, config.mla.qk_rope_head_dim));
        break;
      case Mixer::kSoftmaxAttention:
        add_list(spec, layer, "keys_values", list_dtype,
                 q8_head_rows(config.attention.num_kv_heads, config.attention.head_dim, config.attention.head_dim));
        break;
      case Mixer::kLinearAttention:
      case Mixer::kDeltaNet:
      case Mixer::kGatedDeltaNet: {
        const PageMixerConfig& page = config.page;
        add_page(spec, layer, {page.num_value_heads, page.page_values(), page.page_width()}, page_dtype);
        add_tails(spec, layer, page.conv_kernel, page.key_size(), page.value_size());
        break;
      }
    }
  }
  return spec;
}

std::int64_t kv_cache_bytes_per_token(const ModelConfig& config, DType dtype) {
  std::int64_t bytes = 0;
  for (const LayerSpec& layer : config.layers) {
    StateSpec row;
    const auto add = [&](std::int64_t heads, std::int64_t key_size, std::int64_t value_size) {
      add_list(row, 0, "", dtype, q8_head_rows(heads, key_size, value_size));
    };
    switch (layer.mixer) {
      case Mixer::kLatentAttention: add(config.mla.num_heads, config.mla.qk_head_dim(), config.mla.v_head_dim); break;
      case Mixer::kKimiDeltaAttention: add(1, config.kda.projection_size(), config.kda.value_size()); break;
      case Mixer::kSoftmaxAttention: add(config.attention.num_kv_heads, config.attention.head_dim, config.attention.head_dim); break;
      default: add(1, config.page.key_size(), config.page.value_size()); break;
    }
    bytes += row.bytes_per_token();
  }
  return bytes;
}

}  // namespace palimpsest
