#include <fmt/format.h>

#include <iterator>

#include "palimpsest/model_config.h"

// Names and a description of a configuration for people.

namespace palimpsest {
namespace {

bool has_mixer(const ModelConfig& config, Mixer mixer) {
  for (const LayerSpec& layer : config.layers) {
    if (layer.mixer == mixer) return true;
  }
  return false;
}

std::string kda_line(const KdaConfig& kda) {
  return fmt::format("kda: {} heads of {}, convolution {}, {} gate", kda.num_heads, kda.head_dim, kda.conv_kernel,
                     kda.gate == KdaGate::kBounded ? fmt::format("bounded ({})", kda.gate_lower_bound) : "softplus");
}

std::string mla_line(const MlaConfig& mla) {
  return fmt::format("mla: {} heads of {}+{} keys and {} values, latent {}, query rank {}{}", mla.num_heads, mla.qk_nope_head_dim,
                     mla.qk_rope_head_dim, mla.v_head_dim, mla.kv_lora_rank, mla.q_lora_rank, mla.output_gate ? ", output gate" : "");
}

std::string attention_line(const SoftmaxAttentionConfig& a) {
  return fmt::format("attention: {} heads of {}, {} of keys and values, {} of {} channels rotated{}{}", a.num_heads, a.head_dim, a.num_kv_heads,
                     2 * a.rope_inv_freq.size(), a.head_dim, a.qk_norm ? ", normed q and k" : "", a.output_gate ? ", output gate" : "");
}

std::string page_line(std::string_view name, const PageMixerConfig& p) {
  return fmt::format("{}: {} heads of {} keys, {} of {} values, convolution {}{}", name, p.num_heads, p.key_dim, p.num_value_heads, p.value_dim,
                     p.conv_kernel, p.output_gate ? ", output gate" : "");
}

}  // namespace

std::string_view family_name(Family family) noexcept {
  switch (family) {
    case Family::kKimiK3: return "kimi_k3";
    case Family::kKimiLinear: return "kimi_linear";
    case Family::kGpt2: return "gpt2";
    case Family::kLlama: return "llama";
    case Family::kLinearAttention: return "linear_attn";
    case Family::kDeltaNet: return "delta_net";
    case Family::kGatedDeltaNet: return "gated_deltanet";
    case Family::kKda: return "kda";
    case Family::kQwen3Next: return "qwen3_next";
    case Family::kQwen3_5: return "qwen3_5";
  }
  return "?";
}

std::string_view mixer_name(Mixer mixer) noexcept {
  switch (mixer) {
    case Mixer::kKimiDeltaAttention: return "kda";
    case Mixer::kLatentAttention: return "mla";
    case Mixer::kSoftmaxAttention: return "attention";
    case Mixer::kLinearAttention: return "linear attention";
    case Mixer::kDeltaNet: return "deltanet";
    case Mixer::kGatedDeltaNet: return "gated deltanet";
  }
  return "?";
}

std::string_view ffn_name(Ffn ffn) noexcept { return ffn == Ffn::kDense ? "dense" : "moe"; }
std::string_view residual_name(Residual r) noexcept { return r == Residual::kSum ? "sum" : "block attention"; }

std::string to_string(const ModelConfig& c) {
  std::string out = fmt::format("{}: {} layers, hidden {}, vocabulary {}, up to {} positions{}\n", family_name(c.family), c.num_layers(),
                                c.hidden_size, c.vocab_size, c.max_position_embeddings, c.has_vision ? ", vision tower" : "");
  const auto line = [&](const std::string& text) { out += text + '\n'; };
  if (has_mixer(c, Mixer::kKimiDeltaAttention)) line(kda_line(c.kda));
  if (has_mixer(c, Mixer::kLatentAttention)) line(mla_line(c.mla));
  if (has_mixer(c, Mixer::kSoftmaxAttention)) line(attention_line(c.attention));
  for (const Mixer mixer : {Mixer::kLinearAttention, Mixer::kDeltaNet, Mixer::kGatedDeltaNet}) {
    if (has_mixer(c, mixer)) line(page_line(mixer_name(mixer), c.page));
  }
  std::string ffn;
  if (c.mlp.intermediate_size > 0) ffn = fmt::format("dense: {}", c.mlp.intermediate_size);
  if (c.moe.num_experts > 0) {
    ffn += fmt::format("{}moe: {} of {} experts of {}x{}, {} shared", ffn.empty() ? "" : "; ", c.moe.experts_per_token, c.moe.num_experts,
                       c.expert_width(), c.moe.intermediate_size, c.moe.num_shared_experts);
  }
  line(ffn);
  for (std::size_t begin = 0, end = 0; begin < c.layers.size(); begin = end) {
    while (end < c.layers.size() && c.layers[end] == c.layers[begin]) ++end;
    const std::string range = end - begin == 1 ? fmt::format("layer {}", begin) : fmt::format("layers {}-{}", begin, end - 1);
    line(fmt::format("{}: {}, {}, residual {}", range, mixer_name(c.layers[begin].mixer), ffn_name(c.layers[begin].ffn),
                     residual_name(c.layers[begin].residual)));
  }
  return out;
}

}  // namespace palimpsest
