// What a vision tower does beside products and norms.

#include <cstring>

#include "kernels/cuda/plain/launch.cuh"
#include "kernels/cuda/plain_vision_kernels.h"

namespace palimpsest::cuda::plain {
namespace {

/// Between which two trained rows (or columns) a row of the picture lies, and how near the second.
struct Place {
  std::int64_t low, high;
  float weight;
};
__device__ Place place(std::int64_t i, std::int64_t out, std::int64_t in) {
  const double at = fmax(0.0, (static_cast<double>(i) + 0.5) * static_cast<double>(in) / static_cast<double>(out) - 0.5);
  const std::int64_t low = min(static_cast<long long>(at), static_cast<long long>(in - 1));
  return {low, min(static_cast<long long>(low + 1), static_cast<long long>(in - 1)), static_cast<float>(at - static_cast<double>(low))};
}

struct Positions {
  PatchPositionsArgs a;
  __device__ float value(std::int64_t row, std::int64_t column, std::int64_t c) const {
    // The file promises no alignment: a copy of the bytes of one number.
    const std::int64_t i = (row * a.table.sizes[1] + column) * a.table.sizes[2] + c;
    if (a.table.dtype == DType::kF32) {
      float number;
      memcpy(&number, as<const char>(a.table) + 4 * i, sizeof number);
      return number;
    }
    std::uint16_t number;
    memcpy(&number, as<const char>(a.table) + 2 * i, sizeof number);
    return a.table.dtype == DType::kBF16 ? bf16_to_float(number) : f16_to_float(number);
  }
  __device__ void operator()(std::int64_t i) const {
    const std::int64_t width = a.x.sizes[1], half = width / 2, c = i % width, cells = a.grid.rows * a.grid.columns, cell = i / width % cells, frame = i / width / cells;
    const Place y = place(cell / a.grid.columns, a.grid.rows, a.table.sizes[0]), x = place(cell % a.grid.columns, a.grid.columns, a.table.sizes[1]);
    const float upper = (1 - x.weight) * value(y.low, x.low, c) + x.weight * value(y.low, x.high, c);
    const float lower = (1 - x.weight) * value(y.high, x.low, c) + x.weight * value(y.high, x.high, c);
    float sum = as<float>(a.x)[i] + ((1 - y.weight) * upper + y.weight * lower);
    if (a.grid.frames > 1) {
      const double angle = static_cast<double>(frame) * pow(10000.0, -static_cast<double>(c % half) / static_cast<double>(half));
      sum += static_cast<float>(c < half ? sin(angle) : cos(angle));
    }
    as<float>(a.x)[i] = sum;
  }
};

struct Turns {
  PatchTurnsArgs a;
  __device__ void operator()(std::int64_t i) const {
    const std::int64_t n = a.head_dim / 4;
    const double angle = static_cast<double>(i / n) * pow(10000.0, -4.0 * static_cast<double>(i % n) / static_cast<double>(a.head_dim));
    as<float>(a.turns)[2 * i] = static_cast<float>(cos(angle));
    as<float>(a.turns)[2 * i + 1] = static_cast<float>(sin(angle));
  }
};

/// A thread a pair of channels.
struct Rotary {
  PatchRotaryArgs a;
  __device__ void operator()(std::int64_t i) const {
    const std::int64_t heads = a.x.sizes[1], pairs = a.x.sizes[2] / 2, pair = i % pairs, t = i / pairs / heads, cell = (a.first + t) % (a.grid.rows * a.grid.columns);
    const float* turn = as<const float>(a.turns) + ((pair % 2 == 0 ? cell % a.grid.columns : cell / a.grid.columns) * (pairs / 2) + pair / 2) * 2;
    float* x = as<float>(a.x) + t * a.x.strides[0] + i / pairs % heads * 2 * pairs + 2 * pair;
    const float re = x[0], im = x[1];
    x[0] = re * turn[0] - im * turn[1];
    x[1] = re * turn[1] + im * turn[0];
  }
};

struct GeluErf {
  const float* x;
  float* y;
  __device__ void operator()(std::int64_t i) const { y[i] = 0.5f * x[i] * (1 + erff(x[i] * 0.70710678118654752440f)); }
};

struct Merge {
  PatchMergeArgs a;
  __device__ void operator()(std::int64_t i) const {
    const std::int64_t width = a.x.sizes[1], cells = a.grid.columns / a.side, t = a.first + i / a.y.sizes[1], part = i % a.y.sizes[1] / width, c = i % width;
    const std::int64_t row = t / cells * a.side + part / a.side, column = t % cells * a.side + part % a.side;
    float sum = 0;
    for (std::int64_t frame = 0; frame < a.grid.frames; ++frame) sum += as<const float>(a.x)[((frame * a.grid.rows + row) * a.grid.columns + column) * width + c];
    as<float>(a.y)[i] = sum / static_cast<float>(a.grid.frames);
  }
};

constexpr int kThreads = 256, kQueries = 16, kKeys = 32;

/// Blocks: [runs of kQueries rows, heads]. Keys and values pass through shared memory kKeys at a time, with an online softmax; a row's sums run over keys
/// in their order. Shared memory: q, o [kQueries, D], k [kKeys, D + 1], v [kKeys, D].
__global__ void __launch_bounds__(kThreads) attend_patches(PatchAttentionArgs a) {
  extern __shared__ float shared[];
  __shared__ float scores[kQueries][kKeys], largest[kQueries], total[kQueries], shrink[kQueries];
  const std::int64_t rows = a.q.sizes[0], heads = a.q.sizes[1], keys = a.k.sizes[0], head = blockIdx.y, first_row = static_cast<std::int64_t>(blockIdx.x) * kQueries;
  const int width = static_cast<int>(a.q.sizes[2]), thread = static_cast<int>(threadIdx.x);
  float *q = shared, *o = q + kQueries * width, *k = o + kQueries * width, *v = k + kKeys * (width + 1);
  for (int i = thread; i < kQueries * width; i += kThreads) {
    const std::int64_t row = first_row + i / width;
    q[i] = row < rows ? as<const float>(a.q)[(row * heads + head) * width + i % width] : 0;
    o[i] = 0;
  }
  if (thread < kQueries) {
    largest[thread] = -INFINITY;
    total[thread] = 0;
  }
  for (std::int64_t first = 0; first < keys; first += kKeys) {
    const int count = static_cast<int>(min(static_cast<long long>(kKeys), static_cast<long long>(keys - first)));
    __syncthreads();
    for (int i = thread; i < count * width; i += kThreads) {
      const std::int64_t at = ((first + i / width) * heads + head) * width + i % width;
      k[i / width * (width + 1) + i % width] = as<const float>(a.k)[at];
      v[i] = as<const float>(a.v)[at];
    }
    __syncthreads();
    for (int i = thread; i < kQueries * kKeys; i += kThreads) {
      const int row = i / kKeys, key = i % kKeys;
      float dot = 0;
      for (int c = 0; c < width && key < count; ++c) dot = __fmaf_rn(q[row * width + c], k[key * (width + 1) + c], dot);
      scores[row][key] = a.scale * dot;
    }
    __syncthreads();
    if (thread < kQueries) {
      float top = largest[thread];
      for (int j = 0; j < count; ++j) top = fmaxf(top, scores[thread][j]);
      shrink[thread] = expf(largest[thread] - top);
      float sum = total[thread] * shrink[thread];
      for (int j = 0; j < count; ++j) sum += scores[thread][j] = expf(scores[thread][j] - top);
      total[thread] = sum;
      largest[thread] = top;
    }
    __syncthreads();
    for (int i = thread; i < kQueries * width; i += kThreads) {
      const int row = i / width;
      float sum = o[i] * shrink[row];
      for (int j = 0; j < count; ++j) sum = __fmaf_rn(scores[row][j], v[j * width + i % width], sum);
      o[i] = sum;
    }
  }
  __syncthreads();
  for (int i = thread; i < kQueries * width; i += kThreads) {
    const std::int64_t row = first_row + i / width;
    if (row < rows) as<float>(a.o)[(row * heads + head) * width + i % width] = o[i] / total[i / width];
  }
}

}  // namespace

void patch_positions(const PatchPositionsArgs& a, void* stream) { for_each(a.x.numel(), Positions{a}, stream, "patch_positions"); }
void patch_turns(const PatchTurnsArgs& a, void* stream) { for_each(a.turns.numel() / 2, Turns{a}, stream, "patch_turns"); }
void patch_rotary(const PatchRotaryArgs& a, void* stream) { for_each(a.x.numel() / 2, Rotary{a}, stream, "patch_rotary"); }
void gelu_erf(const GeluErfArgs& a, void* stream) { for_each(a.x.numel(), GeluErf{as<const float>(a.x), as<float>(a.y)}, stream, "gelu_erf"); }
void patch_merge(const PatchMergeArgs& a, void* stream) { for_each(a.y.numel(), Merge{a}, stream, "patch_merge"); }

void patch_attention(const PatchAttentionArgs& a, void* stream) {
  if (a.q.numel() == 0) return;
  const std::int64_t width = a.q.sizes[2];
  const auto shared = static_cast<int>((2 * kQueries * width + kKeys * (2 * width + 1)) * static_cast<std::int64_t>(sizeof(float)));
  if (shared > 40 * 1024) check(cudaFuncSetAttribute(attend_patches, cudaFuncAttributeMaxDynamicSharedMemorySize, shared), "patch_attention");
  attend_patches<<<dim3(divide_up(a.q.sizes[0], kQueries), static_cast<unsigned>(a.q.sizes[1])), kThreads, shared, stream_of(stream)>>>(a);
  check(cudaGetLastError(), "patch_attention");
}

}  // namespace palimpsest::cuda::plain
