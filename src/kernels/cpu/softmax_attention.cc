// Causal softmax attention with grouped keys and values.
//
// A task is one sequence, one key-value head and a run of query rows: all G = H / Hkv query heads of those rows share every key block that is
// read. Key blocks of kLatentKeyBlock positions lie on a fixed grid and are walked in order with an online softmax; a row's sums do not
// depend on the rows beside it, on the thread, or on keys after its own position.
// Tiles of a task (dk = dv = 128): keys and values of a block 64 KB, scores 2 KB.

#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/latent_tasks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/softmax_attention.cc"
#include "hwy/foreach_target.h"
//
#include "hwy/highway.h"
#include "kernels/cpu/latent_softmax-inl.h"

namespace palimpsest::cpu {
#ifndef PALIMPSEST_KERNELS_CPU_SOFTMAX_ATTENTION_TASK_
#define PALIMPSEST_KERNELS_CPU_SOFTMAX_ATTENTION_TASK_
/// Query rows [begin, end) of one sequence against one key-value head.
struct SoftmaxTask {
  std::int64_t sequence, kv_head;
  std::int64_t begin, end;  ///< relative to the sequence's first row in the batch
};
inline constexpr std::int64_t kSoftmaxRows = 16;  ///< query rows of a task
#endif
}  // namespace palimpsest::cpu

HWY_BEFORE_NAMESPACE();
namespace palimpsest::cpu {
namespace HWY_NAMESPACE {

/// Memory of one task. "Heads" below are (row, query head of the group) pairs, row-major.
struct SoftmaxTiles {
  SoftmaxTiles(std::int64_t heads, std::int64_t dk, std::int64_t dv, std::byte* memory) {
    ScratchCursor scratch(memory);
    queries = scratch.take<float>(heads * LatentShape::padded(dk));
    keys = scratch.take<float>(kLatentKeyBlock * dk);
    values = scratch.take<float>(kLatentKeyBlock * dv);
    scores = scratch.take<float>(heads * kLatentKeyBlock);
    max = scratch.take<float>(heads);
    sum = scratch.take<float>(heads);
    carry = scratch.take<float>(heads);
    q = scratch.take<const float*>(heads);
    weights = scratch.take<const float*>(heads);
    s = scratch.take<float*>(heads);
    o = scratch.take<float*>(heads);
    value_rows = scratch.take<const float*>(kLatentKeyBlock);
  }
  static std::int64_t bytes(std::int64_t heads, std::int64_t dk, std::int64_t dv) {
    const auto floats = [](std::int64_t n) { return ScratchCursor::bytes<float>(n); };
    return floats(heads * LatentShape::padded(dk)) + floats(kLatentKeyBlock * dk) + floats(kLatentKeyBlock * dv) +
           floats(heads * kLatentKeyBlock) + 3 * floats(heads) + 4 * ScratchCursor::bytes<float*>(heads) +
           ScratchCursor::bytes<float*>(kLatentKeyBlock);
  }
  float *queries, *keys, *values, *scores, *max, *sum, *carry;
  const float **q, **weights, **value_rows;
  float **s, **o;
};

/// Keys and values [first, first + count) of one head as F32; zeros behind the last.
HWY_INLINE void load_block(const SoftmaxAttentionArgs& args, const SoftmaxTask& task, std::int64_t first, std::int64_t count, SoftmaxTiles& tiles) {
  const std::int64_t dk = args.q.size(2), dv = args.o.size(2);
  const std::int32_t* table = args.list.table.at<std::int32_t>(args.rows.slots.as<std::int32_t>()[task.sequence]);
  const std::int64_t key = task.kv_head * dk, value = args.num_kv_heads * dk + task.kv_head * dv;
  const auto load = [&](std::int64_t position, std::int64_t column, std::int64_t n, float* to) HWY_ATTR {
    const float* from = list_columns(args.list, table, position, column, n, to);
    if (from != to) std::memcpy(to, from, static_cast<std::size_t>(n) * sizeof(float));
  };
  for (std::int64_t i = 0; i < count; ++i) {
    load(first + i, key, dk, tiles.keys + i * dk);
    load(first + i, value, dv, tiles.values + i * dv);
  }
  std::fill(tiles.keys + count * dk, tiles.keys + kLatentKeyBlock * dk, 0.0f);
  std::fill(tiles.values + count * dv, tiles.values + kLatentKeyBlock * dv, 0.0f);
}

/// scores[h, j] = q_h k_j for the first round_up(keys, kDotCols) keys of the block.
HWY_INLINE void score_block(std::int64_t heads, std::int64_t dk, std::int64_t keys, SoftmaxTiles& tiles) {
  for (std::int64_t j = 0; j < keys; j += kDotCols) {
    const float* k[kDotCols];
    for (int c = 0; c < kDotCols; ++c) k[c] = tiles.keys + (j + c) * dk;
    for (std::int64_t h = 0; h < heads; ++h) tiles.s[h] = tiles.scores + h * kLatentKeyBlock + j;
    dot_rows(tiles.q, heads, k, dk, tiles.s);
  }
}

void AttendSoftmax(const SoftmaxAttentionArgs& args, const SoftmaxTask& task, std::byte* memory) {
  const std::int64_t dk = args.q.size(2), dv = args.o.size(2), group = args.q.size(1) / args.num_kv_heads;
  const std::int64_t heads = (task.end - task.begin) * group, past = args.past.as<std::int64_t>()[task.sequence];
  const std::int64_t first_row = args.rows.cu_seqlens.as<std::int64_t>()[task.sequence] + task.begin;
  SoftmaxTiles tiles(heads, dk, dv, memory);
  std::fill_n(tiles.queries, heads * LatentShape::padded(dk), 0.0f);
  for (std::int64_t h = 0; h < heads; ++h) {
    float* query = tiles.queries + h * LatentShape::padded(dk);
    std::memcpy(query, args.q.at<float>(first_row + h / group, task.kv_head * group + h % group), static_cast<std::size_t>(dk) * sizeof(float));
    tiles.q[h] = query;
    tiles.weights[h] = tiles.scores + h * kLatentKeyBlock;
    tiles.o[h] = args.o.at<float>(first_row + h / group, task.kv_head * group + h % group);
    tiles.max[h] = kMinusInfinity;
    tiles.sum[h] = 0;
  }
  for (std::int64_t j = 0; j < kLatentKeyBlock; ++j) tiles.value_rows[j] = tiles.values + j * dv;

  for (std::int64_t block = 0; block < past + task.end; block += kLatentKeyBlock) {
    const std::int64_t keys = std::min(kLatentKeyBlock, past + task.end - block);
    load_block(args, task, block, keys, tiles);
    score_block(heads, dk, keys, tiles);
    for (std::int64_t h = 0; h < heads; ++h) {
      const std::int64_t visible = past + task.begin + h / group + 1 - block;
      tiles.carry[h] = softmax_step(tiles.scores + h * kLatentKeyBlock, std::min(kLatentKeyBlock, visible), args.scale, tiles.max[h], tiles.sum[h]);
    }
    outer_product({tiles.weights, 0, tiles.value_rows, keys, tiles.o, block == 0 ? nullptr : tiles.carry}, heads, dv);
  }
  for (std::int64_t h = 0; h < heads; ++h) {
    const float inverse = 1 / tiles.sum[h];
    for (std::int64_t c = 0; c < dv; ++c) tiles.o[h][c] *= inverse;
  }
}

std::int64_t SoftmaxScratchBytes(std::int64_t heads, std::int64_t dk, std::int64_t dv) {
  return SoftmaxTiles::bytes(heads, dk, dv);
}

}  // namespace HWY_NAMESPACE
}  // namespace palimpsest::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace palimpsest::cpu {

