#include "kernels/cuda/wide_kernels.h"

#include "kernels/cuda/delta_launch.cuh"
#include "kernels/cuda/sm90/made_products.cuh"

namespace palimpsest::cuda::wide {
namespace {

using tiles::Form;
using tiles::Work;

constexpr const char* kName = "wide products";
/// Pairs of blocks of outputs of dense products that all rows are taken for before the next: their weights and the rows of a wave stay in L2.
constexpr int kDenseGroup = 4;

static_assert(sm90::kWideChunk == 64, "image_bytes() counts in such chunks");
std::int64_t chunks_of(std::int64_t cols) { return (cols + sm90::kWideChunk - 1) / sm90::kWideChunk; }

template <Form kForm, int kRows, int kParts>
void make_image(const Work& work, std::int64_t most_tiles, std::uint8_t* image, cudaStream_t stream) {
  launch_early(sm90::image_of<kForm, kRows, kParts>, static_cast<unsigned>(most_tiles * kRows), 128, 0, stream, kName, work, image, static_cast<int>(chunks_of(work.cols)));
}
/// `places`: memory for a number a pair, needed until the images are made.
template <Form kForm, int kRows, int kParts>
void make_images(const Work& work, std::int64_t most_tiles, std::uint8_t* image, std::int32_t* places, cudaStream_t stream) {
  sm90::place_pairs<kRows><<<static_cast<unsigned>(most_tiles), kRows, 0, stream>>>(work, places);
  sm90::images_of_pairs<kForm, kRows, kParts><<<static_cast<unsigned>(work.rows), 128, static_cast<std::size_t>(work.per_row) * sizeof(sm90::ImageTarget), stream>>>(
      work, places, image, static_cast<int>(chunks_of(work.cols)));
  check(cudaGetLastError(), kName);
}

/// Products of works[0].cols columns; blocks of `outputs` outputs each. The image has room for image_parts.
template <Form kForm, int kRows, int kMatrices, int kParts>
void launch(std::span<const Work> works, int outputs, std::int64_t most_tiles, int group, const std::uint8_t* image, std::uint8_t* hidden, cudaStream_t stream,
            int image_parts = kParts) {
  using Shape = sm90::WideShape<kRows, kParts>;
  sm90::WideJob job;
  job.works = tiles::side_by_side(works, outputs);
  job.blocks = job.works.ends[tiles::kMostProducts - 1];
  job.image = image;
  job.hidden = hidden;
  job.row_tiles = static_cast<int>(most_tiles);
  job.pairs = (job.blocks + 1) / 2;
  job.group = std::min(group, job.pairs);
  job.units = works[0].cols / tiles::Unit<kForm>::kColumns;
  job.chunks = static_cast<int>(chunks_of(works[0].cols));
  job.image_parts = image_parts;
  static const int most = multiprocessors(kName) / sm90::kWideCluster;
  const std::int64_t clusters = std::min<std::int64_t>(most, job.pairs * most_tiles);
  const auto kernel = sm90::wide_products<kForm, kRows, kMatrices, kParts>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Shape::kBytes), kName);
  EarlyLaunch launch(static_cast<unsigned>(clusters * sm90::kWideCluster), (sm90::kWideFetchers<kForm> + 2) * 128, Shape::kBytes, stream, sm90::kWideCluster);
  // Only wide_fetch() of a batch waits for the kernel before.
  if (kRows != plain::kBatchRows || kForm != Form::kBF16) launch.attributes[0].val.programmaticStreamSerializationAllowed = 0;
  check(cudaLaunchKernelEx(&launch.config, kernel, job), kName);
}

template <class F>
void with_form(Form form, int parts, F f) {
  const auto with_parts = [&](auto which) {
    if (tiles::parts_of(form, parts) == 1) f(which, std::integral_constant<int, 1>{});
    else f(which, std::integral_constant<int, 2>{});
  };
  if (form == Form::kMx) with_parts(std::integral_constant<Form, Form::kMx>{});
  else with_parts(std::integral_constant<Form, Form::kBF16>{});
}

}  // namespace

bool takes(const tiles::StoredMatrix& w) {
  return w.form == Form::kBF16 || (w.form == Form::kMx && reinterpret_cast<std::uintptr_t>(w.scales) % 4 == 0 && w.scale_row_bytes % 4 == 0);
}

template <Form kForm, int kParts, int kRows>
void dense_tiles(std::span<const Work> works, std::uint8_t* image, cudaStream_t stream) {
  const std::int64_t row_tiles = (works[0].rows + kRows - 1) / kRows;
  if (works[0].image) image = const_cast<std::uint8_t*>(works[0].image);
  else make_image<kForm, kRows, kParts>(works[0], row_tiles, image, stream);
  launch<kForm, kRows, 1, kParts>(works, sm90::kWideWeights, row_tiles, kDenseGroup, image, nullptr, stream);
}

void dense(std::span<const Work> works, Form form, int parts, std::uint8_t* image, cudaStream_t stream) {
  with_form(form, parts, [&](auto f, auto p) {
    if (plain::wide_dense_rows(works[0].rows) == plain::kBatchRows) dense_tiles<f.value, p.value, plain::kBatchRows>(works, image, stream);
    else dense_tiles<f.value, p.value, f.value == Form::kMx ? kExpertRows : plain::kWideDenseRows>(works, image, stream);
  });
}

void experts(const Work& up, const Work& down, Form form, int parts, std::int64_t most_tiles, std::uint8_t* image, std::uint8_t* hidden, cudaStream_t stream) {
  constexpr int kAll = 1 << 20;  // all outputs of a tile of rows, then the next tile
  with_form(form, parts, [&](auto f, auto p) {
    make_images<f.value, kExpertRows, p.value>(up, most_tiles, image, reinterpret_cast<std::int32_t*>(hidden), stream);
    launch<f.value, kExpertRows, 2, p.value>({&up, 1}, sm90::kWideWeights / 2, most_tiles, kAll, image, hidden, stream);
    const bool rounds = tiles::kMayRound<f.value, p.value> && down.mxfp8;
    if (rounds) sm90::round_halves<kExpertRows><<<static_cast<unsigned>(most_tiles * kExpertRows), 128, 0, stream>>>(down, hidden, static_cast<int>(chunks_of(down.cols)));
    launch<f.value, kExpertRows, 1, p.value>({&down, 1}, sm90::kWideWeights, most_tiles, kAll, hidden, nullptr, stream, rounds ? 2 : p.value);
  });
}

}  // namespace palimpsest::cuda::wide
