// Attention over lists: a block for each row and head walks the list in blocks of 64 absolute positions with an online softmax. Latent attention
// folds its key matrix into the query before, and its value matrix into the output after, and reads latents only.

#include "kernels/cuda/plain/stored_matrix.cuh"
#include "kernels/cuda/plain_kernels.h"

namespace palimpsest::cuda::plain {
namespace {

constexpr int kThreads = 256, kKeys = 64;

/// A row of a list.
struct ListRow {
  const std::byte* data;
  const std::uint16_t* scales;  ///< of 8-bit codes
};

struct List {
  PagedList list;
  std::int64_t slot;

  __device__ ListRow row(std::int64_t position) const {
    const std::int64_t tokens = list.blocks.sizes[1], offset = position % tokens;
    const std::int64_t number = as<const std::int32_t>(list.table)[slot * list.table.strides[0] + position / tokens];
    const std::int64_t size = list.blocks.dtype == DType::kF32 ? 4 : list.blocks.dtype == DType::kBF16 ? 2 : 1;
    const std::byte* block = as<const std::byte>(list.blocks) + number * list.blocks.strides[0] * size;
    if (!list.q8.defined()) return {block + offset * list.blocks.strides[1] * size, nullptr};
    return {q8_codes(list.q8, block, offset), reinterpret_cast<const std::uint16_t*>(q8_scales(list.q8, block, tokens, offset))};
  }
  __device__ float value(const ListRow& row, std::int64_t c) const {
    switch (list.blocks.dtype) {
      case DType::kF32: return reinterpret_cast<const float*>(row.data)[c];
      case DType::kBF16: return bf16_to_float(reinterpret_cast<const std::uint16_t*>(row.data)[c]);
      default: return static_cast<float>(reinterpret_cast<const std::int8_t*>(row.data)[c]) * bf16_to_float(row.scales[list.q8.group_of(c)]);
    }
  }
};

struct Scratch {
  ListRow rows[kKeys];
  float scores[kKeys];
};

/// out[c] = sum_p softmax(scale q.key_p) value_p over positions [0, visible), in shared memory; keys and values are columns of the list's rows.
/// Every thread of the block calls it.
__device__ void attend(const List& list, std::int64_t visible, const float* q, std::int64_t key, std::int64_t key_size, std::int64_t value,
                       std::int64_t value_size, float scale, Scratch& scratch, float* out) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  float largest = -INFINITY, total = 0;
  for (std::int64_t c = threadIdx.x; c < value_size; c += kThreads) out[c] = 0;
  for (std::int64_t first = 0; first < visible; first += kKeys) {
    const int count = static_cast<int>(min(static_cast<long long>(kKeys), static_cast<long long>(visible - first)));
    __syncthreads();
    if (static_cast<int>(threadIdx.x) < count) scratch.rows[threadIdx.x] = list.row(first + threadIdx.x);
    __syncthreads();
    for (int j = warp; j < count; j += kThreads / 32) {
      float dot = 0;
      for (std::int64_t c = lane; c < key_size; c += 32) dot = __fmaf_rn(q[c], list.value(scratch.rows[j], key + c), dot);
      dot = warp_sum(dot);
      if (lane == 0) scratch.scores[j] = scale * dot;
    }
    __syncthreads();
    float top = largest;
    for (int j = 0; j < count; ++j) top = fmaxf(top, scratch.scores[j]);
    const float shrink = expf(largest - top);
    largest = top;
    __syncthreads();
    if (static_cast<int>(threadIdx.x) < count) scratch.scores[threadIdx.x] = expf(scratch.scores[threadIdx.x] - top);
    __syncthreads();
    total *= shrink;
    for (int j = 0; j < count; ++j) total += scratch.scores[j];
    for (std::int64_t c = threadIdx.x; c < value_size; c += kThreads) {
      float sum = out[c] * shrink;
      for (int j = 0; j < count; ++j) sum = __fmaf_rn(scratch.scores[j], list.value(scratch.rows[j], value + c), sum);
      out[c] = sum;
    }
  }
  for (std::int64_t c = threadIdx.x; c < value_size; c += kThreads) out[c] /= total;
  __syncthreads();
}

struct Row {
  std::int64_t slot, visible;
};
__device__ Row row_of(const RaggedRows& rows, const Tensor& past, std::int64_t t) {
  const auto* cu = as<const std::int64_t>(rows.cu_seqlens);
  const std::int64_t n = sequence_of(cu, rows.slots.sizes[0], t);
  return {as<const std::int32_t>(rows.slots)[n], as<const std::int64_t>(past)[n] + t - cu[n] + 1};
}

/// Blocks: [rows, heads]. Shared memory: q [dk], out [dv].
__global__ void __launch_bounds__(kThreads) softmax_rows(SoftmaxAttentionArgs a) {
  extern __shared__ float shared[];
  __shared__ Scratch scratch;
  const std::int64_t t = blockIdx.x, h = blockIdx.y, heads = a.q.sizes[1], dk = a.q.sizes[2], dv = a.o.sizes[2];
  float *q = shared, *out = shared + dk;
  for (std::int64_t c = threadIdx.x; c < dk; c += kThreads) q[c] = as<const float>(a.q)[(t * heads + h) * dk + c];
  const Row row = row_of(a.rows, a.past, t);
  const std::int64_t kv = h / (heads / a.num_kv_heads);
  attend({a.list, row.slot}, row.visible, q, kv * dk, dk, a.num_kv_heads * dk + kv * dv, dv, a.scale, scratch, out);
  for (std::int64_t c = threadIdx.x; c < dv; c += kThreads) as<float>(a.o)[(t * heads + h) * dv + c] = out[c];
}

struct LatentSizes {
  std::int64_t r, p, dn, dv;
};

__device__ float element(const StoredMatrix& m, std::int64_t row, std::int64_t col) {
  float eight[8];
  decode(m, row, static_cast<int>(col / 8 * 8), eight);
  float x = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) x = i == col % 8 ? eight[i] : x;
  return x;
}

