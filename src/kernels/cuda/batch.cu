#include <algorithm>

#include "kernels/cuda/delta_launch.cuh"
#include "kernels/cuda/sm90/batch_products.cuh"
#include "kernels/cuda/tiles.h"

namespace palimpsest::cuda::tiles {
namespace {

constexpr const char* kName = "products of a batch";

using Shape = sm90::BatchShape;

template <int kParts, bool kSplit>
void launch(const Works& works, int at_once, int chunks, cudaStream_t stream) {
  constexpr int kBlocks = kSplit ? kSegments : 1;
  const int end = works.ends[kMostProducts - 1], blocks = std::min(end, at_once);
  launch_clusters(sm90::batch_products<kParts, kSplit>, blocks * kBlocks, kBlocks, Shape::kThreads, Shape::bytes(chunks, kParts, blocks < end), stream, kName, works, chunks);
}

}  // namespace

bool dense_batch(std::span<const Work> products, int parts, cudaStream_t stream, Batch which) {
  static const int clusters = multiprocessors(kName) / kSegments;
  parts = parts_of(Form::kBF16, parts);
  if (products[0].w.form != Form::kBF16 || products[0].rows <= kFewRows || products[0].rows > Shape::kRows) return false;
  Works works{};
  int end = 0, cols = 0;
  bool one_x = true;
  for (std::size_t i = 0; i < kMostProducts; ++i) {
    if (i < products.size()) {
      works.work[i] = products[i];
      end += (products[i].outputs + Shape::kOutputs - 1) / Shape::kOutputs;
      cols = std::max(cols, products[i].cols);
      one_x = one_x && products[i].x == products[0].x && products[i].x_stride == products[0].x_stride && products[i].cols == products[0].cols && !products[i].rounded;
    }
    works.ends[i] = end;
  }
  const auto chunks = [&](bool split) { return (Shape::units(cols, split) + 1) / 2; };
  const bool split = chunks(false) > Shape::kMostChunks;
  if (split && chunks(true) > Shape::kMostChunks) return false;
  // A cluster takes outputs by turns where that is some turns; with very many outputs wide products are as good and need less of their neighbours.
  constexpr int kMostTurns = 8;
  const bool turns = split && one_x && end > clusters && end <= kMostTurns * clusters && Shape::bytes(chunks(true), parts, true) <= 232448;
  if (which == Batch::kAsk || (which == Batch::kByTurns && !turns)) return which == Batch::kAsk;
  const int at_once = turns ? clusters : end;
  if (split) parts == 1 ? launch<1, true>(works, at_once, chunks(true), stream) : launch<2, true>(works, at_once, chunks(true), stream);
  else parts == 1 ? launch<1, false>(works, at_once, chunks(false), stream) : launch<2, false>(works, at_once, chunks(false), stream);
  return true;
}

}  // namespace palimpsest::cuda::tiles
