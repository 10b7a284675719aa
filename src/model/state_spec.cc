#include "model/state_spec.h"

namespace palimpsest {

StateSpec state_spec(const ModelConfig& config, DType list_dtype) {
  StateSpec spec;
  const KdaConfig& kda = config.kda;
  for (std::int32_t layer = 0; layer < config.num_layers(); ++layer) {
    switch (config.layers[static_cast<std::size_t>(layer)].mixer) {
      case Mixer::kKimiDeltaAttention:
        spec.entries.push_back(
            {StateKind::kPage, layer, "page", DType::kF32, {kda.num_heads, kda.head_dim, kda.head_dim}});
        for (const char* name : {"conv_q", "conv_k", "conv_v"}) {
          spec.entries.push_back(
              {StateKind::kConvTail, layer, name, DType::kF32, {kda.conv_kernel - 1, kda.projection_size()}});
        }
        break;
      case Mixer::kLatentAttention:
        spec.entries.push_back({StateKind::kList, layer, "latent", list_dtype, {config.mla.cache_width()}});
        break;
    }
  }
  return spec;
}

std::int64_t kv_cache_bytes_per_token(const ModelConfig& config, DType dtype) {
  std::int64_t values = 0;
  for (const LayerSpec& layer : config.layers) {
    values += layer.mixer == Mixer::kLatentAttention
                  ? config.mla.num_heads * (config.mla.qk_head_dim() + config.mla.v_head_dim)
                  : 2 * config.kda.projection_size();
  }
  return values * dtype_size(dtype);
}

}  // namespace palimpsest
