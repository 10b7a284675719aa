// Products with a weight matrix and rows of a table. Each warp makes four outputs of up to eight rows; weights are read once for them.

#include "kernels/cuda/plain/stored_matrix.cuh"
#include "kernels/cuda/plain_kernels.h"

namespace palimpsest::cuda::plain {
namespace {

constexpr int kWarps = 8;

struct Rows {
  const float* x;
  float* y;
  std::int64_t x_stride, y_stride, count;
  bool aligned, mxfp8;
};

template <int kRows>
__global__ void __launch_bounds__(32 * kWarps) matmul_rows(StoredMatrix w, Rows rows) {
  const int first = (static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / 32) * kOutputs;
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.y) * kRows;
  if (first >= w.rows) return;
  const float* x[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) x[r] = rows.x + min(static_cast<long long>(begin + r), static_cast<long long>(rows.count - 1)) * rows.x_stride;
  float sums[kRows][kOutputs];
  products<kRows>(w, first, x, rows.aligned, rows.mxfp8, sums);
  if (threadIdx.x % 32 != 0) return;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int o = 0; o < kOutputs; ++o) {
      if (begin + r < rows.count && first + o < w.rows) rows.y[(begin + r) * rows.y_stride + first + o] = sums[r][o];
    }
  }
}

/// Eight columns of a row.
struct TableRows {
  StoredMatrix table;
  const std::int32_t* ids;
  float* out;
  std::int64_t stride, pieces;
  __device__ void operator()(std::int64_t i) const {
    const std::int64_t t = i / pieces;
    const int col = static_cast<int>(i % pieces * 8);
    float eight[8];
    decode(table, ids[t], col, eight);
    for (int c = 0; c < 8 && col + c < table.cols; ++c) out[t * stride + col + c] = eight[c];
  }
};

}  // namespace

void matmul(const MatmulArgs& args, void* stream, bool mxfp8) {
  const StoredMatrix w = stored(args.w);
  const Rows rows = {as<const float>(args.x), as<float>(args.y), args.x.strides[0], args.y.strides[0], args.x.sizes[0],
                     in_vectors(args.x), mxfp8};
  if (rows.count == 0 || w.rows == 0) return;
  const unsigned across = divide_up(w.rows, kWarps * kOutputs);
  if (rows.count == 1) matmul_rows<1><<<across, 32 * kWarps, 0, stream_of(stream)>>>(w, rows);
  else matmul_rows<8><<<dim3(across, divide_up(rows.count, 8)), 32 * kWarps, 0, stream_of(stream)>>>(w, rows);
  check(cudaGetLastError(), "matmul");
}

void embedding(const EmbeddingArgs& args, void* stream) {
  const std::int64_t pieces = divide_up(args.out.sizes[1], 8);
  const TableRows rows = {stored(args.table), as<const std::int32_t>(args.ids), as<float>(args.out), args.out.strides[0], pieces};
  for_each(args.out.sizes[0] * pieces, rows, stream, "embedding");
}

}  // namespace palimpsest::cuda::plain
