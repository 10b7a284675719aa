#include <algorithm>

#include "kernels/cuda/activation_kernels.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/sm90/activations.cuh"
#include "kernels/cuda/activation_checks.h"

namespace palimpsest::cuda {
namespace {

unsigned blocks(std::int64_t work, std::int64_t per_block) { return static_cast<unsigned>((work + per_block - 1) / per_block); }

template <class T, int kLanes>
void launch_norm(const GatedRmsNormArgs& a, cudaStream_t stream) {
  const std::int64_t rows = a.x.sizes[0] * a.x.sizes[1];
  sm90::gated_rms_norm<T, kLanes><<<blocks(rows, 256 / kLanes * sm90::kNormRows), 256, 0, stream>>>(
      a.x.as<const T>(), a.gate.as<const T>(), a.weight.as<const float>(), a.y.as<T>(), rows, a.eps, a.function);
}
template <class T>
void choose_norm(const GatedRmsNormArgs& a, cudaStream_t stream) {
  switch (a.x.sizes[2]) {
    case 64: return launch_norm<T, 8>(a, stream);
    case 128: return launch_norm<T, 16>(a, stream);
    default: return launch_norm<T, 32>(a, stream);
  }
}

template <class T, int kCount, int kTaps>
void launch_conv(const ShortConvArgs& a, cudaStream_t stream) {
  const std::int64_t channels = a.x.sizes[1], sequences = a.rows.slots.sizes[0];
  const unsigned across = blocks(channels, 128 * kCount);
  int run = 64;  // fewer where there would be too few blocks to fill the device
  while (run > 16 && across * blocks(a.x.sizes[0], run) < 8 * 132) run /= 2;
  const sm90::ConvShape s{a.x.sizes[0], channels, sequences, a.weight.sizes[1], a.x.strides[0], a.tails.strides[0], run};
  sm90::short_conv<T, kCount, kTaps><<<dim3(across, blocks(s.rows, run)), 128, 0, stream>>>(
      a.x.as<const T>(), a.weight.as<const float>(), a.tails.as<const T>(), a.rows.cu_seqlens, a.rows.slots, a.y.as<T>(), s, a.silu);
  check(cudaGetLastError(), "short_conv");
  sm90::move_tails<T, kCount><<<dim3(across, static_cast<unsigned>(sequences)), 128, 0, stream>>>(a.x.as<const T>(), a.tails.as<T>(), a.rows.cu_seqlens, a.rows.slots, s);
}
template <class T, int kCount>
void choose_taps(const ShortConvArgs& a, cudaStream_t stream) {
  if (a.weight.sizes[1] <= 4 && reinterpret_cast<std::uintptr_t>(a.weight.data) % 16 == 0) launch_conv<T, kCount, 4>(a, stream);
  else launch_conv<T, kCount, 8>(a, stream);
}
/// All rows of x, y and the tails in pieces of 16 bytes.
bool in_pieces(const ShortConvArgs& a, std::int64_t count) {
  bool fits = a.x.sizes[1] % count == 0 && a.x.strides[0] % count == 0 && a.tails.strides[0] % count == 0;
  for (const Tensor* t : {&a.x, &a.y, &a.tails}) fits = fits && reinterpret_cast<std::uintptr_t>(t->data) % 16 == 0;
  return fits;
}
template <class T>
void choose_pieces(const ShortConvArgs& a, cudaStream_t stream) {
  constexpr int kPiece = 16 / sizeof(T);
  if (in_pieces(a, kPiece)) choose_taps<T, kPiece>(a, stream);
  else choose_taps<T, 1>(a, stream);
}

sm90::ResidualShape residual_shape(const AttentionResidualArgs& a) {
  return {a.sources.sizes[0], a.sources.sizes[1], a.sources.sizes[2], a.sources.strides[0], a.sources.strides[1], a.eps};
}
constexpr std::int64_t kResidualSources = 10, kResidualBytes = 220 * 1024;
constexpr std::int64_t kFewSources = 2, kFewBytes = 110 * 1024;  ///< two blocks a multiprocessor

/// What the kernel with all sources of a token in registers takes.
bool in_registers(const AttentionResidualArgs& a) {
  const std::int64_t width = a.sources.sizes[2];
  bool fits = a.sources.dtype == DType::kBF16 && a.sources.sizes[0] <= kResidualSources && width % 8 == 0 && width <= 2 * 8 * sm90::kResidualThreads;
  fits = fits && a.sources.sizes[0] * width * 2 + width * 4 <= kResidualBytes && a.sources.strides[0] % 8 == 0 && a.sources.strides[1] % 8 == 0;
  return fits && reinterpret_cast<std::uintptr_t>(a.w.data) % 16 == 0 && reinterpret_cast<std::uintptr_t>(a.sources.data) % 16 == 0 && reinterpret_cast<std::uintptr_t>(a.y.data) % 16 == 0;
}

void launch_residual(const AttentionResidualArgs& a, cudaStream_t stream) {
  const sm90::ResidualShape s = residual_shape(a);
  float* const p = a.p.defined() ? a.p.as<float>() : nullptr;
  if (!in_registers(a)) {
    const auto rows = static_cast<unsigned>(s.rows);
    if (a.sources.dtype == DType::kBF16) {
      sm90::attention_residual_plain<<<rows, 256, 0, stream>>>(a.sources.as<const __nv_bfloat16>(), a.w.as<const float>(), a.y.as<__nv_bfloat16>(), p, s);
    } else {
      sm90::attention_residual_plain<<<rows, 256, 0, stream>>>(a.sources.as<const float>(), a.w.as<const float>(), a.y.as<float>(), p, s);
    }
    return;
  }
  constexpr const char* kName = "attention_residual";
  const bool narrow = s.width <= 8 * sm90::kResidualThreads, few = s.sources <= kFewSources && s.sources * s.width * 2 + s.width * 4 <= kFewBytes;
  const auto kernel = few ? (narrow ? sm90::attention_residual<kFewSources, 1> : sm90::attention_residual<kFewSources, 2>)
                          : (narrow ? sm90::attention_residual<kResidualSources, 1> : sm90::attention_residual<kResidualSources, 2>);
  int device = 0, processors = 0;
  check(cudaGetDevice(&device), kName);
  check(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device), kName);
  const std::int64_t token_bytes = s.sources * s.width * 2;
  const int stages = static_cast<int>(std::min<std::int64_t>(sm90::kResidualStages, ((few ? kFewBytes : kResidualBytes) - s.width * 4) / token_bytes));
  const int bytes = static_cast<int>(stages * token_bytes + s.width * 4);
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), kName);
  kernel<<<static_cast<unsigned>(std::min<std::int64_t>(s.rows, processors * (few ? 2 : 1))), sm90::kResidualThreads, bytes, stream>>>(
      a.sources.as<const __nv_bfloat16>(), a.w.as<const float>(), a.y.as<__nv_bfloat16>(), p, s, stages);
}

}  // namespace

void gated_rms_norm(const GatedRmsNormArgs& args, void* stream) {
  check_gated_rms_norm(args);
  if (args.x.numel() == 0) return;
  if (args.x.dtype == DType::kBF16) choose_norm<__nv_bfloat16>(args, static_cast<cudaStream_t>(stream));
  else choose_norm<float>(args, static_cast<cudaStream_t>(stream));
  check(cudaGetLastError(), "gated_rms_norm");
}

void short_conv(const ShortConvArgs& args, void* stream) {
  check_short_conv(args);
  if (args.x.numel() == 0 || args.rows.slots.sizes[0] == 0) return;
  if (args.x.dtype == DType::kBF16) choose_pieces<__nv_bfloat16>(args, static_cast<cudaStream_t>(stream));
  else choose_pieces<float>(args, static_cast<cudaStream_t>(stream));
  check(cudaGetLastError(), "short_conv");
}

void attention_residual(const AttentionResidualArgs& args, void* stream) {
  check_attention_residual(args);
  if (args.y.numel() == 0) return;
  launch_residual(args, static_cast<cudaStream_t>(stream));
  check(cudaGetLastError(), "attention_residual");
}

}  // namespace palimpsest::cuda
