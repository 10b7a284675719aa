#include "model/state_spec.h"

namespace palimpsest {

namespace {

/// Histories of the convolutions of q, k and v; none without convolutions.
void add_tails(StateSpec& spec, std::int32_t layer, std::int64_t taps, std::int64_t keys, std::int64_t values) {
  if (taps == 0) return;
  for (const char* name : {"conv_q", "conv_k"}) spec.entries.push_back({StateKind::kConvTail, layer, name, DType::kF32, {taps - 1, keys}});
  spec.entries.push_back({StateKind::kConvTail, layer, "conv_v", DType::kF32, {taps - 1, values}});
}

}  // namespace

StateSpec state_spec(const ModelConfig& config, DType list_dtype) {
  StateSpec spec;
  const KdaConfig& kda = config.kda;
  for (std::int32_t layer = 0; layer < config.num_layers(); ++layer) {
    switch (config.layers[static_cast<std::size_t>(layer)].mixer) {
      case Mixer::kKimiDeltaAttention:
        spec.entries.push_back(
            {StateKind::kPage, layer, "page", DType::kF32, {kda.value_heads(), kda.values(), kda.head_dim}});
        add_tails(spec, layer, kda.conv_kernel, kda.projection_size(), kda.value_size());
        break;
      case Mixer::kLatentAttention:
        spec.entries.push_back({StateKind::kList, layer, "latent", list_dtype, {config.mla.cache_width()}});
        break;
      case Mixer::kSoftmaxAttention:
        spec.entries.push_back({StateKind::kList, layer, "keys_values", list_dtype, {config.attention.cache_width()}});
        break;
      case Mixer::kLinearAttention:
      case Mixer::kDeltaNet:
      case Mixer::kGatedDeltaNet: {
        const PageMixerConfig& page = config.page;
        spec.entries.push_back({StateKind::kPage, layer, "page", DType::kF32, {page.num_value_heads, page.page_values(), page.page_width()}});
        add_tails(spec, layer, page.conv_kernel, page.key_size(), page.value_size());
        break;
      }
    }
  }
  return spec;
}

std::int64_t kv_cache_bytes_per_token(const ModelConfig& config, DType dtype) {
  std::int64_t values = 0;
  for (const LayerSpec& layer : config.layers) {
    switch (layer.mixer) {
      case Mixer::kLatentAttention: values += config.mla.num_heads * (config.mla.qk_head_dim() + config.mla.v_head_dim); break;
      case Mixer::kKimiDeltaAttention: values += config.kda.projection_size() + config.kda.value_size(); break;
      case Mixer::kSoftmaxAttention: values += config.attention.cache_width(); break;
      default: values += config.page.key_size() + config.page.value_size(); break;
    }
  }
  return values * dtype_size(dtype);
}

}  // namespace palimpsest
