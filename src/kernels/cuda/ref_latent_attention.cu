#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/device_memory.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/ref/latent_attention.h"

namespace palimpsest::cuda {
namespace {

/// Scratch of one sequence and head at a time: keys and values of its whole list.
template <class T>
struct Scratch {
  T *keys, *values, *weights;
  std::int64_t max_length;
};

/// Index i = (head, position).
template <class T>
struct KeyValueRow {
  LatentAttentionArgs args;
  Scratch<T> scratch;
  std::int64_t sequence;
  __device__ void operator()(std::int64_t i) const {
    const std::int64_t end = ref::load<std::int64_t>(args.rows.cu_seqlens, sequence + 1);
    const std::int64_t rows = end - ref::load<std::int64_t>(args.rows.cu_seqlens, sequence);
    const std::int64_t head = i / scratch.max_length, position = i % scratch.max_length;
    if (rows == 0 || position >= ref::load<std::int64_t>(args.past, sequence) + rows) return;
    ref::latent_key_value(args, sequence, head, position, scratch.keys + i * args.q.sizes[2], scratch.values + i * args.o.sizes[2]);
  }
};

/// Index i = (row of the batch, head); rows of other sequences have nothing to do.
template <class T>
struct AttentionRow {
  LatentAttentionArgs args;
  Scratch<T> scratch;
  std::int64_t sequence;
  __device__ void operator()(std::int64_t i) const {
    const std::int64_t heads = args.q.sizes[1], row = i / heads, head = i % heads;
    const std::int64_t begin = ref::load<std::int64_t>(args.rows.cu_seqlens, sequence);
    if (row < begin || row >= ref::load<std::int64_t>(args.rows.cu_seqlens, sequence + 1)) return;
    ref::latent_attention_row(args, sequence, row - begin, head, scratch.keys + head * scratch.max_length * args.q.sizes[2],
                              scratch.values + head * scratch.max_length * args.o.sizes[2], scratch.weights + i * scratch.max_length);
  }
};

template <class T>
void attend(const LatentAttentionArgs& args, std::int64_t max_length) {
  const std::int64_t heads = args.q.sizes[1], rows = args.q.sizes[0], bytes = static_cast<std::int64_t>(sizeof(T));
  DeviceMemory keys(heads * max_length * args.q.sizes[2] * bytes), values(heads * max_length * args.o.sizes[2] * bytes);
  DeviceMemory weights(rows * heads * max_length * bytes);
  const Scratch<T> scratch{static_cast<T*>(keys.data()), static_cast<T*>(values.data()), static_cast<T*>(weights.data()), max_length};
  for (std::int64_t n = 0; n < args.rows.slots.sizes[0]; ++n) {
    for_each_index(heads * max_length, KeyValueRow<T>{args, scratch, n}, "ref_latent_attention, keys and values");
    for_each_index(rows * heads, AttentionRow<T>{args, scratch, n}, "ref_latent_attention");
  }
}

}  // namespace

void ref_latent_attention(const LatentAttentionArgs& args, std::int64_t max_length, DType scalar) {
  if (scalar == DType::kF64) attend<double>(args, max_length);
  else attend<float>(args, max_length);
}

}  // namespace palimpsest::cuda
