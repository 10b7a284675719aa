#pragma once

#include "kernels/op_args.h"

/// The naive references of kernels/ref on the device, one thread an output row: the truth where the data already lie there.
/// Every tensor of the arguments lies in device memory. `scalar` is the type of the computation, kF32 or kF64. Each call waits until the
/// device is done. Errors: kUnsupported without CUDA, kInternal with the runtime's text for what the device refused.
namespace palimpsest::cuda {

void ref_matmul(const MatmulArgs& args, DType scalar);
void ref_rms_norm(const RmsNormArgs& args, DType scalar);
void ref_page_memory(const PageMemoryArgs& args, DType scalar);
/// `max_length` is the longest list of the batch, this batch included.
void ref_latent_attention(const LatentAttentionArgs& args, std::int64_t max_length, DType scalar);

}  // namespace palimpsest::cuda
