// What works on one row at a time: norms, sums, feature maps, attention over depth. A block a row; sums run over lanes, then warps.

#include "kernels/add_norm_args.h"
#include "kernels/cuda/plain/functions.cuh"
#include "kernels/cuda/plain/launch.cuh"
#include "kernels/cuda/plain_kernels.h"
#include "kernels/cuda/sm90/hopper.cuh"

namespace palimpsest::cuda::plain {
namespace {

__device__ float weight_at(const Tensor& w, std::int64_t c) { return w.dtype == DType::kF32 ? as<const float>(w)[c] : bf16_to_float(as<const std::uint16_t>(w)[c]); }

/// The sum of f(c) over the columns of the block's row.
template <class F>
__device__ float row_sum(std::int64_t width, F f) {
  float sum = 0;
  for (std::int64_t c = threadIdx.x; c < width; c += blockDim.x) sum += f(c);
  return block_sum(sum);
}

struct RmsRow {
  RmsNormArgs a;
  __device__ void operator()(std::int64_t t) const {
    const std::int64_t width = a.x.sizes[1];
    const float* x = as<const float>(a.x) + t * a.x.strides[0];
    float* y = as<float>(a.y) + t * a.y.strides[0];
    const float inverse = 1 / sqrtf(row_sum(width, [&](std::int64_t c) { return x[c] * x[c]; }) / static_cast<float>(width) + a.eps);
    for (std::int64_t c = threadIdx.x; c < width; c += blockDim.x) y[c] = x[c] * inverse * weight_at(a.weight, c);
  }
};

/// The same for rows of whole vectors: a block of 512 reads a row once, up to 8192 numbers. kAdd: a.x += added before.
template <bool kAdd>
__global__ void __launch_bounds__(512) rms_vectors(RmsNormArgs a, const float4* added, const RowImage image) {
  constexpr int kEach = 4;
  __shared__ float parts[16];
  const std::int64_t t = blockIdx.x, vectors = a.x.sizes[1] / 4;
  auto* x = reinterpret_cast<float4*>(as<float>(a.x) + t * a.x.strides[0]);
  const auto* weight = as<const float4>(a.weight);
  float4 v[kEach], w[kEach], more[kEach];
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const std::int64_t c = threadIdx.x + i * 512;
    w[i] = c < vectors ? weight[c] : float4{};
  }
  if (kAdd) cudaTriggerProgrammaticLaunchCompletion();  // see EarlyLaunch
  cudaGridDependencySynchronize();
  if (!kAdd) cudaTriggerProgrammaticLaunchCompletion();
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const std::int64_t c = threadIdx.x + i * 512;
    v[i] = c < vectors ? x[c] : float4{};
    if constexpr (kAdd) more[i] = c < vectors ? added[t * vectors + c] : float4{};
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    if constexpr (kAdd) {
      v[i] = {v[i].x + more[i].x, v[i].y + more[i].y, v[i].z + more[i].z, v[i].w + more[i].w};
      if (const std::int64_t c = threadIdx.x + i * 512; c < vectors) x[c] = v[i];
    }
    sum = __fmaf_rn(v[i].x, v[i].x, __fmaf_rn(v[i].y, v[i].y, __fmaf_rn(v[i].z, v[i].z, __fmaf_rn(v[i].w, v[i].w, sum))));
  }
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = sum;
  __syncthreads();
  sum = 0;
#pragma unroll
  for (int i = 0; i < 16; ++i) sum += parts[i];
  const float inverse = 1 / sqrtf(sum / static_cast<float>(a.x.sizes[1]) + a.eps);
  auto* y = reinterpret_cast<float4*>(as<float>(a.y) + t * a.y.strides[0]);
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const auto c = static_cast<int>(threadIdx.x) + i * 512;
    if (c >= vectors) continue;
    const float4 out = {v[i].x * inverse * w[i].x, v[i].y * inverse * w[i].y, v[i].z * inverse * w[i].z, v[i].w * inverse * w[i].w};
    y[c] = out;
    if (kAdd && image.to) sm90::put_in_image<4>(image.to, image.parts, static_cast<int>(t), 4 * c, &out.x);
  }
}

