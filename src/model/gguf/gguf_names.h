#pragma once

#include <string>
#include <vector>

#include "model/weight_spec.h"

namespace palimpsest {

/// The weights of a model in the form in which GGUF files store them: as weight_spec(), but
///   - matrices are [out, in] throughout, and norm weights have their one added;
///   - Gated DeltaNet's q, k, v and gates are two tensors, q | k | v and gates, instead of one that interleaves them;
///   - norm and projection of an Attention Residual are one vector, their product, under the role of the norm.
/// Still one entry per expert, though the experts of a layer share a tensor.
std::vector<WeightSpec> gguf_weight_spec(const ModelConfig& config);

/// The tensor that holds a weight of gguf_weight_spec: "blk.3.attn_q_a.weight". All experts of a layer have the same.
std::string gguf_name(const ModelConfig& config, const WeightSpec& spec);

/// A tensor beside it: gguf_layer_name(3, "attn_k_b.weight").
std::string gguf_layer_name(std::int32_t layer, std::string_view leaf);

/// How llama.cpp orders the rows of rotated projections in files of the llama architecture: channels i and i + half of a head, which rotate
/// together, lie side by side. Row r of a projection, whose heads have head_dim rows, is row llama_rope_row(r, head_dim) of its tensor.
std::int64_t llama_rope_row(std::int64_t row, std::int64_t head_dim);
/// Whether a weight's rows are in that order.
bool has_rope_rows(const ModelConfig& config, WeightRole role);

}  // namespace palimpsest
