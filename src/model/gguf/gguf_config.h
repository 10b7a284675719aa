#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "formats/gguf.h"
#include "palimpsest/model_config.h"

// The configuration of a model from the metadata of a GGUF file. Keys are those of llama.cpp's converters.

namespace palimpsest {

/// What a configuration depends on besides metadata: which optional tensors a file has.
struct GgufFacts {
  std::int64_t embedding_rows = 0;  ///< of token_embd.weight; 0: no such tensor
  bool has_output = false;          ///< a head of its own; else it is tied to the embedding
  bool has_routed_norm = false;     ///< K3: RMSNorm behind the experts
  bool has_latent_gate = false;     ///< K3: the output gate of latent attention
  std::vector<float> rope_factors;  ///< rope_freqs.weight: what each rotary frequency is divided by; empty: nothing
};

/// kInvalidFile for a rope_freqs.weight that holds anything but positive F32 values in one dimension.
GgufFacts gguf_facts(const formats::Gguf& file);

/// The same ModelConfig that the model's config.json gives: the metadata are spelt as one and go through the same reader, so every check
/// is made once, in one place. Throws Error that names file and key: kInvalidFile for missing keys, wrong types, numbers out of range or
/// contradicting each other; kUnsupported for other architectures (the text lists those that are known) and variants.
ModelConfig parse_gguf_config(const formats::GgufMetadata& metadata, const GgufFacts& facts);

ModelConfig load_gguf_config(const formats::Gguf& file);

/// "llama, gpt2, ..."
std::string supported_gguf_architectures();

/// The architecture that llama.cpp's converters write for a family; empty when there is none.
std::string_view gguf_architecture(Family family);

}  // namespace palimpsest