struct GatedRow {
  GatedRmsNormArgs a;
  __device__ void operator()(std::int64_t row) const {
    const std::int64_t width = a.x.sizes[2];
    const float *x = as<const float>(a.x) + row * width, *gate = as<const float>(a.gate) + row * width;
    float* y = as<float>(a.y) + row * width;
    const float inverse = 1 / sqrtf(row_sum(width, [&](std::int64_t c) { return x[c] * x[c]; }) / static_cast<float>(width) + a.eps);
    for (std::int64_t c = threadIdx.x; c < width; c += blockDim.x)
      y[c] = x[c] * inverse * weight_at(a.weight, c) * apply(a.function, gate[c]);
  }
};

/// The same for rows of 128, a warp each: all that it reads is asked for at once.
__global__ void __launch_bounds__(256) gated_rows(GatedRmsNormArgs a, std::int64_t rows) {
  constexpr int kWidth = 128, kEach = kWidth / 32;
  cudaTriggerProgrammaticLaunchCompletion();
  const std::int64_t row = blockIdx.x * std::int64_t{8} + threadIdx.x / 32, at = row * kWidth + threadIdx.x % 32;
  if (row >= rows) return;
  float x[kEach], gate[kEach], sum = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) x[i] = as<const float>(a.x)[at + 32 * i], gate[i] = as<const float>(a.gate)[at + 32 * i];
#pragma unroll
  for (int i = 0; i < kEach; ++i) sum += x[i] * x[i];
  const float inverse = 1 / sqrtf(warp_sum(sum) / static_cast<float>(kWidth) + a.eps);
#pragma unroll
  for (int i = 0; i < kEach; ++i) as<float>(a.y)[at + 32 * i] = x[i] * inverse * weight_at(a.weight, threadIdx.x % 32 + 32 * i) * apply(a.function, gate[i]);
}

struct L2Row {
  L2NormArgs a;
  __device__ void operator()(std::int64_t row) const {
    const std::int64_t width = a.x.sizes[2];
    const float* x = as<const float>(a.x) + row * width;
    float* y = as<float>(a.y) + row * width;
    const float factor = a.scale / sqrtf(row_sum(width, [&](std::int64_t c) { return x[c] * x[c]; }) + a.eps);
    for (std::int64_t c = threadIdx.x; c < width; c += blockDim.x) y[c] = x[c] * factor;
  }
};

struct LayerNormRow {
  LayerNormArgs a;
  __device__ void operator()(std::int64_t row) const {
    const std::int64_t width = a.x.sizes[1];
    const float* x = as<const float>(a.x) + row * width;
    float* y = as<float>(a.y) + row * width;
    const auto n = static_cast<float>(width);
    const float mean = row_sum(width, [&](std::int64_t c) { return x[c]; }) / n;
    const float variance = row_sum(width, [&](std::int64_t c) { return (x[c] - mean) * (x[c] - mean); }) / n;
    const float inverse = 1 / sqrtf(variance + a.eps);
    for (std::int64_t c = threadIdx.x; c < width; c += blockDim.x) y[c] = (x[c] - mean) * inverse * as<const float>(a.weight)[c] + as<const float>(a.bias)[c];
  }
};

struct DivideRow {
  DivideRowsArgs a;
  __device__ void operator()(std::int64_t row) const {
    const std::int64_t width = a.x.sizes[1];
    const float* x = as<const float>(a.x) + row * a.x.strides[0];
    float* y = as<float>(a.y) + row * width;
    const float divisor = a.divisor.defined() ? as<const float>(a.divisor)[row * a.divisor.strides[0]] : row_sum(width, [&](std::int64_t c) { return x[c]; });
    for (std::int64_t c = threadIdx.x; c < width; c += blockDim.x) y[c] = x[c] / (divisor + a.eps);
  }
};

struct FeatureRow {
  FeaturesArgs a;
  __device__ void operator()(std::int64_t row) const {
    const std::int64_t width = a.x.sizes[1], n = 2 * width;
    const float* x = as<const float>(a.x) + row * width;
    float* y = as<float>(a.y) + row * a.y.sizes[1];
    const auto signed_x = [&](std::int64_t i) { return i < width ? x[i] : -x[i - width]; };
    if (a.kind == Features::kDpfp) {
      const auto r = [&](std::int64_t i) { return fmaxf(signed_x(i), 0.0f); };
      for (std::int64_t i = threadIdx.x; i < 4 * n; i += blockDim.x) y[i] = r(i % n) * r((i % n + 4 * n - (i / n + 1)) % n);
      return;
    }
    float largest = 0;
    for (std::int64_t c = threadIdx.x; c < width; c += blockDim.x) largest = fmaxf(largest, 2 * fabsf(x[c]));
    largest = block_sum<true>(largest);
    const float sum = row_sum(n, [&](std::int64_t i) { return expf(2 * signed_x(i) - largest); });
    for (std::int64_t i = threadIdx.x; i < n; i += blockDim.x) y[i] = expf(2 * signed_x(i) - largest) / sum;
  }
};

