#include <algorithm>
#include <span>
#include <vector>

#include "kernels/cuda/delta_launch.cuh"
#include "kernels/cuda/sm90/one_row.cuh"
#include "kernels/cuda/sm90/streamed_products.cuh"
#include "kernels/cuda/tile_kernels.h"
#include "kernels/cuda/tiles.h"
#include "kernels/cuda/wide_kernels.h"

namespace palimpsest::cuda {
namespace tiles {
namespace {

constexpr const char* kName = "tiles";
/// From this many rows of a dense product on a block walks all segments: there are blocks enough.
constexpr std::int64_t kUnsplitRows = 512;
/// From this many outputs on blocks of 64 outputs fill the device.
constexpr std::int64_t kManyOutputs = 12288;

/// With blocks of so many outputs.
Works side_by_side(std::span<const Work> products, int outputs) {
  Works works{};
  int end = 0;
  for (std::size_t i = 0; i < kMostProducts; ++i) {
    if (i < products.size()) {
      works.work[i] = products[i];
      end += (products[i].outputs + outputs - 1) / outputs;
    }
    works.ends[i] = end;
  }
  return works;
}

/// Blocks of so many outputs, which may begin while the kernel before ends.
void launch_early(void (*kernel)(Works), std::span<const Work> products, int outputs, std::int64_t tiles, int bytes, cudaStream_t stream) {
  const Works works = side_by_side(products, outputs);
  if (bytes > 0) check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), kName);
  cudaLaunchAttribute early;
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(works.ends[kMostProducts - 1]), static_cast<unsigned>(tiles));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = static_cast<std::size_t>(bytes);
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = 1;
  check(cudaLaunchKernelEx(&config, kernel, works), kName);
}

template <Form kForm, int kMatrices, int kParts, int kTiles>
void few(std::span<const Work> products, std::int64_t tiles, cudaStream_t stream) {
  launch_early(few_rows<kForm, kMatrices, kParts, kTiles>, products, 16 * kTiles, tiles, 0, stream);
}

/// One row of x, which fits in shared memory beside the weights that are on their way; scales at multiples of 4 bytes.
constexpr std::int64_t kMostOneRowBytes = 227 * 1024 - 8192;
template <Form kForm, int kMatrices, int kParts, int kTiles>
bool one(std::span<const Work> products, std::int64_t tiles, cudaStream_t stream) {
  std::int64_t bytes = 0;
  for (const Work& work : products) {
    bytes = std::max(bytes, sm90::OneRowShape<kForm, kMatrices, kTiles>::bytes(work.cols, kParts));
    if (!work.experts && !wide::takes(work.w)) return false;
  }
  if (bytes > kMostOneRowBytes) return false;
  launch_early(sm90::one_row<kForm, kMatrices, kParts, kTiles>, products, 16 * kTiles, tiles, static_cast<int>(bytes), stream);
  return true;
}
template <Form kForm, int kMatrices, int kParts, bool kSplit>
void many(std::span<const Work> products, std::int64_t tiles, cudaStream_t stream) {
  constexpr int kSums = kSplit ? kManyRows * kSumsPitch * 4 : 0, kBytes = std::max(Chunk<kForm, kParts>::kAllBytes, kSums);
  const Works works = side_by_side(products, kMatrices == 2 ? 64 : 128);
  const auto kernel = many_rows<kForm, kMatrices, kParts, kSplit>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes), kName);
  cudaLaunchAttribute cluster;
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {1, kSegments, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(works.ends[kMostProducts - 1]), kSplit ? kSegments : 1, static_cast<unsigned>(tiles));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = kBytes;
  config.stream = stream;
  config.attrs = &cluster;
  config.numAttrs = kSplit ? 1 : 0;
  check(cudaLaunchKernelEx(&config, kernel, works), kName);
}

template <Form kForm, int kParts>
void dense(std::span<const Work> products, cudaStream_t stream) {
  const std::int64_t rows = products[0].rows, tiles = plain::divide_up(rows, kManyRows);
  std::int64_t outputs = 0;
  for (const Work& work : products) outputs += work.outputs;
  if constexpr (Unit<kForm>::kWords == 0) {
    if (rows == 1 && one<kForm, 1, kParts, 1>(products, 1, stream)) return;
  }
  if (rows <= kFewRows && outputs < kManyOutputs) few<kForm, 1, kParts, 1>(products, 1, stream);
  else if (rows <= kFewRows) few<kForm, 1, kParts, Unit<kForm>::kMostTiles>(products, 1, stream);
  else if (rows < kUnsplitRows) many<kForm, 1, kParts, true>(products, tiles, stream);
  else many<kForm, 1, kParts, false>(products, tiles, stream);
}

/// f(form, parts) with one of kForms.
template <Form... kForms, class F>
void with_form(Form form, int parts, F f) {
  const auto with_parts = [&](auto which) {
    if (form != which.value) return;
    if (parts == 1) f(which, std::integral_constant<int, 1>{});
    else f(which, std::integral_constant<int, 2>{});
  };
  (with_parts(std::integral_constant<Form, kForms>{}), ...);
  check(cudaGetLastError(), kName);
}
template <class F>
void with_any_form(Form form, int parts, F f) {
  with_form<Form::kBF16, Form::kMx, Form::kF16, Form::kQ8_0, Form::kQ4_K, Form::kQ6_K>(form, parts, f);
}

template <int kMatrices, int kParts>
void streamed(const sm90::Stream& job, std::int64_t most_tiles, cudaStream_t stream) {
  static const std::int64_t most = multiprocessors(kName);
  const std::int64_t warps = most_tiles * plain::divide_up(job.work.outputs, kMatrices == 2 ? 16 : 32);
  launch_overlapping(sm90::streamed_products<kMatrices, kParts>, std::min(most, (warps + sm90::kStreamWarps - 1) / sm90::kStreamWarps), 32 * sm90::kStreamWarps, sm90::kStreamBytes, stream, kName, job);
}

}  // namespace