/// Blocks: [rows, heads]. Shared memory: folded query [r + p], out [r].
__global__ void __launch_bounds__(kThreads) latent_rows(LatentAttentionArgs a, StoredMatrix kv_b, LatentSizes s) {
  extern __shared__ float shared[];
  __shared__ Scratch scratch;
  const std::int64_t t = blockIdx.x, h = blockIdx.y, heads = a.q.sizes[1], keys = h * (s.dn + s.dv), values = keys + s.dn;
  const float* q = as<const float>(a.q) + (t * heads + h) * (s.dn + s.p);
  float *folded = shared, *out = shared + s.r + s.p;
  for (std::int64_t c = threadIdx.x; c < s.r + s.p; c += kThreads) {
    float sum = 0;
    if (c < s.r) {
      for (std::int64_t d = 0; d < s.dn; ++d) sum = __fmaf_rn(q[d], element(kv_b, keys + d, c), sum);
    } else {
      sum = q[s.dn + c - s.r];
    }
    folded[c] = sum;
  }
  const Row row = row_of(a.rows, a.past, t);
  attend({a.list, row.slot}, row.visible, folded, 0, s.r + s.p, 0, s.r, a.scale, scratch, out);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (std::int64_t d = threadIdx.x / 32; d < s.dv; d += kThreads / 32) {
    float sum = 0;
    for (std::int64_t c = 8 * lane; c < s.r; c += 256) {
      float weights[8];
      decode(kv_b, values + d, static_cast<int>(c), weights);
      for (int i = 0; i < 8; ++i) sum = c + i < s.r ? __fmaf_rn(weights[i], out[c + i], sum) : sum;
    }
    sum = warp_sum(sum);
    if (lane == 0) as<float>(a.o)[(t * heads + h) * s.dv + d] = sum;
  }
}

template <class Kernel, class... Args>
void launch(Kernel kernel, std::int64_t rows, std::int64_t heads, std::int64_t floats, void* stream, const char* what, Args... args) {
  if (rows == 0 || heads == 0) return;
  const auto shared = static_cast<int>(floats * static_cast<std::int64_t>(sizeof(float)));
  if (shared > 40 * 1024) check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared), what);
  kernel<<<dim3(static_cast<unsigned>(rows), static_cast<unsigned>(heads)), kThreads, shared, stream_of(stream)>>>(args...);
  check(cudaGetLastError(), what);
}

}  // namespace

void softmax_attention(const SoftmaxAttentionArgs& a, void* stream) {
  launch(softmax_rows, a.q.sizes[0], a.q.sizes[1], a.q.sizes[2] + a.o.sizes[2], stream, "softmax_attention", a);
}

void latent_attention(const LatentAttentionArgs& a, void* stream) {
  const std::int64_t r = a.kv_b.cols(), p = a.list.width() - r;
  launch(latent_rows, a.q.sizes[0], a.q.sizes[1], 2 * r + p, stream, "latent_attention", a, stored(a.kv_b), LatentSizes{r, p, a.q.sizes[2] - p, a.o.sizes[2]});
}

}  // namespace palimpsest::cuda::plain
