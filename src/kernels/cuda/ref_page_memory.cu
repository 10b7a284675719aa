#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/ref/page_memory.h"

namespace palimpsest::cuda {
namespace {

/// Index i = (sequence, value head, v): one row of a page, through all tokens of its sequence.
template <class T>
struct PageRow {
  PageMemoryArgs args;
  __device__ void operator()(std::int64_t i) const {
    const std::int64_t value_heads = args.v.sizes[1], values = args.v.sizes[2];
    const std::int64_t v = i % values, h = i / values % value_heads, n = i / values / value_heads;
    const std::int64_t slot = ref::load<std::int64_t>(args.rows.slots, n);
    const std::int64_t page_row = slot * args.pages.strides[0] + h * args.pages.strides[1] + v * args.pages.strides[2];
    const std::int64_t begin = ref::load<std::int64_t>(args.rows.cu_seqlens, n), end = ref::load<std::int64_t>(args.rows.cu_seqlens, n + 1);
    for (std::int64_t row = begin; row < end; ++row) {
      const T o = ref::page_row_step<T>(args, row, h / (value_heads / args.q.sizes[1]), h, v, page_row);
      ref::store<T>(args.o, (row * value_heads + h) * values + v, o);
      if (ref::rounds_page_after(args, n, row - begin)) ref::round_page_row<T>(args, page_row);
    }
  }
};

}  // namespace

void ref_page_memory(const PageMemoryArgs& args, DType scalar) {
  const std::int64_t n = args.rows.slots.sizes[0] * args.v.sizes[1] * args.v.sizes[2];
  if (scalar == DType::kF64) for_each_index(n, PageRow<double>{args}, "ref_page_memory");
  else for_each_index(n, PageRow<float>{args}, "ref_page_memory");
}

}  // namespace palimpsest::cuda
