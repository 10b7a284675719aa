// A thread an element.

#include "kernels/cuda/plain/functions.cuh"
#include "kernels/cuda/plain/launch.cuh"
#include "kernels/cuda/plain_kernels.h"

namespace palimpsest::cuda::plain {
namespace {

struct Add {
  const float* x;
  float* y;
  __device__ void operator()(std::int64_t i) const { y[i] += x[i]; }
};
struct Multiply {
  const float* x;
  float* y;
  __device__ void operator()(std::int64_t i) const { y[i] *= x[i]; }
};
struct AddBias {
  const float* bias;
  float* y;
  std::int64_t width;
  __device__ void operator()(std::int64_t i) const { y[i] += bias[i % width]; }
};
struct Scale {
  float factor;
  float* y;
  __device__ void operator()(std::int64_t i) const { y[i] *= factor; }
};
struct Apply {
  const float* x;
  float* y;
  Unary function;
  __device__ void operator()(std::int64_t i) const { y[i] = apply(function, x[i]); }
};
struct GatedUnit {
  const float *gate, *up;
  float* y;
  GluParams params;
  __device__ void operator()(std::int64_t i) const { y[i] = gated_unit(gate[i], up[i], params); }
};
struct MultiplySigmoid {
  const float *x, *gate;
  float* y;
  std::int64_t per_gate;
  __device__ void operator()(std::int64_t i) const { y[i] = x[i] * sigmoid(gate[i / per_gate]); }
};
struct AppendOne {
  const float* x;
  float* y;
  std::int64_t width;
  __device__ void operator()(std::int64_t i) const {
    const std::int64_t row = i / (width + 1), c = i % (width + 1);
    y[i] = c < width ? x[row * width + c] : 1.0f;
  }
};
struct Gate {
  DecayGateArgs a;
  __device__ void operator()(std::int64_t i) const {
    const std::int64_t heads = a.f.sizes[1], width = a.f.sizes[2], h = i / width % heads, c = i % width;
    const float rate = expf(as<const float>(a.a_log)[h]), x = as<const float>(a.f)[i] + as<const float>(a.dt_bias)[h * width + c];
    as<float>(a.g)[i] = log_decay(a, rate, x);
  }
};

struct Shorten {
  const std::uint32_t* wide;
  std::uint16_t* narrow;
  __device__ void operator()(std::int64_t i) const { narrow[i] = static_cast<std::uint16_t>(wide[i] >> 16); }
};
struct Widen {
  const std::uint16_t* narrow;
  std::uint32_t* wide;
  __device__ void operator()(std::int64_t i) const { wide[i] = static_cast<std::uint32_t>(narrow[i]) << 16; }
};

/// A kernel of its own, so that profiles of a model can leave it out by name.
__global__ void random_values(RandomFill fill, std::int64_t first, std::int64_t count, void* to) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < count) fill.store(to, i, static_cast<std::uint64_t>(first + i));
}

}  // namespace

void random_fill(const RandomFill& fill, std::int64_t first, std::int64_t count, void* to, void* stream) {
  if (count <= 0) return;
  random_values<<<divide_up(count, 256), 256, 0, stream_of(stream)>>>(fill, first, count, to);
  check(cudaGetLastError(), "random_fill");
}
void add(const AddArgs& a, void* stream) { for_each(a.y.numel(), Add{as<const float>(a.x), as<float>(a.y)}, stream, "add"); }
void multiply(const MultiplyArgs& a, void* stream) { for_each(a.y.numel(), Multiply{as<const float>(a.x), as<float>(a.y)}, stream, "multiply"); }
void add_bias(const AddBiasArgs& a, void* stream) {
  for_each(a.y.numel(), AddBias{as<const float>(a.bias), as<float>(a.y), a.y.sizes[1]}, stream, "add_bias");
}
void scale(const ScaleArgs& a, void* stream) { for_each(a.y.numel(), Scale{a.factor, as<float>(a.y)}, stream, "scale"); }
void unary(const UnaryArgs& a, void* stream) { for_each(a.y.numel(), Apply{as<const float>(a.x), as<float>(a.y), a.function}, stream, "unary"); }
void glu(const GluArgs& a, void* stream) {
  for_each(a.y.numel(), GatedUnit{as<const float>(a.gate), as<const float>(a.up), as<float>(a.y), a.params}, stream, "glu");
}
void multiply_sigmoid(const MultiplySigmoidArgs& a, void* stream) {
  const std::int64_t n = a.y.numel(), gates = a.gate.numel();
  for_each(n, MultiplySigmoid{as<const float>(a.x), as<const float>(a.gate), as<float>(a.y), gates > 0 ? n / gates : 1}, stream, "multiply_sigmoid");
}
void append_one(const AppendOneArgs& a, void* stream) {
  for_each(a.y.numel(), AppendOne{as<const float>(a.x), as<float>(a.y), a.x.sizes[1]}, stream, "append_one");
}
void decay_gate(const DecayGateArgs& a, void* stream) { for_each(a.g.numel(), Gate{a}, stream, "decay_gate"); }

void shorten(std::uint16_t* bf16, const std::uint32_t* f32, std::int64_t numbers, void* stream) { for_each(numbers, Shorten{f32, bf16}, stream, "shorten"); }
void widen(std::uint32_t* f32, const std::uint16_t* bf16, std::int64_t numbers, void* stream) { for_each(numbers, Widen{bf16, f32}, stream, "widen"); }

}  // namespace palimpsest::cuda::plain