HWY_EXPORT(AttendSoftmax);
HWY_EXPORT(SoftmaxScratchBytes);

namespace {

/// Tasks are numbered sequence by sequence, head by head, run by run. Calls f for tasks [begin, end).
template <class F>
void for_each_task(const SoftmaxAttentionArgs& args, std::int64_t begin, std::int64_t end, F f) {
  const std::int64_t* cu = args.rows.cu_seqlens.as<std::int64_t>();
  std::int64_t start = 0;
  for (std::int64_t n = 0; n < args.rows.slots.size(0) && start < end; ++n) {
    const std::int64_t rows = cu[n + 1] - cu[n], runs = (rows + kSoftmaxRows - 1) / kSoftmaxRows, count = runs * args.num_kv_heads;
    for (std::int64_t i = std::max<std::int64_t>(0, begin - start); i < std::min(count, end - start); ++i) {
      // Long and short runs of a sequence alternate, so that contiguous shares cost about the same.
      const std::int64_t run = i % runs, at = (run % 2 == 0 ? run / 2 : runs - 1 - run / 2) * kSoftmaxRows;
      f(SoftmaxTask{n, i / runs, at, std::min(rows, at + kSoftmaxRows)});
    }
    start += count;
  }
}

}  // namespace

void softmax_attention(ExecContext& ctx, const SoftmaxAttentionArgs& args) {
  const std::int64_t* cu = args.rows.cu_seqlens.as<std::int64_t>();
  std::int64_t tasks = 0, most_rows = 0;
  for (std::int64_t n = 0; n < args.rows.slots.size(0); ++n) {
    const std::int64_t rows = cu[n + 1] - cu[n];
    tasks += (rows + kSoftmaxRows - 1) / kSoftmaxRows * args.num_kv_heads;
    most_rows = std::max(most_rows, std::min(rows, kSoftmaxRows));
  }
  const std::int64_t heads = most_rows * (args.q.size(1) / args.num_kv_heads);
  const std::int64_t bytes = HWY_DYNAMIC_DISPATCH(SoftmaxScratchBytes)(heads, args.q.size(2), args.o.size(2));
  ctx.pool.parallel_for(tasks, 1, [&](std::int64_t begin, std::int64_t end, int thread) {
    std::byte* scratch = ctx.thread_scratch(thread, bytes);
    for_each_task(args, begin, end, [&](const SoftmaxTask& task) { HWY_DYNAMIC_DISPATCH(AttendSoftmax)(args, task, scratch); });
  });
}

}  // namespace palimpsest::cpu
#endif  // HWY_ONCE
