// A build without a CUDA toolkit: no device, and functions that say so.

#include "kernels/cuda/activation_kernels.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/delta_kernels.h"
#include "kernels/cuda/device_memory.h"
#include "kernels/cuda/devices.h"
#include "kernels/cuda/latent_kernels.h"
#include "palimpsest/error.h"

namespace palimpsest::cuda {
namespace {
constexpr const char* kReason = "this build holds no CUDA code";
[[noreturn]] void unsupported() { throw Error(ErrorCode::kUnsupported, kReason); }
}  // namespace

DeviceList query_devices() { return {{}, kReason}; }

DeviceMemory::DeviceMemory(std::int64_t) { unsupported(); }
DeviceMemory::~DeviceMemory() = default;
void DeviceMemory::copy_from_host(const void*, std::int64_t) { unsupported(); }
void DeviceMemory::copy_to_host(void*, std::int64_t) const { unsupported(); }

void ref_matmul(const MatmulArgs&, DType) { unsupported(); }
void ref_rms_norm(const RmsNormArgs&, DType) { unsupported(); }
void ref_page_memory(const PageMemoryArgs&, DType) { unsupported(); }
void ref_latent_attention(const LatentAttentionArgs&, std::int64_t, DType) { unsupported(); }

void delta_step(const DeltaStepArgs&, std::int64_t, void*) { unsupported(); }
DeltaWorkspace delta_prefill_workspace(std::int64_t, std::int64_t, std::int64_t) { unsupported(); }
void delta_prefill(const DeltaPrefillArgs&, void*) { unsupported(); }
void ref_delta_step(const DeltaStepArgs&) { unsupported(); }

void latent_decode(const LatentDecodeArgs&, std::int64_t, void*) { unsupported(); }
void latent_prefill(const LatentPrefillArgs&, void*) { unsupported(); }
void ref_latent_decode(const LatentDecodeArgs&, std::int64_t) { unsupported(); }
void ref_latent_prefill(const LatentPrefillArgs&, std::int64_t, std::int64_t) { unsupported(); }

void gated_rms_norm(const GatedRmsNormArgs&, void*) { unsupported(); }
void short_conv(const ShortConvArgs&, void*) { unsupported(); }
void attention_residual(const AttentionResidualArgs&, void*) { unsupported(); }
void ref_gated_rms_norm(const GatedRmsNormArgs&) { unsupported(); }
void ref_short_conv(const ShortConvArgs&) { unsupported(); }
void ref_attention_residual(const AttentionResidualArgs&) { unsupported(); }

}  // namespace palimpsest::cuda
