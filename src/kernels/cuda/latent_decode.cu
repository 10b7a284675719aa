#include <algorithm>

#include "kernels/cuda/delta_launch.cuh"
#include "kernels/cuda/latent_checks.h"
#include "kernels/cuda/latent_kernels.h"
#include "kernels/cuda/sm90/latent_codes.cuh"
#include "kernels/cuda/sm90/latent_project.cuh"
#include "kernels/cuda/tensor_map.cuh"

namespace palimpsest::cuda {
namespace {

constexpr const char* kName = "latent_decode";

sm90::DecodeWorkspace workspace(const LatentDecodeArgs& args, std::int64_t max_length) {
  const std::int64_t heads = args.q.sizes[1];
  const LatentDecodeRoom room(args.q.sizes[0], heads, max_length);
  auto* at = static_cast<unsigned char*>(args.workspace.data);
  sm90::DecodeWorkspace work{};
  work.queries = at;
  work.padded_heads = padded_latent_heads(heads);
  const bool codes = args.list.q8.defined();
  if (codes) work.block_heads = work.padded_heads % 48 == 0 ? 48 : std::min(work.padded_heads, 32);
  else work.block_heads = heads > 64 ? work.padded_heads / 2 : work.padded_heads;
  work.image_bytes = work.block_heads * (sm90::kListRow * 2 + (codes ? 8 : 0));
  work.sums = reinterpret_cast<float2*>(at + room.queries);
  work.mixes = reinterpret_cast<float*>(at + room.queries + room.sums);
  work.splits = static_cast<int>(room.splits);
  work.most_splits = most_latent_splits(heads);
  return work;
}

/// Rows of a box: all of a box lie in one block of the list.
int box_rows(std::int64_t block_tokens, int most) {
  int rows = most;
  while (block_tokens % rows != 0) rows /= 2;
  return rows;
}

/// Codes of a list as a tensor of their own.
Tensor codes_of(const PagedList& list) {
  Tensor t = list.blocks;
  t.sizes[2] = t.strides[1] = list.q8.width();
  return t;
}

template <class Kernel>
void attend(Kernel* kernel, int threads, int bytes, int blocks, int most_rows, const LatentDecodeArgs& args, const sm90::DecodeWorkspace& work, std::int64_t items, cudaStream_t stream) {
  const int rows = box_rows(args.list.blocks.sizes[1], most_rows);
  const CUtensorMap map = tensor_map(args.list.q8.defined() ? codes_of(args.list) : args.list.blocks, {1, rows}, kName);
  const std::int64_t clusters = std::min<std::int64_t>(items, multiprocessors(kName) / blocks);
  launch_clusters(kernel, clusters * blocks, blocks, threads, bytes, stream, kName, args, work, map, rows);
}

/// N heads a block, clusters of kBlocks.
template <int N, int kBlocks>
void attend_list(const LatentDecodeArgs& args, const sm90::DecodeWorkspace& work, cudaStream_t stream) {
  attend(sm90::latent_decode<N, kBlocks>, sm90::kDecodeThreads, sm90::DecodeMemory<N>::kBytes, kBlocks, sm90::kTile / kBlocks, args, work, args.q.sizes[0] * work.splits, stream);
}
template <int N>
void attend_codes(const LatentDecodeArgs& args, const sm90::DecodeWorkspace& work, cudaStream_t stream) {
  attend(sm90::latent_decode_codes<N>, sm90::CodesMemory<N>::kThreads, sm90::CodesMemory<N>::kBytes, 1, sm90::kTile, args, work, args.q.sizes[0] * work.splits * (work.padded_heads / N), stream);
}

void choose_heads(const LatentDecodeArgs& args, const sm90::DecodeWorkspace& work, cudaStream_t stream) {
  if (args.list.q8.defined()) {
    if (work.block_heads == 16) return attend_codes<16>(args, work, stream);
    if (work.block_heads == 32) return attend_codes<32>(args, work, stream);
    return attend_codes<48>(args, work, stream);
  }
  const std::int64_t heads = args.q.sizes[1];
  if (heads <= 16) attend_list<16, 1>(args, work, stream);
  else if (heads <= 32) attend_list<32, 1>(args, work, stream);
  else if (heads <= 48) attend_list<48, 1>(args, work, stream);
  else if (heads <= 64) attend_list<64, 1>(args, work, stream);
  else if (heads <= 96) attend_list<48, 2>(args, work, stream);
  else attend_list<64, 2>(args, work, stream);
}

}  // namespace

void latent_decode(const LatentDecodeArgs& args, std::int64_t max_length, void* stream) {
  check_latent_decode(args, max_length);
  const std::int64_t rows = args.q.sizes[0];
  if (rows == 0) return;
  const auto where = static_cast<cudaStream_t>(stream);
  const auto heads = static_cast<unsigned>(args.q.sizes[1]), groups = static_cast<unsigned>((rows + sm90::kRowGroup - 1) / sm90::kRowGroup);
  const sm90::DecodeWorkspace work = workspace(args, max_length);
  const auto absorb = args.list.q8.defined() ? sm90::absorb_queries_for_codes : sm90::absorb_queries;
  launch_early(absorb, dim3(2, static_cast<unsigned>(work.padded_heads + (args.kv_a.defined() ? 1 : 0)), groups), 256, 0, where, kName, args, work);
  choose_heads(args, work, where);
  if (groups > 1) launch_early(sm90::finish_rows, dim3(heads, groups), 256, sizeof(sm90::FinishMemory), where, kName, args, work);
  else launch_early(sm90::finish_row, dim3(heads, 4, static_cast<unsigned>(rows)), 256, 0, where, kName, args, work);
}

}  // namespace palimpsest::cuda
