#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/ref/rms_norm.h"

namespace palimpsest::cuda {
namespace {

template <class T>
struct RmsNormRow {
  RmsNormArgs args;
  static __device__ Tensor row(Tensor t, std::int64_t i) {
    t.data = static_cast<char*>(t.data) + i * t.strides[0] * dtype_size(t.dtype);
    t.sizes[0] = 1;
    return t;
  }
  __device__ void operator()(std::int64_t t) const {
    RmsNormArgs one = args;
    one.x = row(args.x, t);
    one.y = row(args.y, t);
    ref::rms_norm<T>(one);
  }
};

}  // namespace

void ref_rms_norm(const RmsNormArgs& args, DType scalar) {
  if (scalar == DType::kF64) for_each_index(args.x.sizes[0], RmsNormRow<double>{args}, "ref_rms_norm");
  else for_each_index(args.x.sizes[0], RmsNormRow<float>{args}, "ref_rms_norm");
}

}  // namespace palimpsest::cuda
