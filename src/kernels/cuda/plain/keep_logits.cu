// A row is shared by kLogitParts blocks. Three launches: the copy with the largest and the first odd one; sums and counts by distance from the largest;
// candidates. The last two only where a row wants them.

#include <algorithm>

#include "kernels/cuda/plain/launch.cuh"
#include "kernels/logit_args.h"

namespace palimpsest::cuda {
namespace {

using plain::as;
constexpr int kThreads = 256;
static_assert(kLogitBins == kThreads, "a thread a bin");

/// A block's part of a row, and what is known of it.
struct Part {
  __device__ explicit Part(const KeepLogitsArgs& a)
      : n(blockIdx.y),
        width(a.logits.sizes[1]),
        begin(width * blockIdx.x / kLogitParts + threadIdx.x),
        end(width * (blockIdx.x + 1) / kLogitParts),
        row(as<const float>(a.logits) + n * width),
        head(as<LogitHead>(a.room) + n),
        bins(reinterpret_cast<int*>(as<LogitHead>(a.room) + gridDim.y) + n * kLogitBins),
        candidates(reinterpret_cast<LogitCandidate*>(reinterpret_cast<int*>(as<LogitHead>(a.room) + gridDim.y) + static_cast<std::int64_t>(gridDim.y) * kLogitBins) + n * kMostCandidates) {}

  /// Of the row, behind the first launch.
  __device__ float largest() const {
    const auto bits = static_cast<unsigned>(head->best >> 32);
    return __uint_as_float(bits >> 31 ? bits ^ 0x80000000u : ~bits);
  }

  std::int64_t n, width, begin, end;
  const float* row;
  LogitHead* head;
  int* bins;
  LogitCandidate* candidates;
};

/// kLogitBins or more: too far below.
__device__ int bin_of(float largest, float x) { return static_cast<int>(fminf((largest - x) / kLogitsPerBin, kLogitBins)); }

__global__ void __launch_bounds__(kThreads) copy_row(KeepLogitsArgs a) {
  const Part part(a);
  float* to = as<float>(a.kept) + as<const std::int32_t>(a.slots)[part.n] * a.kept.strides[0];
  unsigned long long best = 0;
  int odd = 0;
#pragma unroll 8
  for (std::int64_t i = part.begin; i < part.end; i += kThreads) {
    const float x = __ldg(part.row + i);
    to[i] = x;
    const unsigned bits = __float_as_uint(x + 0.0f);  // -0 ranks as 0
    const unsigned long long rank = static_cast<unsigned long long>(bits >> 31 ? ~bits : bits | 0x80000000u) << 32 | ~static_cast<unsigned>(i);
    if (isfinite(x)) best = max(best, rank);
    else odd = max(odd, INT_MAX - static_cast<int>(i));
  }
  for (int offset = 16; offset > 0; offset /= 2) {
    best = max(best, __shfl_xor_sync(~0u, best, offset));
    odd = max(odd, __shfl_xor_sync(~0u, odd, offset));
  }
  if (threadIdx.x % 32 != 0) return;
  atomicMax(reinterpret_cast<unsigned long long*>(&part.head->best), best);
  if (odd > 0) atomicMax(&part.head->odd, odd);
}

__global__ void __launch_bounds__(kThreads) count_row(KeepLogitsArgs a) {
  const Part part(a);
  const double inverse = as<const double>(a.inverse)[part.n];
  if (inverse == 0 || part.head->odd != 0) return;
  __shared__ int bins[kLogitBins + 1];
  __shared__ double sums[kThreads / 32];
  bins[threadIdx.x] = 0;
  __syncthreads();
  const float largest = part.largest();
  double sum = 0;
#pragma unroll 4
  for (std::int64_t i = part.begin; i < part.end; i += kThreads) {
    const float x = __ldg(part.row + i);
    if (const int bin = bin_of(largest, x); bin < kLogitBins) atomicAdd(&bins[bin], 1);
    sum += x == largest ? 1.0 : exp((static_cast<double>(x) - largest) * inverse);
  }
  for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(~0u, sum, offset);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
  __syncthreads();
  if (bins[threadIdx.x] > 0) atomicAdd(&part.bins[threadIdx.x], bins[threadIdx.x]);
  if (threadIdx.x > 0) return;
  for (int w = 1; w < kThreads / 32; ++w) sum += sums[w];
  part.head->sums[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kThreads) choose_candidates(KeepLogitsArgs a) {
  const Part part(a);
  if (as<const double>(a.inverse)[part.n] == 0 || part.head->odd != 0) return;
  __shared__ int bins[kLogitBins];
  bins[threadIdx.x] = part.bins[threadIdx.x];
  __syncthreads();
  int count = 0;
  for (int b = 0; b <= static_cast<int>(threadIdx.x); ++b) count += bins[b];
  const int kept = __syncthreads_count(count <= kMostCandidates);
  const float largest = part.largest();
#pragma unroll 8
  for (std::int64_t i = part.begin; i < part.end; i += kThreads) {
    const float x = __ldg(part.row + i);
    if (bin_of(largest, x) < kept) part.candidates[atomicAdd(&part.head->count, 1)] = {x, static_cast<std::int32_t>(i)};
  }
}

}  // namespace

void keep_logits(const KeepLogitsArgs& a, void* stream) {
  const std::int64_t rows = a.logits.sizes[0];
  if (rows == 0) return;
  const cudaStream_t on = plain::stream_of(stream);
  const auto* inverse = static_cast<const double*>(a.inverse.host);
  const bool candidates = std::any_of(inverse, inverse + rows, [](double x) { return x > 0; });
  const auto zeros = logit_heads_bytes(rows) + (candidates ? rows * kLogitBins * 4 : 0);
  check(cudaMemsetAsync(a.room.data, 0, static_cast<std::size_t>(zeros), on), "keep_logits");
  const dim3 grid(kLogitParts, static_cast<unsigned>(rows));
  copy_row<<<grid, kThreads, 0, on>>>(a);
  if (candidates) {
    count_row<<<grid, kThreads, 0, on>>>(a);
    choose_candidates<<<grid, kThreads, 0, on>>>(a);
  }
  check(cudaGetLastError(), "keep_logits");
}

}  // namespace palimpsest::cuda
