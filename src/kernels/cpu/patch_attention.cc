// Attention of all patches of a picture to all of them.
//
// A task is one head and a run of kQueryRows query rows. Keys are transposed kLatentKeyBlock at a time, so that they lie along the lanes; values are
// used where they are. A row's sums run over the key blocks in order, whatever the rows beside it and whichever thread computes it.
// Tiles of a task (D = 128): transposed keys 32 KB, scores 2 KB, read with kQueryRows rows of q and o (128 KB).

#include <algorithm>

#include "kernels/cpu/latent_tasks.h"
#include "kernels/cpu/vision_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/patch_attention.cc"
#include "hwy/foreach_target.h"
//
#include "hwy/highway.h"
#include "kernels/cpu/latent_softmax-inl.h"

namespace palimpsest::cpu {
#ifndef PALIMPSEST_KERNELS_CPU_PATCH_ATTENTION_
#define PALIMPSEST_KERNELS_CPU_PATCH_ATTENTION_
inline constexpr std::int64_t kQueryRows = 128;
/// Query rows [begin, end) of one head.
struct PatchTask {
  std::int64_t head, begin, end;
};
#endif
}  // namespace palimpsest::cpu

HWY_BEFORE_NAMESPACE();
namespace palimpsest::cpu {
namespace HWY_NAMESPACE {

struct PatchTiles {
  PatchTiles(std::int64_t width, std::byte* memory) {
    ScratchCursor scratch(memory);
    keys_t = scratch.take<float>(width * kLatentKeyBlock);
    scores = scratch.take<float>(kTileRows * kLatentKeyBlock);
    max = scratch.take<float>(kQueryRows);
    sum = scratch.take<float>(kQueryRows);
    key_rows = scratch.take<const float*>(width);
    value_rows = scratch.take<const float*>(kLatentKeyBlock);
    for (std::int64_t c = 0; c < width; ++c) key_rows[c] = keys_t + c * kLatentKeyBlock;
  }
  static std::int64_t bytes(std::int64_t width) {
    const auto floats = [](std::int64_t n) { return ScratchCursor::bytes<float>(n); };
    return floats(width * kLatentKeyBlock) + floats(kTileRows * kLatentKeyBlock) + 2 * floats(kQueryRows) + ScratchCursor::bytes<float*>(width) +
           ScratchCursor::bytes<float*>(kLatentKeyBlock);
  }
  float *keys_t, *scores, *max, *sum;
  const float **key_rows, **value_rows;
};

/// Keys and values [first, first + count) of a head; behind the last key, copies of it.
HWY_INLINE void load_block(const PatchAttentionArgs& args, std::int64_t head, std::int64_t first, std::int64_t count, PatchTiles& tiles) {
  for (std::int64_t j = 0; j < kLatentKeyBlock; j += 4) {
    const float* four[4];
    for (int i = 0; i < 4; ++i) four[i] = args.k.at<float>(first + std::min(j + i, count - 1), head);
    transpose4(four, args.k.size(2), tiles.keys_t + j, kLatentKeyBlock);
  }
  for (std::int64_t j = 0; j < count; ++j) tiles.value_rows[j] = args.v.at<float>(first + j, head);
}

/// `count` query rows from `row` on against the block that is loaded.
HWY_INLINE void attend_block(const PatchAttentionArgs& args, const PatchTask& task, std::int64_t row, std::int64_t count, bool first_block,
                             std::int64_t keys, PatchTiles& tiles) {
  const std::int64_t width = args.q.size(2);
  const float *q[kTileRows], *weights[kTileRows];
  float *scores[kTileRows], *o[kTileRows], carry[kTileRows];
  for (std::int64_t m = 0; m < count; ++m) {
    q[m] = args.q.at<float>(row + m, task.head);
    o[m] = args.o.at<float>(row + m, task.head);
    weights[m] = scores[m] = tiles.scores + m * kLatentKeyBlock;
  }
  outer_product({q, 0, tiles.key_rows, width, scores, nullptr}, count, round_up(keys, std::min(2 * lanes(), kLatentKeyBlock)));
  for (std::int64_t m = 0; m < count; ++m) {
    carry[m] = softmax_step(scores[m], keys, args.scale, tiles.max[row + m - task.begin], tiles.sum[row + m - task.begin]);
  }
  outer_product({weights, 0, tiles.value_rows, keys, o, first_block ? nullptr : carry}, count, width);
}

void AttendPatches(const PatchAttentionArgs& args, const PatchTask& task, std::byte* memory) {
  const std::int64_t width = args.q.size(2), keys = args.k.size(0);
  PatchTiles tiles(width, memory);
  std::fill_n(tiles.max, kQueryRows, kMinusInfinity);
  std::fill_n(tiles.sum, kQueryRows, 0.0f);
  for (std::int64_t block = 0; block < keys; block += kLatentKeyBlock) {
    const std::int64_t count = std::min(kLatentKeyBlock, keys - block);
    load_block(args, task.head, block, count, tiles);
    for (std::int64_t row = task.begin; row < task.end; row += kTileRows) {
      attend_block(args, task, row, std::min<std::int64_t>(kTileRows, task.end - row), block == 0, count, tiles);
    }
  }
  for (std::int64_t row = task.begin; row < task.end; ++row) {
    float* o = args.o.at<float>(row, task.head);
    const float inverse = 1 / tiles.sum[row - task.begin];
    for (std::int64_t c = 0; c < width; ++c) o[c] *= inverse;
  }
}

std::int64_t PatchScratchBytes(std::int64_t width) { return PatchTiles::bytes(width); }

}  // namespace HWY_NAMESPACE
}  // namespace palimpsest::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace palimpsest::cpu {

HWY_EXPORT(AttendPatches);
HWY_EXPORT(PatchScratchBytes);

void patch_attention(ExecContext& ctx, const PatchAttentionArgs& args) {
  const std::int64_t rows = args.q.size(0), runs = (rows + kQueryRows - 1) / kQueryRows;
  const std::int64_t bytes = HWY_DYNAMIC_DISPATCH(PatchScratchBytes)(args.q.size(2));
  ctx.pool.parallel_for(runs * args.q.size(1), 1, [&](std::int64_t begin, std::int64_t end, int thread) {
    std::byte* scratch = ctx.thread_scratch(thread, bytes);
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t at = i % runs * kQueryRows;
      HWY_DYNAMIC_DISPATCH(AttendPatches)(args, {i / runs, at, std::min(rows, at + kQueryRows)}, scratch);
    }
  });
}

}  // namespace palimpsest::cpu
#endif  // HWY_ONCE
