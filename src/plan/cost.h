#pragma once

#include "palimpsest/dtype.h"
#include "model/weight_upload.h"
#include "palimpsest/model.h"

namespace palimpsest {

/// What a model must move and multiply, from its shapes: the floors that measured speeds are
/// compared with.
struct DecodeCost {
  std::int64_t weights = 0;  ///< bytes of all matrices one token reads: everything but the
                             ///< embedding table and the experts not chosen
  std::int64_t experts = 0;  ///< those of the chosen routed experts; part of weights
  std::int64_t states = 0;   ///< pages and tails, read and written
  std::int64_t lists = 0;    ///< cached rows read at the given context
  std::int64_t total() const { return weights + states + lists; }
};

/// Bytes that decoding one token of one sequence must touch after `context` tokens, with lists of
/// this type (state_spec).
DecodeCost decode_cost(const Model& model, std::int64_t context, DType list_type);

/// Bytes that one pass of `rows` rows over `sequences` sequences must touch: the weights once, the states and lists of each sequence, and of
/// the routed experts of every layer as many as so many rows are expected to choose if each choice were equally likely.
double pass_bytes(const DecodeCost& one, const MoeConfig& moe, std::int64_t rows,
                  std::int64_t sequences);

/// Bytes of weights that a pass of `rows` rows brings from the host to a device: dense ones of layers that stay with the host, and of experts that do
/// all, or as many as are expected to be chosen where these are fetched alone (WeightStream). Where the host computes steps' experts, it reads those
/// of a step itself.
struct BusBytes {
  double dense = 0, experts = 0;
  double total() const { return dense + experts; }
};
BusBytes bus_bytes(const WeightSizes& sizes, const WeightOffload& offload, const MoeConfig& moe, std::int64_t rows);
/// What plans assume that the bus to a device carries, in bytes a second: PCIe 5.0 x16 has 63e9 less what packets cost. Not measured.
inline constexpr double kBusBandwidth = 50e9;

/// Floating-point operations (a multiply-add counts two) of a prefill of `tokens` tokens from an
/// empty state, logits of the last row only: matrix products, the recurrence at its minimum of 6 K
/// V a token and head, causal attention with keys and values computed once.
double prefill_flops(const ModelConfig& config, std::int64_t tokens);

}  // namespace palimpsest
