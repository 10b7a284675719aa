#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/ref/matmul.h"

namespace palimpsest::cuda {
namespace {

template <class T>
struct MatmulRow {
  MatmulArgs args;
  __device__ void operator()(std::int64_t t) const {
    for (std::int64_t n = 0; n < args.y.sizes[1]; ++n) {
      ref::store<T>(args.y, t * args.y.strides[0] + n * args.y.strides[1], ref::matmul_element<T>(args.x, args.w, t, n));
    }
  }
};

}  // namespace

void ref_matmul(const MatmulArgs& args, DType scalar) {
  if (scalar == DType::kF64) for_each_index(args.y.sizes[0], MatmulRow<double>{args}, "ref_matmul");
  else for_each_index(args.y.sizes[0], MatmulRow<float>{args}, "ref_matmul");
}

}  // namespace palimpsest::cuda
