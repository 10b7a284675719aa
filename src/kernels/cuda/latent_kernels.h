#pragma once

#include "kernels/latent_args.h"

/// Latent attention (MLA) for Hopper (sm_90a), latent 512 + 64, heads of 128 + 64 and 128. Every tensor lies in device memory. Kernels are put on
/// `stream` (a cudaStream_t) and return at once; they allocate nothing, read no device memory on the host, and may be captured into a CUDA graph.
/// Bits of a row do not depend on the other rows of the batch.
/// Errors: kUnsupported and kInternal, naming field and numbers, before anything is launched.
namespace palimpsest::cuda {

/// Bytes for lists of at most `max_length` rows, this batch included.
std::int64_t latent_decode_workspace(std::int64_t rows, std::int64_t heads, std::int64_t max_length);

/// Up to 128 heads. No list is longer than `max_length`, this batch included.
void latent_decode(const LatentDecodeArgs& args, std::int64_t max_length, void* stream);

/// The slot (I32 [R]) and the position (I64 [R]) of every row: rows as sequences of one row.
void row_places(const RaggedRows& rows, const Tensor& past, const Tensor& slots, const Tensor& positions, void* stream);

/// Any number of heads and rows.
void latent_prefill(const LatentPrefillArgs& args, void* stream);

/// The truth in double on the device; o is F64. Waits until it is done. Of latent_prefill only every `step`-th row of each head is computed.
void ref_latent_decode(const LatentDecodeArgs& args, std::int64_t max_length);
void ref_latent_prefill(const LatentPrefillArgs& args, std::int64_t max_keys, std::int64_t step);

}  // namespace palimpsest::cuda