/// Scores of all sources first, then their mixture. Shared memory: [M] scores.
struct ResidualRow {
  AttentionResidualArgs a;
  __device__ void operator()(std::int64_t t) const {
    extern __shared__ float scores[];
    const std::int64_t sources = a.sources.sizes[0], width = a.y.sizes[1];
    const auto source = [&](std::int64_t j) { return as<const float>(a.sources) + j * a.sources.strides[0] + t * a.sources.strides[1]; };
    float largest = -INFINITY, total = 0;
    for (std::int64_t j = 0; j < sources; ++j) {
      const float* v = source(j);
      const float squares = row_sum(width, [&](std::int64_t c) { return v[c] * v[c]; });
      const float dot = row_sum(width, [&](std::int64_t c) { return v[c] * as<const float>(a.w)[c]; });
      const float score = dot / sqrtf(squares / static_cast<float>(width) + a.eps);
      if (threadIdx.x == 0) scores[j] = score;
      largest = fmaxf(largest, score);
    }
    __syncthreads();
    for (std::int64_t j = 0; j < sources; ++j) total += expf(scores[j] - largest);
    for (std::int64_t c = threadIdx.x; c < width; c += blockDim.x) {
      float sum = 0;
      for (std::int64_t j = 0; j < sources; ++j) sum = __fmaf_rn(expf(scores[j] - largest) / total, source(j)[c], sum);
      as<float>(a.y)[t * width + c] = sum;
    }
    if (!a.p.defined()) return;
    for (std::int64_t j = threadIdx.x; j < sources; j += blockDim.x) as<float>(a.p)[t * sources + j] = expf(scores[j] - largest) / total;
  }
};

/// The same for rows of whole vectors, up to 8192 numbers, and up to 16 sources: a block of 512 asks for all sources at once and adds up once.
constexpr int kMostSources = 16;
__global__ void __launch_bounds__(512) residual_vectors(AttentionResidualArgs a) {
  constexpr int kEach = 4, kWarps = 16;
  __shared__ float2 parts[kMostSources][kWarps];
  const std::int64_t t = blockIdx.x, vectors = a.y.sizes[1] / 4;
  const int sources = static_cast<int>(a.sources.sizes[0]), warp = static_cast<int>(threadIdx.x) / 32;
  const auto source = [&](int j) { return reinterpret_cast<const float4*>(as<const float>(a.sources) + j * a.sources.strides[0] + t * a.sources.strides[1]); };
  float4 w[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const std::int64_t c = threadIdx.x + i * 512;
    w[i] = c < vectors ? as<const float4>(a.w)[c] : float4{};
  }
  cudaGridDependencySynchronize();
  cudaTriggerProgrammaticLaunchCompletion();
#pragma unroll 2
  for (int j = 0; j < sources; ++j) {
    float squares = 0, dot = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const std::int64_t c = threadIdx.x + i * 512;
      const float4 v = c < vectors ? source(j)[c] : float4{};
      squares = __fmaf_rn(v.x, v.x, __fmaf_rn(v.y, v.y, __fmaf_rn(v.z, v.z, __fmaf_rn(v.w, v.w, squares))));
      dot = __fmaf_rn(v.x, w[i].x, __fmaf_rn(v.y, w[i].y, __fmaf_rn(v.z, w[i].z, __fmaf_rn(v.w, w[i].w, dot))));
    }
    squares = warp_sum(squares), dot = warp_sum(dot);
    if (threadIdx.x % 32 == 0) parts[j][warp] = {squares, dot};
  }
  __syncthreads();
  float p[kMostSources], largest = -INFINITY, total = 0;
#pragma unroll
  for (int j = 0; j < kMostSources; ++j) {
    if (j >= sources) continue;
    float2 sum{};
    for (int i = 0; i < kWarps; ++i) sum.x += parts[j][i].x, sum.y += parts[j][i].y;
    p[j] = sum.y / sqrtf(sum.x / static_cast<float>(a.y.sizes[1]) + a.eps);
    largest = fmaxf(largest, p[j]);
  }
