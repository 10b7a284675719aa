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

bool dense_batch(std::span<const Work> products, int parts, cudaStream_t stream, bool ask) {
  using Shape = sm90::BatchShape;
  if (products[0].w.form != Form::kBF16 || products[0].rows <= kFewRows || products[0].rows > Shape::kRows) return false;
  const Works works = side_by_side(products, Shape::kOutputs);
  int cols = 0;
  for (const Work& work : products) cols = std::max(cols, work.cols);
  const auto chunks = [&](bool split) { return (Shape::units(cols, split) + 1) / 2; };
  const bool split = chunks(false) > Shape::kMostChunks;
  if (split && chunks(true) > Shape::kMostChunks) return false;
  if (ask) return true;
  if (split) parts == 1 ? launch<1, true>(works, chunks(true), stream) : launch<2, true>(works, chunks(true), stream);
  else parts == 1 ? launch<1, false>(works, chunks(false), stream) : launch<2, false>(works, chunks(false), stream);
  return true;
}

}  // namespace palimpsest::cuda::tiles
