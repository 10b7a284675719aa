// The page recurrence: cuts the batch into tasks and hands each to the step or the chunked form of
// its policy.

#include "kernels/cpu/page_memory.h"

#include "kernels/cpu/cpu_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/page_memory.cc"
#include <hwy/foreach_target.h>
//
#include <hwy/highway.h>

#include <algorithm>

#include "kernels/cpu/page_memory_chunk-inl.h"
#include "kernels/cpu/page_memory_step-inl.h"

HWY_BEFORE_NAMESPACE();
namespace palimpsest::cpu {
namespace HWY_NAMESPACE {

template <PageDecay kDecay, PageWrite kWrite>
void run_policy(const PageMemoryArgs& args, const PageTask* tasks, std::int64_t n, bool chunked,
                float* scratch) {
  if (!chunked) {
    for (std::int64_t i = 0; i < n; ++i)
      step_page<kDecay, kWrite>(args, tasks[i], Scratch{scratch});
  } else if (args.q.size(2) == 128) {
    chunk_pages<kDecay, kWrite, 128>(args, tasks, n, Scratch{scratch});
  } else {
    chunk_pages<kDecay, kWrite, 0>(args, tasks, n, Scratch{scratch});
  }
}

template <PageDecay kDecay>
void run_write(const PageMemoryArgs& args, const PageTask* tasks, std::int64_t n, bool chunked,
               float* scratch) {
  if (args.write == PageWrite::kDelta)
    run_policy<kDecay, PageWrite::kDelta>(args, tasks, n, chunked, scratch);
  else
    run_policy<kDecay, PageWrite::kPlain>(args, tasks, n, chunked, scratch);
}

/// `n` tasks of one sequence.
void RunPageTasks(const PageMemoryArgs& args, const PageTask* tasks, std::int64_t n, bool chunked,
                  float* scratch) {
  switch (args.decay) {
    case PageDecay::kNone:
      return run_write<PageDecay::kNone>(args, tasks, n, chunked, scratch);
    case PageDecay::kHead:
      return run_write<PageDecay::kHead>(args, tasks, n, chunked, scratch);
    case PageDecay::kChannel:
      return run_write<PageDecay::kChannel>(args, tasks, n, chunked, scratch);
  }
}

/// Bytes that a thread needs for `pages` tasks of `values` value channels.
std::int64_t PageScratchBytes(std::int64_t width, std::int64_t values, std::int64_t pages) {
  const std::int64_t floats =
      std::max(step_scratch_floats(width), chunk_scratch_floats(width, values, pages));
  return floats * static_cast<std::int64_t>(sizeof(float));
}

}  // namespace HWY_NAMESPACE
}  // namespace palimpsest::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace palimpsest::cpu {

HWY_EXPORT(RunPageTasks);
HWY_EXPORT(PageScratchBytes);

namespace {

constexpr std::int64_t kMostInTurn = 16;

/// Into how many ranges of value channels to cut a head, so that `heads * parts` units spread
/// evenly over the threads. A cut costs the preparation of a chunk once more, about 15% of the work
/// of a whole head.
std::int64_t parts_per_head(std::int64_t heads, std::int64_t values, std::int64_t threads) {
  const std::int64_t most = (values + kPageSlice - 1) / kPageSlice;
  std::int64_t best = 1;
  double best_cost = 0;
  for (std::int64_t parts = 1; parts <= most; ++parts) {
    const double units = static_cast<double>((heads * parts + threads - 1) / threads);
    const double cost = units * (1.0 / static_cast<double>(parts) + 0.15);
    if (parts == 1 || cost < best_cost) {
      best = parts;
      best_cost = cost;
    }
  }
  return best;
}

/// How many neighbouring heads take turns chunk by chunk. Their rows lie side by side, so what a
/// chunk reads of one brings the memory pages of all; their own pages have to stay in a core's
/// second cache.
std::int64_t heads_in_turn(std::int64_t width, std::int64_t values) {
  constexpr std::int64_t kFloats = 64 << 10;
  return std::clamp<std::int64_t>(kFloats / (page_padded(width) * page_padded(values)), 1,
                                  kMostInTurn);
}

}  // namespace

void page_memory(ExecContext& ctx, const PageMemoryArgs& args) {
  page_memory(ctx, args, {});
}

void page_memory(ExecContext& ctx, const PageMemoryArgs& args, const Tensor& written) {
  const std::int64_t sequences = args.rows.slots.size(0), heads = args.q.size(1),
                     value_heads = args.v.size(1), values = args.v.size(2);
  const std::int64_t parts = parts_per_head(value_heads, values, ctx.pool.size());
  const std::int64_t slices = (values + kPageSlice - 1) / kPageSlice,
                     part_values = (slices + parts - 1) / parts * kPageSlice;
  const std::int64_t in_turn = heads_in_turn(args.q.size(2), std::min(part_values, values));
  const std::int64_t bytes = HWY_DYNAMIC_DISPATCH(PageScratchBytes)(
      args.q.size(2), std::min(part_values, values), in_turn);
  const std::int64_t* cu = args.rows.cu_seqlens.as<const std::int64_t>();
  // Parts of heads outside, sequences inside: every thread gets its share of long and of short
  // sequences.
  ctx.pool.parallel_for(
      value_heads * parts, 1, [&](std::int64_t begin, std::int64_t end, int thread) {
        auto* scratch = reinterpret_cast<float*>(ctx.thread_scratch(thread, bytes));
        for (std::int64_t unit = begin; unit < end; unit += in_turn) {
          for (std::int64_t n = 0; n < sequences; ++n) {
            PageTask tasks[kMostInTurn];
            std::int64_t count = 0;
            for (std::int64_t u = unit; u < std::min(end, unit + in_turn); ++u) {
              PageTask& task = tasks[count];
              task.written = written.as<float>();
              task.first = cu[n];
              task.length = cu[n + 1] - cu[n];
              task.past = args.past.as<const std::int64_t>()[n];
              task.value_head = u / parts;
              task.head = task.value_head / (value_heads / heads);
              task.page = args.pages.at<float>(args.rows.slots.as<const std::int32_t>()[n],
                                               task.value_head);
              task.v_begin = u % parts * part_values;
              task.v_end = std::min(values, task.v_begin + part_values);
              if (task.length > 0 && task.v_begin < task.v_end) ++count;
            }
            if (count == 0) continue;
            const bool chunked = args.form == PageForm::kChunked ||
                                 (args.form == PageForm::kAuto && tasks->length > 1);
            HWY_DYNAMIC_DISPATCH(RunPageTasks)(args, tasks, count, chunked, scratch);
          }
        }
      });
}

}  // namespace palimpsest::cpu
#endif  // HWY_ONCE