#pragma unroll
  for (int j = 0; j < kMostSources; ++j) {
    if (j < sources) p[j] = expf(p[j] - largest), total += p[j];
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const std::int64_t c = threadIdx.x + i * 512;
    if (c >= vectors) continue;
    float4 sum{};
#pragma unroll
    for (int j = 0; j < kMostSources; ++j) {
      if (j >= sources) continue;
      const float4 v = source(j)[c];
      const float share = p[j] / total;
      sum = {__fmaf_rn(share, v.x, sum.x), __fmaf_rn(share, v.y, sum.y), __fmaf_rn(share, v.z, sum.z), __fmaf_rn(share, v.w, sum.w)};
    }
    as<float4>(a.y)[t * vectors + c] = sum;
  }
#pragma unroll
  for (int j = 0; j < kMostSources; ++j) {
    if (a.p.defined() && threadIdx.x == 0 && j < sources) as<float>(a.p)[t * sources + j] = p[j] / total;
  }
}

}  // namespace

static bool takes_vectors(const RmsNormArgs& a) {
  const std::int64_t width = a.x.sizes[1];
  return width >= 512 && width <= 8192 && width % 4 == 0 && a.weight.dtype == DType::kF32 && in_vectors(a.x) && in_vectors(a.y) && in_vectors(a.weight);
}
void rms_norm(const RmsNormArgs& a, void* stream) {
  if (!takes_vectors(a)) return for_each_row(a.x.sizes[0], a.x.sizes[1], RmsRow{a}, stream, "rms_norm");
  if (a.x.sizes[0] == 0) return;
  launch_early(rms_vectors<false>, static_cast<unsigned>(a.x.sizes[0]), 512, 0, stream_of(stream), "rms_norm", a, static_cast<const float4*>(nullptr), RowImage{});
}
bool add_rms_norm(const AddRmsNormArgs& a, void* stream) {
  const RmsNormArgs norm = {.x = a.x, .weight = a.weight, .eps = a.eps, .y = a.y};
  if (!takes_vectors(norm) || !in_vectors(a.add)) {
    add({.x = a.add, .y = a.x}, stream);
    rms_norm(norm, stream);
    return false;
  }
  if (a.x.sizes[0] == 0) return false;
  launch_early(rms_vectors<true>, static_cast<unsigned>(a.x.sizes[0]), 512, 0, stream_of(stream), "add_rms_norm", norm, as<const float4>(a.add), a.image);
  return a.image.to;
}
void gated_rms_norm(const GatedRmsNormArgs& a, void* stream) {
  const std::int64_t rows = a.x.sizes[0] * a.x.sizes[1];
  if (a.x.sizes[2] != 128 || rows == 0) return for_each_row(rows, a.x.sizes[2], GatedRow{a}, stream, "gated_rms_norm");
  gated_rows<<<divide_up(rows, 8), 256, 0, stream_of(stream)>>>(a, rows);
  check(cudaGetLastError(), "gated_rms_norm");
}
void l2_norm(const L2NormArgs& a, void* stream) { for_each_row(a.x.sizes[0] * a.x.sizes[1], a.x.sizes[2], L2Row{a}, stream, "l2_norm"); }
void layer_norm(const LayerNormArgs& a, void* stream) { for_each_row(a.x.sizes[0], a.x.sizes[1], LayerNormRow{a}, stream, "layer_norm"); }
void divide_rows(const DivideRowsArgs& a, void* stream) { for_each_row(a.x.sizes[0], a.x.sizes[1], DivideRow{a}, stream, "divide_rows"); }
void features(const FeaturesArgs& a, void* stream) { for_each_row(a.x.sizes[0], a.x.sizes[1], FeatureRow{a}, stream, "features"); }

void attention_residual(const AttentionResidualArgs& a, void* stream) {
  if (a.y.numel() == 0) return;
  const std::int64_t width = a.y.sizes[1];
  if (width >= 512 && width <= 8192 && width % 4 == 0 && a.sources.sizes[0] <= kMostSources && a.sources.strides[0] % 4 == 0 && in_vectors(a.sources) && in_vectors(a.w) && in_vectors(a.y) &&
      a.sources.strides[1] % 4 == 0) {
    return launch_early(residual_vectors, static_cast<unsigned>(a.y.sizes[0]), 512, 0, stream_of(stream), "attention_residual", a);
  }
  launch_early(each_row<ResidualRow>, static_cast<unsigned>(a.y.sizes[0]), row_threads(a.y.sizes[1]), a.sources.sizes[0] * 4, stream_of(stream), "attention_residual", ResidualRow{a});
}

}  // namespace palimpsest::cuda::plain
