#pragma once

#include <cuda_runtime.h>

#include "kernels/delta_args.h"

// The forms of delta_prefill, each compiled by itself. Arguments have been checked.
namespace palimpsest::cuda {

/// A gate a channel, bounded by -5 nats or above.
inline bool is_fused(const DeltaInputs& in) { return in.gate == DeltaGate::kBounded && in.lower_bound >= -5 && in.lower_bound < 0 && in.f.rank == 3; }

/// Of those: in segments. Two sequences of more heads fill the device, and segments would not pay; by the number of heads alone, since the batch
/// must not matter. Snapshots are made by this form only.
inline bool has_few_heads(const DeltaPrefillArgs& args) { return args.in.v.sizes[1] <= 48; }
inline bool is_segmented(const DeltaPrefillArgs& args) { return has_few_heads(args) || args.snapshots.defined(); }
std::int64_t segmented_workspace(const DeltaPrefillArgs& args);
void prefill_segmented(const DeltaPrefillArgs& args, cudaStream_t stream);

/// A gate a head, or none. No workspace.
inline bool is_scalar(const DeltaInputs& in) { return in.gate == DeltaGate::kNone || in.f.rank == 2; }
void prefill_scalar(const DeltaPrefillArgs& args, cudaStream_t stream);

/// Rows and heads that begin at multiples of 16 bytes.
inline bool in_wide_rows(const Tensor& t) { return reinterpret_cast<std::uintptr_t>(t.data) % 16 == 0 && t.strides[0] % 8 == 0 && t.strides[1] % 8 == 0; }

}  // namespace palimpsest::cuda
