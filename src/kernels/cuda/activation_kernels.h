#pragma once

#include "kernels/op_args.h"

/// The ops of op_args.h that are bounded by memory, on the device (sm_90a). Activations are all BF16 or all F32, weights F32; sums are F32. Every
/// tensor lies in device memory. Kernels are put on `stream` (a cudaStream_t) and return at once; they allocate nothing, read no device memory on the
/// host, and may be captured into a CUDA graph. Bits of a row do not depend on the other rows of the batch.
/// Errors: kUnsupported and kInternal, naming field and numbers, before anything is launched.
namespace palimpsest::cuda {

/// Heads of 64, 128 or 256, contiguous, at multiples of 16 bytes.
void gated_rms_norm(const GatedRmsNormArgs& args, void* stream);

/// Two to eight taps. A sequence with slot -1 has no past and leaves no tail.
void short_conv(const ShortConvArgs& args, void* stream);

/// Up to 16 sources. Fastest for BF16 with up to ten sources that fit shared memory together (10 of 7168 do).
void attention_residual(const AttentionResidualArgs& args, void* stream);

/// The truth in double: y (and tails, p) are F64. Waits until it is done.
void ref_gated_rms_norm(const GatedRmsNormArgs& args);
void ref_short_conv(const ShortConvArgs& args);
void ref_attention_residual(const AttentionResidualArgs& args);

}  // namespace palimpsest::cuda
