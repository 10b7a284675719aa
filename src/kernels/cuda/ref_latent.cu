#include "kernels/cuda/device_memory.h"
#include "kernels/cuda/latent_kernels.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/ref/latent_decode.h"

namespace palimpsest::cuda {
namespace {

struct Scratch {
  double *queries, *weights, *mixes;
  std::int64_t max_length;
};

/// Index i = (row, head, c).
struct Queries {
  LatentDecodeArgs args;
  Scratch scratch;
  __device__ void operator()(std::int64_t i) const {
    const std::int64_t heads = args.q.sizes[1], width = ref::list_width(args.list);
    scratch.queries[i] = ref::absorbed_query<double>(args, i / width / heads, i / width % heads, i % width);
  }
};
/// Index i = (row, head, t).
struct Scores {
  LatentDecodeArgs args;
  Scratch scratch;
  __device__ void operator()(std::int64_t i) const {
    const std::int64_t row_head = i / scratch.max_length, t = i % scratch.max_length;
    const ref::VisibleList list = ref::visible_list(args, row_head / args.q.sizes[1]);
    if (t >= list.length) return;
    scratch.weights[i] = ref::latent_score<double>(args, list, scratch.queries + row_head * ref::list_width(args.list), t);
  }
};
/// Index i = (row, head).
struct Weights {
  LatentDecodeArgs args;
  Scratch scratch;
  __device__ void operator()(std::int64_t i) const {
    ref::softmax(scratch.weights + i * scratch.max_length, ref::visible_list(args, i / args.q.sizes[1]).length);
  }
};
/// Index i = (row, head, c).
struct Mixes {
  LatentDecodeArgs args;
  Scratch scratch;
  __device__ void operator()(std::int64_t i) const {
    const std::int64_t latent = args.kv_b.sizes[1], row_head = i / latent;
    scratch.mixes[i] =
        ref::mixed_latent<double>(args, ref::visible_list(args, row_head / args.q.sizes[1]), scratch.weights + row_head * scratch.max_length, i % latent);
  }
};
/// Index i = (row, head, j).
struct Outputs {
  LatentDecodeArgs args;
  Scratch scratch;
  __device__ void operator()(std::int64_t i) const {
    const std::int64_t values = args.o.sizes[2], heads = args.q.sizes[1], row_head = i / values;
    ref::latent_output<double>(args, row_head / heads, row_head % heads, i % values, scratch.mixes + row_head * args.kv_b.sizes[1]);
  }
};

/// What is computed of latent_prefill: of head h the rows 1237 h % step + i step
struct PrefillSamples {
  LatentPrefillArgs args;
  double* weights;
  std::int64_t max_keys, step;
  std::int64_t per_head() const { return (args.q.sizes[0] + step - 1) / step; }
  __device__ std::int64_t head(std::int64_t sample) const { return sample % args.q.sizes[1]; }
  __device__ std::int64_t row(std::int64_t sample) const { return sample / args.q.sizes[1] * step + 1237 * head(sample) % step; }
};
/// Index i = (sample, key).
struct PrefillScores {
  PrefillSamples s;
  __device__ void operator()(std::int64_t i) const {
    const std::int64_t sample = i / s.max_keys, j = i % s.max_keys, row = s.row(sample);
    if (row >= s.args.q.sizes[0]) return;
    const ref::VisibleKeys keys = ref::visible_keys(s.args, row);
    if (j < keys.seen) s.weights[i] = ref::prefill_score<double>(s.args, keys, row, s.head(sample), j);
  }
};
/// Index i = sample.
struct PrefillWeights {
  PrefillSamples s;
  __device__ void operator()(std::int64_t i) const {
    if (s.row(i) < s.args.q.sizes[0]) ref::softmax(s.weights + i * s.max_keys, ref::visible_keys(s.args, s.row(i)).seen);
  }
};
/// Index i = (sample, d).
struct PrefillOutputs {
  PrefillSamples s;
  __device__ void operator()(std::int64_t i) const {
    const std::int64_t values = s.args.v.sizes[2], sample = i / values, row = s.row(sample);
    if (row >= s.args.q.sizes[0]) return;
    ref::prefill_output<double>(s.args, ref::visible_keys(s.args, row), row, s.head(sample), i % values, s.weights + sample * s.max_keys);
  }
};

DeviceMemory doubles(std::int64_t n) { return DeviceMemory(n * 8); }

}  // namespace

void ref_latent_decode(const LatentDecodeArgs& args, std::int64_t max_length) {
  const std::int64_t row_heads = args.q.sizes[0] * args.q.sizes[1], width = ref::list_width(args.list);
  const DeviceMemory queries = doubles(row_heads * width), weights = doubles(row_heads * max_length), mixes = doubles(row_heads * args.kv_b.sizes[1]);
  const Scratch scratch{static_cast<double*>(queries.data()), static_cast<double*>(weights.data()), static_cast<double*>(mixes.data()), max_length};
  for_each_index(row_heads * width, Queries{args, scratch}, "ref_latent_decode, queries");
  for_each_index(row_heads * max_length, Scores{args, scratch}, "ref_latent_decode, scores");
  for_each_index(row_heads, Weights{args, scratch}, "ref_latent_decode, weights");
  for_each_index(row_heads * args.kv_b.sizes[1], Mixes{args, scratch}, "ref_latent_decode, mixes");
  for_each_index(row_heads * args.o.sizes[2], Outputs{args, scratch}, "ref_latent_decode");
}

void ref_latent_prefill(const LatentPrefillArgs& args, std::int64_t max_keys, std::int64_t step) {
  PrefillSamples s{args, nullptr, max_keys, step};
  const std::int64_t samples = s.per_head() * args.q.sizes[1];
  const DeviceMemory weights = doubles(samples * max_keys);
  s.weights = static_cast<double*>(weights.data());
  for_each_index(samples * max_keys, PrefillScores{s}, "ref_latent_prefill, scores");
  for_each_index(samples, PrefillWeights{s}, "ref_latent_prefill, weights");
  for_each_index(samples * args.v.sizes[2], PrefillOutputs{s}, "ref_latent_prefill");
}

}  // namespace palimpsest::cuda
