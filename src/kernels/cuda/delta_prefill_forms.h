#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/delta_kernels.h"
#include "kernels/delta_args.h"

// The forms of delta_prefill, each compiled by itself. Arguments have been checked.
namespace palimpsest::cuda {

/// Rows and heads that begin at multiples of `bytes`.
inline bool in_rows_of(const Tensor& t, std::int64_t bytes) {
  return reinterpret_cast<std::uintptr_t>(t.data) % static_cast<std::uintptr_t>(bytes) == 0 && t.strides[0] * 2 % bytes == 0 && (t.rank < 3 || t.strides[1] * 2 % bytes == 0);
}
inline bool in_wide_rows(const Tensor& t) { return in_rows_of(t, 16); }

/// What the forms in chunks take; everything else is walked token by token.
inline bool is_chunked(const DeltaPrefillArgs& a) {
  const DeltaInputs& in = a.in;
  return in.q.sizes[2] == 128 && in.v.sizes[2] == 128 && in.q.dtype == DType::kBF16 && in_rows_of(in.q, 8) && in_rows_of(in.k, 8) && in_rows_of(in.v, 8) &&
         (in.gate == DeltaGate::kNone || in.f.rank != 3 || in_rows_of(in.f, 8)) && a.o.dtype != DType::kF16 && reinterpret_cast<std::uintptr_t>(a.o.data) % 16 == 0;
}
/// Ids of all chunks of 64 tokens: see first_chunk.
inline std::int64_t chunk_ids(std::int64_t rows, std::int64_t sequences) { return rows / 64 + 2 * sequences; }
void prefill_in_steps(const DeltaPrefillArgs& args, cudaStream_t stream);

/// A gate a channel, bounded by -5 nats or above.
inline bool is_fused(const DeltaInputs& in) { return in.gate == DeltaGate::kBounded && in.lower_bound >= -5 && in.lower_bound < 0 && in.f.rank == 3; }
DeltaWorkspace fused_workspace(std::int64_t rows, std::int64_t sequences, std::int64_t value_heads);
void prefill_fused(const DeltaPrefillArgs& args, cudaStream_t stream);

/// A gate a head, or none.
inline bool is_scalar(const DeltaInputs& in) { return in.gate == DeltaGate::kNone || in.f.rank == 2; }
DeltaWorkspace scalar_workspace(const DeltaPrefillArgs& args);
void prefill_scalar(const DeltaPrefillArgs& args, cudaStream_t stream);

}  // namespace palimpsest::cuda
