#pragma once

#include "kernels/delta_args.h"

/// Fused kernels of the page memories for Hopper (sm_90a). Every tensor lies in device memory. They are put on `stream` (a cudaStream_t) and
/// return at once; they allocate nothing, read no device memory on the host, and may be captured into a CUDA graph.
namespace palimpsest::cuda {

/// `max_rows`: no sequence has more rows than this (more are computed, too, only with less prepared at a time). K 64, 128 or 256; V a
/// multiple of 32 up to 256; pages aligned to 16 bytes. Bits do not depend on the other sequences of the batch.
/// Errors: kUnsupported and kInternal, naming field and numbers, before anything is launched.
void delta_step(const DeltaStepArgs& args, std::int64_t max_rows, void* stream);

struct DeltaWorkspace {
  std::int64_t least = 0;  ///< bytes without which nothing runs
  std::int64_t all = 0;    ///< bytes from which on more does not help: all chunks prepared at once
};
DeltaWorkspace delta_prefill_workspace(std::int64_t rows, std::int64_t sequences, std::int64_t value_heads);

/// K = V = 128, BF16 inputs in rows of 8-byte vectors (16 is faster), o at a multiple of 16 bytes; any gate, any number of rows. A gate a
/// channel of kind kBounded with a bound in [-5, 0) takes one kernel, which needs no workspace; others work in passes over as many chunks as
/// the workspace holds. Bits do not depend on batch mates, on later tokens, or on the size of the workspace.
void delta_prefill(const DeltaPrefillArgs& args, void* stream);

/// The truth, in double: pages, snapshots and o are F64. Waits until it is done.
void ref_delta_step(const DeltaStepArgs& args);

}  // namespace palimpsest::cuda
