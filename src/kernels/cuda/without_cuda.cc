// A build without a CUDA toolkit: no device, and functions that say so.

#include <string>

#include "kernels/add_norm_args.h"
#include "kernels/cuda/activation_kernels.h"
#include "kernels/cuda/copy_queue.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/delta_kernels.h"
#include "kernels/cuda/device_memory.h"
#include "kernels/cuda/devices.h"
#include "kernels/cuda/graph.h"
#include "kernels/cuda/latent_kernels.h"
#include "kernels/cuda/plain_kernels.h"
#include "kernels/cuda/plain_vision_kernels.h"
#include "kernels/cuda/prompt_kernels.h"
#include "kernels/cuda/tile_kernels.h"
#include "kernels/one_row_args.h"
#include "kernels/logit_args.h"
#include "palimpsest/error.h"

namespace palimpsest::cuda {
namespace {
constexpr const char* kReason = "this build holds no CUDA code";
[[noreturn]] void unsupported() { throw Error(ErrorCode::kUnsupported, kReason); }
}  // namespace

DeviceList query_devices() { return {{}, kReason}; }

Device& cuda_device() { throw Error(ErrorCode::kUnsupported, std::string("no CUDA device: ") + kReason); }

std::unique_ptr<CopyQueue> copy_queue(Device&) { unsupported(); }

DeviceMemory::DeviceMemory(std::int64_t) { unsupported(); }
DeviceMemory::~DeviceMemory() = default;
void DeviceMemory::copy_from_host(const void*, std::int64_t) { unsupported(); }
void DeviceMemory::copy_to_host(void*, std::int64_t) const { unsupported(); }

void delta_prepare(const DeltaPrepareArgs&, bool, void*) { unsupported(); }
void delta_prepare(const DeltaPrepareArgs&, const Tensor&, const PromptInputs&, void*) { unsupported(); }
bool takes_kda_step(const KdaStepArgs&) { return false; }
void kda_step(const KdaStepArgs&, void*) { unsupported(); }
bool takes_kda_step_from(const KdaStepArgs&, const MatmulArgs&, const MatmulArgs&) { return false; }
void kda_step_from(const KdaStepArgs&, const MatmulArgs&, const MatmulArgs&, int, void*) { unsupported(); }
bool takes_gated_product(const GatedProductArgs&, int) { return false; }
void gated_product(const GatedProductArgs&, int, void*) { unsupported(); }
bool takes_router_beside(const RouterArgs&, const GatedProductArgs&, int) { return false; }
void router_beside(const RouterArgs&, const GatedProductArgs&, int, void*) { unsupported(); }
void delta_step(const DeltaStepArgs&, std::int64_t, void*) { unsupported(); }
DeltaWorkspace delta_prefill_workspace(const DeltaPrefillArgs&) { unsupported(); }
void delta_prefill(const DeltaPrefillArgs&, void*) { unsupported(); }
void ref_delta_step(const DeltaStepArgs&) { unsupported(); }

void row_places(const RaggedRows&, const Tensor&, const Tensor&, const Tensor&, void*) { unsupported(); }
void latent_decode(const LatentDecodeArgs&, std::int64_t, void*) { unsupported(); }
void latent_prefill(const LatentPrefillArgs&, void*) { unsupported(); }
void ref_latent_decode(const LatentDecodeArgs&, std::int64_t) { unsupported(); }
void ref_latent_prefill(const LatentPrefillArgs&, std::int64_t, std::int64_t) { unsupported(); }

void split_prompts(const RaggedRows&, const Tensor&, const PromptRule&, const PromptSplit&, void*) { unsupported(); }
void round_to_bf16(std::span<const Rounding>, void*) { unsupported(); }
void latent_window(const LatentWindowArgs&, void*) { unsupported(); }

void gated_rms_norm(const GatedRmsNormArgs&, void*) { unsupported(); }
void short_conv(const ShortConvArgs&, void*) { unsupported(); }
void attention_residual(const AttentionResidualArgs&, void*) { unsupported(); }
void ref_gated_rms_norm(const GatedRmsNormArgs&) { unsupported(); }
void ref_short_conv(const ShortConvArgs&) { unsupported(); }
void ref_attention_residual(const AttentionResidualArgs&) { unsupported(); }

void begin_recording() { unsupported(); }
void* recording_stream() { return nullptr; }
void* end_recording(bool) { unsupported(); }
void play_recording(void*, void*) { unsupported(); }
void forget_recording(void*) noexcept {}

void keep_logits(const KeepLogitsArgs&, void*) { unsupported(); }

bool tiles_take(const Matrix&) { unsupported(); }
bool tile_side_by_side(std::span<const MatmulArgs>) { unsupported(); }
bool tile_rounds(const MatmulArgs&) { unsupported(); }
void tile_matmul(std::span<const MatmulArgs>, int, void*, void*, const void*) { unsupported(); }

namespace plain {

void embedding(const EmbeddingArgs&, void*) { unsupported(); }
void matmul(const MatmulArgs&, void*, bool) { unsupported(); }
void rms_norm(const RmsNormArgs&, void*) { unsupported(); }
bool add_rms_norm(const AddRmsNormArgs&, void*) { unsupported(); }
void gated_rms_norm(const GatedRmsNormArgs&, void*) { unsupported(); }
void l2_norm(const L2NormArgs&, void*) { unsupported(); }
void short_conv(const ShortConvArgs&, void*) { unsupported(); }
void decay_gate(const DecayGateArgs&, void*) { unsupported(); }
void page_memory(const PageMemoryArgs&, void*) { unsupported(); }
void latent_append(const LatentAppendArgs&, void*) { unsupported(); }
void latent_attention(const LatentAttentionArgs&, void*) { unsupported(); }
void glu(const GluArgs&, void*) { unsupported(); }
void multiply_sigmoid(const MultiplySigmoidArgs&, void*) { unsupported(); }
void add(const AddArgs&, void*) { unsupported(); }
void multiply(const MultiplyArgs&, void*) { unsupported(); }
void add_bias(const AddBiasArgs&, void*) { unsupported(); }
void scale(const ScaleArgs&, void*) { unsupported(); }
void unary(const UnaryArgs&, void*) { unsupported(); }
void layer_norm(const LayerNormArgs&, void*) { unsupported(); }
void positions(const PositionsArgs&, void*) { unsupported(); }
void rotary_table(const RotaryTableArgs&, void*) { unsupported(); }
void rotary(const RotaryArgs&, void*) { unsupported(); }
void divide_rows(const DivideRowsArgs&, void*) { unsupported(); }
void append_one(const AppendOneArgs&, void*) { unsupported(); }
void features(const FeaturesArgs&, void*) { unsupported(); }
void softmax_attention(const SoftmaxAttentionArgs&, void*) { unsupported(); }
void attention_residual(const AttentionResidualArgs&, void*) { unsupported(); }
void router(const RouterArgs&, void*) { unsupported(); }
void patch_positions(const PatchPositionsArgs&, void*) { unsupported(); }
void patch_turns(const PatchTurnsArgs&, void*) { unsupported(); }
void patch_rotary(const PatchRotaryArgs&, void*) { unsupported(); }
void patch_attention(const PatchAttentionArgs&, void*) { unsupported(); }
void gelu_erf(const GeluErfArgs&, void*) { unsupported(); }
void patch_merge(const PatchMergeArgs&, void*) { unsupported(); }
void make_expert_table(const ExpertMatrices*, std::int64_t, void*) { unsupported(); }
void experts(const ExpertsArgs&, std::int64_t, int, void*, void*, int) { unsupported(); }
void experts_and(const ExpertsArgs&, const Tensor&, std::int64_t, int, void*, void*, int) { unsupported(); }
void random_fill(const RandomFill&, std::int64_t, std::int64_t, void*, void*) { unsupported(); }

}  // namespace plain

}  // namespace palimpsest::cuda
