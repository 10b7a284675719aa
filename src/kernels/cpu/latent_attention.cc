// Multi-head latent attention on the CPU: how a ragged batch becomes tasks. Formula and shapes: kernels/op_args.h; the vector code:
// latent_materialized-inl.h and latent_absorbed-inl.h.
//
// Work is cut into one equal share a thread. A cut may fall anywhere (between rows, heads, splits), because every row walks its key
// blocks in the same order whoever computes it.

#include "kernels/cpu/latent_attention.h"

#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/latent_tasks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/latent_attention.cc"
#include "hwy/foreach_target.h"
//
#include "hwy/highway.h"
#include "kernels/cpu/latent_absorbed-inl.h"
#include "kernels/cpu/latent_materialized-inl.h"

#if HWY_ONCE
#include <algorithm>
#include <array>
namespace palimpsest::cpu {
namespace {

HWY_EXPORT(AttendMaterialized);
HWY_EXPORT(FoldQueries);
HWY_EXPORT(AttendAbsorbed);
HWY_EXPORT(MergeAndProject);

constexpr std::int64_t kLargestTile = 16;  // rows of any target's register tile or decoded weight tile

LatentShape shape_of(const LatentAttentionArgs& args) {
  LatentShape shape{};
  shape.heads = args.q.size(1);
  shape.r = args.kv_b.cols();
  shape.p = args.list.width() - shape.r;
  shape.dn = args.q.size(2) - shape.p;
  shape.dv = args.o.size(2);
  return shape;
}

std::int64_t rows_of(const LatentAttentionArgs& args, std::int64_t n) {
  const std::int64_t* cu = args.rows.cu_seqlens.as<std::int64_t>();
  return cu[n + 1] - cu[n];
}

/// Rows of a sequence in the materialised form; the absorbed ones follow them.
std::int64_t materialized_rows(const LatentAttentionArgs& args, const LatentShape& shape, std::int64_t n) {
  const std::int64_t past = args.past.as<std::int64_t>()[n], rows = rows_of(args, n);
  switch (args.form) {
    case LatentForm::kAuto: return prefers_absorbed(shape, past, rows) ? 0 : rows;
    case LatentForm::kAbsorbed: return 0;
    case LatentForm::kMaterialized: return rows;
    case LatentForm::kByRows: break;
  }
  return rows <= kAbsorbedRows ? 0 : std::max<std::int64_t>(0, (past + rows) / kLatentFormGrid * kLatentFormGrid - past);
}

/// Where the share of thread `t` begins in `total` units of work.
std::int64_t share_begin(std::int64_t total, int t, int threads) {
  return total / threads * t + total % threads * t / threads;
}

// ---- materialised ----

/// The row at which a share that begins after `pairs` pairs begins: a whole number of tiles, non-decreasing in `pairs`.
std::int64_t row_at(std::int64_t past, std::int64_t rows, std::int64_t pairs) {
  if (pairs >= attended_pairs(past, rows)) return rows;
  std::int64_t low = 0, high = rows;
  while (low < high) {
    const std::int64_t middle = (low + high) / 2;
    if (attended_pairs(past, middle) < pairs) low = middle + 1;
    else high = middle;
  }
  return low / kLargestTile * kLargestTile;
}

void attend_materialized(ExecContext& ctx, const LatentAttentionArgs& args, const LatentShape& shape) {
  const std::int64_t sequences = args.rows.slots.size(0), most_rows = materialized_task_rows(shape);
  const std::int64_t* past = args.past.as<std::int64_t>();
  std::int64_t total = 0, max_rows = 0;
  for (std::int64_t n = 0; n < sequences; ++n) {
    const std::int64_t rows = materialized_rows(args, shape, n);
    total += shape.heads * attended_pairs(past[n], rows);
    max_rows = std::max(max_rows, rows);
  }
  if (total == 0) return;
  const std::int64_t scratch_bytes = materialized_scratch_bytes(shape, std::min(max_rows, most_rows));
  const auto share = [&](int t, int thread) {
    const std::int64_t share_first = share_begin(total, t, ctx.pool.size());
    const std::int64_t share_last = share_begin(total, t + 1, ctx.pool.size());
    std::byte* scratch = ctx.thread_scratch(thread, scratch_bytes);
    std::int64_t start = 0;
    for (std::int64_t n = 0; n < sequences; ++n) {
      const std::int64_t rows = materialized_rows(args, shape, n), pairs = attended_pairs(past[n], rows);
      if (rows == 0) continue;
      for (std::int64_t head = 0; head < shape.heads; ++head, start += pairs) {
        if (start + pairs <= share_first || start >= share_last) continue;
        const std::int64_t first = share_first <= start ? 0 : row_at(past[n], rows, share_first - start);
        const std::int64_t last = row_at(past[n], rows, share_last - start);
        for (std::int64_t begin = first; begin < last; begin += most_rows) {
          const MaterializedTask task{n, head, begin, std::min(last, begin + most_rows)};
          HWY_DYNAMIC_DISPATCH(AttendMaterialized)(args, shape, task, scratch);
        }
      }
    }
  };
  ctx.pool.parallel_for(ctx.pool.size(), 1, [&](std::int64_t begin, std::int64_t end, int thread) {
    for (std::int64_t t = begin; t < end; ++t) share(static_cast<int>(t), thread);
  });
}

// ---- absorbed ----

/// Thread t's share of scoring the wave's lists: contiguous in the order group, split, head; a head costs as much as its split has keys.
void attend_share(ExecContext& ctx, const AbsorbedWave& wave, int t, int thread) {
  const std::int64_t heads = wave.shape.heads;
  std::int64_t total = 0;
  for (std::int64_t g = 0; g < wave.num_groups; ++g) total += wave.groups[g].length() * heads;
  const std::int64_t share_first = share_begin(total, t, ctx.pool.size());
  const std::int64_t share_last = share_begin(total, t + 1, ctx.pool.size());
  std::byte* scratch = ctx.thread_scratch(thread, absorbed_scratch_bytes(wave.shape, wave.num_rows));
  std::int64_t start = 0;
  for (std::int64_t g = 0; g < wave.num_groups; ++g) {
    const AbsorbedGroup& group = wave.groups[g];
    for (std::int64_t split = 0; split < group.splits(); ++split) {
      const std::int64_t keys = group.split_end(split) - latent_split_begin(split);
      const auto head_at = [&](std::int64_t cut) { return std::clamp<std::int64_t>((cut - start + keys / 2) / keys, 0, heads); };
      const std::int64_t begin = share_first <= start ? 0 : head_at(share_first);
      const std::int64_t end = share_last <= start ? 0 : head_at(share_last);
      if (begin < end) HWY_DYNAMIC_DISPATCH(AttendAbsorbed)(wave, group, split, begin, end, scratch);
      start += keys * heads;
    }
  }
}

void compute_wave(ExecContext& ctx, AbsorbedWave& wave) {
  const LatentShape& shape = wave.shape;
  const AbsorbedGroup& last = wave.groups[wave.num_groups - 1];
  const std::int64_t partial_rows = last.partial_row + last.splits() * shape.heads * last.rows;
  const ArenaScope scope(ctx.workspace);
  wave.queries = ctx.workspace.allocate(DType::kF32, {wave.num_rows * shape.heads, LatentShape::padded(shape.width())}).as<float>();
  wave.partials = ctx.workspace.allocate(DType::kF32, {partial_rows, LatentShape::padded(shape.r)}).as<float>();
  wave.max_sum = ctx.workspace.allocate(DType::kF32, {partial_rows, 2}).as<float>();
  const std::int64_t scratch_bytes = absorbed_scratch_bytes(shape, wave.num_rows);
  ctx.pool.parallel_for(shape.heads, 1, [&](std::int64_t begin, std::int64_t end, int thread) {
    std::byte* scratch = ctx.thread_scratch(thread, scratch_bytes);
    for (std::int64_t head = begin; head < end; ++head) HWY_DYNAMIC_DISPATCH(FoldQueries)(wave, head, scratch);
  });
  ctx.pool.parallel_for(ctx.pool.size(), 1, [&](std::int64_t begin, std::int64_t end, int thread) {
    for (std::int64_t t = begin; t < end; ++t) attend_share(ctx, wave, static_cast<int>(t), thread);
  });
  ctx.pool.parallel_for(shape.heads, 1, [&](std::int64_t begin, std::int64_t end, int thread) {
    std::byte* scratch = ctx.thread_scratch(thread, scratch_bytes);
    for (std::int64_t head = begin; head < end; ++head) HWY_DYNAMIC_DISPATCH(MergeAndProject)(wave, head, scratch);
  });
}

void attend_absorbed(ExecContext& ctx, const LatentAttentionArgs& args, const LatentShape& shape) {
  std::array<AbsorbedGroup, kLatentWavePairs> groups;  // every group has at least one pair
  AbsorbedWave wave{&args, shape, groups.data(), 0, 0, nullptr, nullptr, nullptr};
  std::int64_t pairs = 0;
  for (std::int64_t n = 0; n < args.rows.slots.size(0); ++n) {
    const std::int64_t rows = rows_of(args, n);
    for (std::int64_t i = materialized_rows(args, shape, n); i < rows; i += kAbsorbedRows) {
      AbsorbedGroup group{n, args.rows.cu_seqlens.as<std::int64_t>()[n] + i, args.past.as<std::int64_t>()[n] + i,
                          std::min(kAbsorbedRows, rows - i), 0, 0};
      const std::int64_t added = group.rows * group.splits();
      if (wave.num_groups > 0 && pairs + added > kLatentWavePairs) {
        compute_wave(ctx, wave);
        wave.num_groups = wave.num_rows = pairs = 0;
      }
      group.query_row = wave.num_rows * shape.heads;
      group.partial_row = pairs * shape.heads;
      groups[static_cast<std::size_t>(wave.num_groups++)] = group;
      wave.num_rows += group.rows;
      pairs += added;
    }
  }
  if (wave.num_groups > 0) compute_wave(ctx, wave);
}

}  // namespace

std::int64_t materialized_scratch_bytes(const LatentShape& s, std::int64_t max_rows) {
  const auto floats = [](std::int64_t n) { return ScratchCursor::bytes<float>(n); };
  const auto up = [](std::int64_t n, std::int64_t to) { return (n + to - 1) / to * to; };
  const std::int64_t rows = up(max_rows, kLargestTile), values = up(s.dv, kLatentLargestPanel);
  return floats(kLatentKeyBlock * LatentShape::padded(s.width())) + floats((s.dn + s.dv + kLargestTile) * s.r) + floats(s.r * kLatentKeyBlock) +
         floats((up(s.dn, kLargestTile) + s.p) * kLatentKeyBlock) + 2 * floats(values * kLatentKeyBlock) + floats(rows * s.dq()) + floats(rows * values) +
         floats(kLatentRowGroup * kLatentKeyBlock) + floats(kLatentRowGroup) + 2 * floats(rows);
}

std::int64_t materialized_task_rows(const LatentShape& s) {
  constexpr std::int64_t kThreadScratch = 4 << 20, kMost = 2048;
  const std::int64_t without = materialized_scratch_bytes(s, 0), a_group = materialized_scratch_bytes(s, kLatentRowGroup) - without;
  return std::clamp((kThreadScratch - without) / a_group * kLatentRowGroup, kLatentRowGroup, kMost);
}

std::int64_t absorbed_scratch_bytes(const LatentShape& s, std::int64_t wave_rows) {
  const auto floats = [](std::int64_t n) { return ScratchCursor::bytes<float>(n); };
  const std::int64_t by_head = 2 * ScratchCursor::bytes<float*>(wave_rows) + floats(wave_rows) + floats(kLargestTile * s.r);
  const std::int64_t by_block = floats(kLatentKeyBlock * LatentShape::padded(s.width())) + floats(kLargestTile * kLatentKeyBlock);
  return std::max(by_head, by_block);
}

void latent_attention(ExecContext& ctx, const LatentAttentionArgs& args) {
  const LatentShape shape = shape_of(args);
  attend_materialized(ctx, args, shape);
  attend_absorbed(ctx, args, shape);
}

}  // namespace palimpsest::cpu
#endif  // HWY_ONCE
