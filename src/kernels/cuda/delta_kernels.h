#pragma once

#include "kernels/delta_args.h"

/// Fused kernels of the page memories for Hopper (sm_90a). Every tensor lies in device memory. They are put on `stream` (a cudaStream_t) and
/// return at once; they allocate nothing, read no device memory on the host, and may be captured into a CUDA graph.
namespace palimpsest::cuda {

/// `max_rows`: no sequence has more rows than this (more are computed, too, only with less prepared at a time). K 64, 128 or 256; V a
/// multiple of 32 up to 256; pages aligned to 16 bytes. Bits do not depend on the other sequences of the batch.
/// Errors: kUnsupported and kInternal, naming field and numbers, before anything is launched.
void delta_step(const DeltaStepArgs& args, std::int64_t max_rows, void* stream);

/// One launch, with `one_row_each` (as many rows as sequences), else four. Bits of a row depend on its sequence alone.
void delta_prepare(const DeltaPrepareArgs& args, bool one_row_each, void* stream);

struct DeltaWorkspace {
  std::int64_t least = 0;  ///< bytes without which nothing runs
  std::int64_t all = 0;    ///< bytes from which on more does not help
};
/// Depends on the gate and on the sizes of q, v and slots.
DeltaWorkspace delta_prefill_workspace(const DeltaPrefillArgs& args);

/// Any gate, any number of rows; shapes and types as delta_step. Fast for K = V = 128, BF16 inputs in rows of 8-byte vectors (16 is faster), o at a
/// multiple of 16 bytes; others are walked token by token. The workspace holds states of segments for a gate a channel that is bounded (kBounded, a
/// bound in [-5, 0)) with up to 48 value heads, and factors of chunks if they are few, nothing for more or token by token; else factors of chunks, in passes over as many as fit (with a gate a
/// head or none and up to 16 value heads all must fit). Bits do not depend on batch mates, on later tokens, or on its size.
void delta_prefill(const DeltaPrefillArgs& args, void* stream);

/// The truth, in double: pages, snapshots and o are F64. Waits until it is done.
void ref_delta_step(const DeltaStepArgs& args);

}  // namespace palimpsest::cuda
