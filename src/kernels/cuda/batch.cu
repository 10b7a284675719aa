#include <algorithm>

#include "kernels/cuda/delta_launch.cuh"
#include "kernels/cuda/sm90/batch_products.cuh"
#include "kernels/cuda/tiles.h"

namespace palimpsest::cuda::tiles {
namespace {

constexpr const char* kName = "products of a batch";

template <int kParts, bool kSplit>
void launch(const Works& works, int chunks, cudaStream_t stream) {
  constexpr int kBlocks = kSplit ? kSegments : 1;
  launch_clusters(sm90::batch_products<kParts, kSplit>, works.ends[kMostProducts - 1] * kBlocks, kBlocks, sm90::BatchShape::kThreads, sm90::BatchShape::bytes(chunks, kParts), stream, kName, works);
}

}  // namespace

std::int64_t dense_batch(std::span<const Work> products, int parts, cudaStream_t stream, bool ask) {
  using Shape = sm90::BatchShape;
  if (products[0].w.form != Form::kBF16 || products[0].rows <= kFewRows || products[0].rows > Shape::kRows) return 0;
  const Works works = side_by_side(products, Shape::kOutputs);
  int cols = 0;
  for (const Work& work : products) cols = std::max(cols, work.cols);
  const auto chunks = [&](bool split) { return (Shape::units(cols, split) + 1) / 2; };
  const bool split = chunks(false) > Shape::kMostChunks;
  if (split && chunks(true) > Shape::kMostChunks) return 0;
  const std::int64_t blocks = works.ends[kMostProducts - 1] * (split ? kSegments : 1);
  if (ask) return blocks;
  if (split) parts == 1 ? launch<1, true>(works, chunks(true), stream) : launch<2, true>(works, chunks(true), stream);
  else parts == 1 ? launch<1, false>(works, chunks(false), stream) : launch<2, false>(works, chunks(false), stream);
  return blocks;
}

}  // namespace palimpsest::cuda::tiles