void experts_streamed(const Work& up, const Work& down, int parts, std::int64_t most_tiles, const std::uint8_t* x, std::uint8_t* hidden, cudaStream_t stream) {
  with_form<Form::kMx>(Form::kMx, parts, [&](auto, auto p) {
    streamed<2, p.value>({up, x, hidden}, most_tiles, stream);
    streamed<1, p.value>({down, hidden, nullptr}, most_tiles, stream);
  });
}

void experts_one(const Work& work, Form form, int matrices, int parts, std::int64_t pairs, cudaStream_t stream) {
  with_form<Form::kBF16, Form::kMx>(form, parts, [&](auto f, auto p) {
    if (matrices == 2 ? one<f.value, 2, p.value, 1>({&work, 1}, pairs, stream) : one<f.value, 1, p.value, 2>({&work, 1}, pairs, stream)) return;
    experts_few(work, form, matrices, parts, pairs, stream);
  });
}

void experts_few(const Work& work, Form form, int matrices, int parts, std::int64_t most_tiles, cudaStream_t stream) {
  with_any_form(form, parts, [&](auto f, auto p) {
    if (matrices == 2) few<f.value, 2, p.value, 1>({&work, 1}, most_tiles, stream);
    else few<f.value, 1, p.value, Unit<f.value>::kMostTiles>({&work, 1}, most_tiles, stream);
  });
}

void experts_many(const Work& work, Form form, int matrices, int parts, std::int64_t most_tiles, cudaStream_t stream) {
  with_any_form(form, parts, [&](auto f, auto p) {
    if (matrices == 2) many<f.value, 2, p.value, false>({&work, 1}, most_tiles, stream);
    else many<f.value, 1, p.value, false>({&work, 1}, most_tiles, stream);
  });
}

}  // namespace tiles

bool tiles_take(const Matrix& w) {
  const plain::StoredMatrix m = plain::stored(w);
  if (!m.aligned || m.rows <= 0 || m.cols <= 0) return false;
  switch (m.form) {
    case plain::Form::kBF16:
    case plain::Form::kF16: return m.cols % 32 == 0;
    case plain::Form::kQ8_0: return m.cols % 64 == 0;
    case plain::Form::kMx: return m.cols % 128 == 0;
    case plain::Form::kQ4_K:
    case plain::Form::kQ6_K: return true;
    default: return false;
  }
}

static bool tiles_take(const MatmulArgs& a) {
  return tiles_take(a.w) && plain::in_vectors(a.x);
}

bool tile_side_by_side(std::span<const MatmulArgs> products) {
  const auto form = [](const MatmulArgs& a) { return plain::stored(a.w).form; };
  return !products.empty() && products.size() <= tiles::kMostProducts && std::all_of(products.begin(), products.end(), [&](const MatmulArgs& a) {
    return tiles_take(a) && form(a) == form(products[0]) && a.x.sizes[0] == products[0].x.sizes[0];
  });
}

namespace tiles {
namespace {

/// Where there are blocks enough of the other kind, products are for warpgroups.
constexpr std::int64_t kWideBlocks = 96;

Work work_of(const MatmulArgs& a) {
  Work work;
  work.w = plain::stored(a.w);
  work.outputs = work.w.rows;
  work.cols = work.w.cols;
  work.x = plain::as<const float>(a.x);
  work.y = plain::as<float>(a.y);
  work.x_stride = a.x.strides[0];
  work.y_stride = a.y.strides[0];
  work.rows = static_cast<std::int32_t>(a.x.sizes[0]);
  work.rounded = a.y.dtype == DType::kBF16;
  return work;
}

bool for_warpgroups(std::span<const Work> works) {
  std::int64_t blocks = 0;
  for (const Work& work : works) blocks += plain::divide_up(work.outputs, 128);
  const int tile_rows = plain::wide_dense_rows(works[0].rows);
  return tile_rows > 0 && blocks * plain::divide_up(works[0].rows, tile_rows) >= kWideBlocks &&
         std::all_of(works.begin(), works.end(), [](const Work& work) { return wide::takes(work.w); });
}

}  // namespace
}  // namespace tiles

bool tile_rounds(const MatmulArgs& a) {
  if (!tiles_take(a) || a.w.rows() % 2 != 0) return false;
  const tiles::Work work = tiles::work_of(a);
  return tiles::for_warpgroups({&work, 1});
}

void tile_matmul(std::span<const MatmulArgs> products, int parts, void* workspace, void* stream) {
  if (products[0].x.sizes[0] == 0) return;
  std::vector<tiles::Work> works, others;
  for (const MatmulArgs& a : products) works.push_back(tiles::work_of(a));
  const plain::Form form = works[0].w.form;
  for (auto first = works.begin(); first != works.end();) {
    const auto end = std::stable_partition(first, works.end(), [x = *first](const tiles::Work& work) { return work.x == x.x && work.x_stride == x.x_stride && work.cols == x.cols; });
    if (workspace && tiles::for_warpgroups({first, end})) wide::dense({first, end}, form, parts, static_cast<std::uint8_t*>(workspace), plain::stream_of(stream));
    else others.insert(others.end(), first, end);
    first = end;
  }
  if (others.empty() || (workspace && tiles::dense_batch(others, parts, plain::stream_of(stream)))) return;
  tiles::with_any_form(form, parts, [&](auto f, auto p) { tiles::dense<f.value, p.value>(others, plain::stream_of(stream)); });
}

}  // namespace palimpsest::cuda
