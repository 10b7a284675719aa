#pragma once

#include <optional>
#include <string_view>

#include "palimpsest/model_config.h"
#include "state/state_spec_types.h"

namespace palimpsest {

/// The memories of every layer of a model. Pages and convolution tails are F32, pages rounded to `page_dtype` (F32 or BF16) at borders; list rows have `list_dtype`: F32, BF16, or I8 for 8-bit codes with
/// scales (kernels/q8_rows.h).
///   kda: "page" [value heads, V, head_dim];  "conv_q", "conv_k", "conv_v" [conv_kernel - 1, heads * head_dim], in this order
///   linear attention, DeltaNet, Gated DeltaNet: "page" [value heads, value_dim, key_dim]; "conv_q", "conv_k", "conv_v" where they convolve
///   softmax attention: "keys_values" [2 kv_heads head_dim] a token: keys of all heads, then values
///   mla: "latent" [kv_lora_rank + qk_rope_head_dim] a token: the normed latent, then the shared key channels
StateSpec state_spec(const ModelConfig& config, DType list_dtype = DType::kBF16, DType page_dtype = DType::kF32);

/// The names of the types that lists can have: "f32", "bf16", "q8".
std::string_view list_type_name(DType list_dtype);
/// Nothing for a name that is not one of these.
std::optional<DType> parse_list_type(std::string_view name);

/// What a cache of per-head keys and values would take per token in the same layers and type: the figure to compare with.
/// Page layers count as if they were attention with their own heads.
std::int64_t kv_cache_bytes_per_token(const ModelConfig& config, DType dtype = DType::kBF16);

}  // namespace palimpsest
