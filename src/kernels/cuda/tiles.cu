#include <algorithm>
#include <span>
#include <vector>

#include "kernels/cuda/delta_launch.cuh"
#include "kernels/cuda/sm90/one_row.cuh"
#include "kernels/cuda/sm90/one_row_experts.cuh"
#include "kernels/cuda/sm90/streamed_products.cuh"
#include "kernels/cuda/tile_kernels.h"
#include "kernels/cuda/tiles.h"
#include "kernels/cuda/wide_kernels.h"
#include "kernels/one_row_args.h"

namespace palimpsest::cuda {
namespace tiles {
namespace {

constexpr const char* kName = "tiles";
/// From this many rows of a dense product on a block walks all segments: there are blocks enough.
constexpr std::int64_t kUnsplitRows = 512;
/// From this many outputs on blocks of 64 outputs fill the device.
constexpr std::int64_t kManyOutputs = 12288;

template <Form kForm, int kMatrices, int kParts, int kTiles>
void few(std::span<const Work> products, std::int64_t tiles, cudaStream_t stream) {
  const Works works = side_by_side(products, 16 * kTiles);
  launch_early(few_rows<kForm, kMatrices, kParts, kTiles>, dim3(static_cast<unsigned>(works.ends[kMostProducts - 1]), static_cast<unsigned>(tiles)), kThreads, 0, stream, kName, works);
}

/// One row of x, which fits in shared memory beside the weights that are on their way; scales at multiples of 4 bytes. False: not of this shape.
constexpr std::int64_t kMostOneRowBytes = 227 * 1024 - 8192;
template <Form kForm, int kParts>
bool one(std::span<const Work> products, cudaStream_t stream, bool ask = false, const RouterArgs& router = {}) {
  using Shape = sm90::OneRowShape<kForm>;
  int warps = 1;
  std::int64_t bytes = 0;
  for (const Work& work : products) {
    if (!wide::takes(work.w)) return false;
    warps = std::max(warps, Shape::warps(work.cols));
  }
  for (const Work& work : products) bytes = std::max(bytes, Shape::bytes(work.cols, warps));
  if (bytes > kMostOneRowBytes) return false;
  if (ask) return true;
  const Works works = side_by_side(products, 16);
  launch_early(sm90::one_row<kForm, kParts>, static_cast<unsigned>(works.ends[kMostProducts - 1] + (router.logits.defined() ? 1 : 0)), 32 * warps, bytes, stream, kName, works, router);
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
    if (rows == 1 && one<kForm, kParts>(products, stream)) return;
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
    if (parts_of(form, parts) == 1) f(which, std::integral_constant<int, 1>{});
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
  const auto kernel = sm90::streamed_products<kMatrices, kParts>;
  launch_overlapping(kernel, std::min<std::int64_t>(most, plain::divide_up(warps, sm90::kStreamWarps)), 32 * sm90::kStreamWarps, sm90::kStreamBytes, stream, kName, job);
}

}  // namespace

void experts_streamed(const Work& up, const Work& down, int parts, std::int64_t pairs, std::int64_t most_tiles, const std::uint8_t* x, std::uint8_t* hidden, cudaStream_t stream) {
  with_form<Form::kMx>(Form::kMx, parts, [&](auto, auto p) {
    streamed<2, p.value>({up, x, sm90::rounded_bytes(up.cols, p.value), hidden}, most_tiles, stream);
    if (down.mxfp8) sm90::round_rows<1><<<static_cast<unsigned>(pairs), static_cast<unsigned>((down.cols / 8 + 31) / 32 * 32), 0, stream>>>(hidden, down.cols);
    streamed<1, p.value>({down, hidden, sm90::rounded_bytes(down.cols, down.mxfp8 ? 2 : p.value), nullptr}, most_tiles, stream);
  });
}

bool in_bulk(const StoredMatrix& w) {
  const std::int64_t row_bytes = w.form == Form::kMx ? w.cols / 2 : std::int64_t{2} * w.cols;
  return w.row_bytes == row_bytes && (w.form != Form::kMx || (w.scale_row_bytes == w.cols / 32 && reinterpret_cast<std::uintptr_t>(w.scales) % 16 == 0));
}

bool experts_one(const Work& up, const Work& down, Form form, int parts, const ExpertSum& sum, cudaStream_t stream) {
  bool taken = false;
  with_form<Form::kBF16, Form::kMx>(form, parts, [&](auto f, auto p) {
    constexpr Form kForm = f.value;
    const std::int64_t bytes = sm90::expert_up_bytes<kForm>(up.cols), down_bytes = sm90::expert_down_bytes<kForm>(down.cols, sum.pairs);
    if (sum.pairs > sm90::kMostPairs || up.outputs % sm90::kUpOutputs<kForm> != 0 || down.outputs % sm90::kDownOutputs<kForm> != 0 || std::max(bytes, down_bytes) > kMostOneRowBytes) return;
    const int units = up.cols / Unit<kForm>::kColumns, each = (units - 1) / kSegments + 1, warps = (units - 1) / each + 1;  // those that have units
    launch_early(sm90::expert_up<kForm, p.value>, dim3(static_cast<unsigned>(up.outputs / sm90::kUpOutputs<kForm>), static_cast<unsigned>(sum.pairs)), 32 * warps, bytes, stream, kName, up);
    launch_early(sm90::expert_down<kForm, p.value>, static_cast<unsigned>(down.outputs / sm90::kDownOutputs<kForm>), kThreads, down_bytes, stream, kName, down, sum);
    taken = true;
  });
  return taken;
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

/// Where there are blocks enough of the other kind, products are for warpgroups; of a batch half as many are enough where dense_batch() does not take it, or has
/// more blocks than run at once.
constexpr std::int64_t kWideBlocks = 96, kBatchBlocks = 128;

Work work_of(const MatmulArgs& a, int parts) {
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
  work.mxfp8 = parts == kMxfp8Parts && work.w.form == Form::kMx;
  return work;
}

bool for_warpgroups(std::span<const Work> works) {
  std::int64_t blocks = 0;
  for (const Work& work : works) blocks += plain::divide_up(work.outputs, 128);
  const int tile_rows = plain::wide_dense_rows(works[0].rows);
  const std::int64_t of_batch = tile_rows == plain::kBatchRows ? dense_batch(works, 1, nullptr, true) : 1;
  const std::int64_t least = of_batch == 0 || of_batch > kBatchBlocks ? kWideBlocks / 2 : kWideBlocks;
  return tile_rows > 0 && blocks * plain::divide_up(works[0].rows, tile_rows) >= least &&
         std::all_of(works.begin(), works.end(), [](const Work& work) { return wide::takes(work.w); });
}

}  // namespace
}  // namespace tiles

bool tile_rounds(const MatmulArgs& a) {
  if (!tiles_take(a) || a.w.rows() % 2 != 0) return false;
  const tiles::Work work = tiles::work_of(a, 1);
  return tiles::for_warpgroups({&work, 1});
}

void tile_matmul(std::span<const MatmulArgs> products, int parts, void* workspace, void* stream, const void* image) {
  if (products[0].x.sizes[0] == 0) return;
  std::vector<tiles::Work> works, others;
  for (const MatmulArgs& a : products) works.push_back(tiles::work_of(a, parts));
  const plain::Form form = works[0].w.form;
  if (form == plain::Form::kBF16) {
    for (tiles::Work& work : works) work.image = static_cast<const std::uint8_t*>(image);
  }
  for (auto first = works.begin(); first != works.end();) {
    const auto end = std::stable_partition(first, works.end(), [x = *first](const tiles::Work& work) { return work.x == x.x && work.x_stride == x.x_stride && work.cols == x.cols; });
    if (workspace && tiles::for_warpgroups({first, end})) wide::dense({first, end}, form, parts, static_cast<std::uint8_t*>(workspace), plain::stream_of(stream));
    else others.insert(others.end(), first, end);
    first = end;
  }
  if (others.empty() || (workspace && tiles::dense_batch(others, parts, plain::stream_of(stream)))) return;
  tiles::with_any_form(form, parts, [&](auto f, auto p) { tiles::dense<f.value, p.value>(others, plain::stream_of(stream)); });
}

static bool launch_gated(const GatedProductArgs& a, const RouterArgs& router, int parts, void* stream, bool ask) {
  const MatmulArgs product = {.x = a.gate, .w = a.w, .y = a.y};
  if (parts == 0 || a.gate.sizes[0] == 0 || !tiles_take(product) || !plain::in_vectors(a.up)) return false;
  tiles::Work work = tiles::work_of(product, parts);
  work.up = plain::as<const float>(a.up);
  work.glu = a.params;
  work.beside = a.beside;
  if (work.rows > 1) return tiles::dense_batch({&work, 1}, parts, plain::stream_of(stream), ask);
  bool taken = false;
  tiles::with_form<plain::Form::kBF16, plain::Form::kMx>(work.w.form, parts, [&](auto f, auto p) { taken = tiles::one<f.value, p.value>({&work, 1}, plain::stream_of(stream), ask, router); });
  return taken;
}
bool takes_gated_product(const GatedProductArgs& a, int parts) { return launch_gated(a, {}, parts, nullptr, true); }
void gated_product(const GatedProductArgs& a, int parts, void* stream) { (void)launch_gated(a, {}, parts, stream, false); }
bool takes_router_beside(const RouterArgs& r, const GatedProductArgs& a, int parts) {
  const std::int64_t experts = r.logits.sizes[1];
  return r.logits.sizes[0] == 1 && experts <= 32 * sm90::kRoutedLanes && experts * 4 <= 2 * a.gate.sizes[1] && r.top_k <= 32 && r.topk_group >= r.n_group && takes_gated_product(a, parts);
}
void router_beside(const RouterArgs& r, const GatedProductArgs& a, int parts, void* stream) { (void)launch_gated(a, r, parts, stream, false); }

}  // namespace palimpsest::cuda
