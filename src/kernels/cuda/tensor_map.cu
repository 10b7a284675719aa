#include "kernels/cuda/tensor_map.cuh"

namespace palimpsest::cuda {
namespace {

using Encode = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*, const cuuint64_t*, const cuuint32_t*,
                            const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

/// From the driver, which the runtime has loaded.
Encode encoder() {
  static const Encode found = [] {
    void* address = nullptr;
    cudaDriverEntryPointQueryResult result{};
    check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &address, 12000, cudaEnableDefault, &result), "cuTensorMapEncodeTiled");
    if (result != cudaDriverEntryPointSuccess) throw Error(ErrorCode::kUnsupported, "CUDA: the driver has no cuTensorMapEncodeTiled");
    return reinterpret_cast<Encode>(address);
  }();
  return found;
}

}  // namespace

CUtensorMap tensor_map(const Tensor& t, std::initializer_list<int> box, const char* what) {
  cuuint64_t sizes[5], strides[4];
  cuuint32_t boxes[5] = {64}, steps[5] = {1, 1, 1, 1, 1};
  for (int d = 0; d < t.rank; ++d) sizes[d] = static_cast<cuuint64_t>(t.sizes[t.rank - 1 - d]);
  for (int d = 0; d + 1 < t.rank; ++d) {
    // A dimension of one element may have any stride; the map wants a multiple of 16.
    strides[d] = static_cast<cuuint64_t>(t.sizes[t.rank - 2 - d] == 1 ? 16 : t.strides[t.rank - 2 - d] * dtype_size(t.dtype));
  }
  int d = t.rank - 1;
  for (const int count : box) boxes[d--] = static_cast<cuuint32_t>(count);
  CUtensorMap map;
  const bool bytes = t.dtype == DType::kI8;
  if (bytes) boxes[0] = 128;
  const CUresult status = encoder()(&map, bytes ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, static_cast<cuuint32_t>(t.rank), t.data, sizes, strides, boxes, steps,
                                    CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                                    CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS) {
    throw Error(ErrorCode::kInternal, std::string("CUDA: ") + what + ": no map for bulk copies, status " + std::to_string(static_cast<int>(status)));
  }
  return map;
}

}  // namespace palimpsest::cuda
