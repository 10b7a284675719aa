#pragma once

#include <fstream>
#include <iterator>
#include <string>

#include "support/shared_data.h"

namespace palimpsest::test {

/// config.json of moonshotai/Kimi-K3, without generation defaults.
inline std::string kimi_k3_config() {
  std::ifstream file(project_path("tests/data/kimi_k3_config.json"));
  return {std::istreambuf_iterator<char>(file), {}};
}

/// moonshotai/Kimi-Linear-48B-A3B-Instruct.
inline std::string kimi_linear_config() {
  return R"({"architectures": ["KimiLinearForCausalLM"], "model_type": "kimi_linear", "dtype": "bfloat16",
    "bos_token_id": 163584, "eos_token_id": 163586, "pad_token_id": 163839, "vocab_size": 163840, "hidden_size": 2304,
    "head_dim": 72, "intermediate_size": 9216, "num_hidden_layers": 27, "num_attention_heads": 32,
    "num_key_value_heads": 32, "hidden_act": "silu", "rms_norm_eps": 1e-05, "q_lora_rank": null, "kv_lora_rank": 512,
    "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "mla_use_nope": true, "rope_theta": 10000.0,
    "rope_scaling": null, "model_max_length": 1048576, "num_experts": 256, "num_experts_per_token": 8,
    "num_shared_experts": 1, "moe_intermediate_size": 1024, "first_k_dense_replace": 1, "moe_layer_freq": 1,
    "moe_renormalize": true, "moe_router_activation_func": "sigmoid", "routed_scaling_factor": 2.446,
    "use_grouped_topk": true, "num_expert_group": 1, "topk_group": 1, "num_nextn_predict_layers": 0,
    "tie_word_embeddings": false,
    "linear_attn_config": {"num_heads": 32, "head_dim": 128, "short_conv_kernel_size": 4,
      "full_attn_layers": [4,8,12,16,20,24,27],
      "kda_layers": [1,2,3,5,6,7,9,10,11,13,14,15,17,18,19,21,22,23,25,26]}})";
}

}  // namespace palimpsest::test
