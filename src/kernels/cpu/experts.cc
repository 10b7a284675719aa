// y[t] = sum_j weights[t,j] * w2 glu(w1 x[t], w3 x[t]) over the experts ids[t,j].
//
// The pairs (t, j) are sorted by expert, so that an expert's rows form one matrix product and its
// weights are read once a batch. Three passes, each one parallel loop over all experts: hidden =
// glu(w1 x, w3 x); out = w2 hidden; y = the weighted sum of a token's rows of out in the order j =
// 0, 1, ... The first two split the weight rows of the active experts among the threads by their
// cost, so a single token with a few experts uses all threads too. Products come from matmul_part,
// whose outputs do not depend on the other rows: a token's bits are the same alone and in any
// batch.

#include "kernels/cpu/experts.h"

#include <algorithm>

#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/glu_rows.h"
#include "kernels/cpu/matmul.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/experts.cc"
#include <hwy/foreach_target.h>
//
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace palimpsest::cpu {
namespace HWY_NAMESPACE {

/// y[c] = sum_j weights[j] * rows[position[j] * width + c] for c < width.
void WeightedSum(const float* rows, std::int64_t width, const std::int32_t* position,
                 const float* weights, std::int64_t top_k, float* y) {
  const hn::ScalableTag<float> d;
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto sum = [&](auto tag, std::int64_t c) HWY_ATTR {
    auto acc = hn::Zero(tag);
    for (std::int64_t j = 0; j < top_k; ++j) {
      acc =
          hn::MulAdd(hn::Set(tag, weights[j]), hn::LoadU(tag, rows + position[j] * width + c), acc);
    }
    hn::StoreU(acc, tag, y + c);
  };
  std::int64_t c = 0;
  for (; c + lanes <= width; c += lanes) sum(d, c);
  for (; c < width; ++c) sum(hn::CappedTag<float, 1>(), c);
}

}  // namespace HWY_NAMESPACE
}  // namespace palimpsest::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace palimpsest::cpu {

HWY_EXPORT(WeightedSum);

namespace {

constexpr std::int64_t kChunkRows = 128,
                       kChunkColumns = 256;     ///< piece of w1 x and w3 x in a thread's scratch
constexpr std::int64_t kMinimumWork = 1 << 15;  ///< multiply-adds worth a thread

constexpr std::int64_t align(std::int64_t bytes) {
  return (bytes + Arena::kAlignment - 1) / Arena::kAlignment * Arena::kAlignment;
}

/// The pairs (t, j), sorted by expert.
struct Grouping {
  std::int64_t active = 0;  ///< experts with at least one pair
  std::int32_t* expert;     ///< [active] ascending
  std::int32_t* first;      ///< [active + 1] first sorted pair of each
  std::int32_t* token;      ///< [T * top_k] token of each sorted pair
  std::int32_t* position;   ///< [T * top_k] where pair t * top_k + j went
};

/// `count`: [num_experts] scratch.
void group_by_expert(const ExpertsArgs& args, std::int32_t* count, Grouping& g) {
  const auto* ids = args.ids.as<std::int32_t>();
  const std::int64_t top_k = args.ids.size(1), pairs = args.ids.size(0) * top_k;
  std::fill_n(count, args.num_experts, 0);
  for (std::int64_t i = 0; i < pairs; ++i) ++count[ids[i]];
  std::int32_t next = 0;
  for (std::int64_t e = 0; e < args.num_experts; ++e) {
    if (count[e] == 0) continue;
    g.expert[g.active] = static_cast<std::int32_t>(e);
    g.first[g.active++] = next;
    next += count[e];
    count[e] = next - count[e];  // from here on: where the expert's next pair goes
  }
  g.first[g.active] = next;
  for (std::int64_t i = 0; i < pairs; ++i) {
    const std::int32_t p = count[ids[i]]++;
    g.position[i] = p;
    g.token[p] = static_cast<std::int32_t>(i / top_k);
  }
}

/// Splits n weight rows of each active expert into `parts` shares of about equal cost and calls
/// f(index of the active expert, begin, end) for those of one share. Borders lie on multiples of
/// kMatmulRowGrain.
template <class F>
void for_each_in_share(const Grouping& g, std::int64_t n, std::int64_t part, std::int64_t parts,
                       F f) {
  // A weight row costs its decoding, about as much as four rows of x, and a dot product with each
  // row of x.
  const auto row_cost = [&](std::int64_t a) { return 4 + g.first[a + 1] - g.first[a]; };
  const std::int64_t total = n * (4 * g.active + g.first[g.active]);
  const std::int64_t low = total * part / parts, high = total * (part + 1) / parts;
  std::int64_t start = 0;
  for (std::int64_t a = 0; a < g.active; ++a) {
    const std::int64_t cost = row_cost(a);
    const auto border = [&](std::int64_t at) {
      const std::int64_t row = std::clamp<std::int64_t>((at - start) / cost, 0, n);
      return row == n ? n : row / kMatmulRowGrain * kMatmulRowGrain;
    };
    const std::int64_t begin = border(low), end = border(high);
    if (begin < end) f(a, begin, end);
    start += n * cost;
  }
}

struct Experts {
  const ExpertsArgs& args;
  const Grouping& g;
  std::int64_t width, inter;
  float* hidden;  ///< [T * top_k, inter]
  float* out;     ///< [T * top_k, width]
  Activations activations;

  /// hidden rows of one active expert, columns [begin, end)
  void gate_and_up(std::int64_t a, std::int64_t begin, std::int64_t end, std::byte* scratch) const {
    const ExpertMatrices& expert = args.experts[g.expert[a]];
    float* const gate = reinterpret_cast<float*>(scratch);
    float* const up = gate + kChunkRows * kChunkColumns;
    std::byte* const tiles = scratch + 2 * kChunkRows * kChunkColumns * 4;
    for (std::int64_t r = g.first[a]; r < g.first[a + 1]; r += kChunkRows) {
      const std::int64_t rows = std::min<std::int64_t>(kChunkRows, g.first[a + 1] - r);
      for (std::int64_t n = begin; n < end; n += kChunkColumns) {
        const std::int64_t columns = std::min(kChunkColumns, end - n);
        MatmulPart part{.x = args.x.as<float>(),
                        .x_stride = args.x.stride(0),
                        .row_index = g.token + r,
                        .rows = rows,
                        .w = expert.w1,
                        .begin = n,
                        .end = n + columns,
                        .y = gate,
                        .y_stride = columns,
                        .activations = activations};
        matmul_part(part, tiles);
        part.w = expert.w3;
        part.y = up;
        matmul_part(part, tiles);
        for (std::int64_t i = 0; i < rows; ++i) {
          glu_rows(gate + i * columns, up + i * columns, hidden + (r + i) * inter + n, columns,
                   args.glu);
        }
      }
    }
  }

  /// out rows of one active expert, columns [begin, end)
  void down(std::int64_t a, std::int64_t begin, std::int64_t end, std::byte* scratch) const {
    matmul_part({.x = hidden + g.first[a] * inter,
                 .x_stride = inter,
                 .rows = g.first[a + 1] - g.first[a],
                 .w = args.experts[g.expert[a]].w2,
                 .begin = begin,
                 .end = end,
                 .y = out + g.first[a] * width + begin,
                 .y_stride = width,
                 .activations = activations},
                scratch);
  }

  void weighted_sum(std::int64_t t) const {
    const std::int64_t top_k = args.ids.size(1);
    HWY_DYNAMIC_DISPATCH(WeightedSum)
    (out, width, g.position + t * top_k, args.weights.as<float>() + t * top_k, top_k,
     args.y.at<float>(t));
  }
};

}  // namespace

std::int64_t experts_workspace_bytes(std::int64_t tokens, std::int64_t top_k, std::int64_t width,
                                     std::int64_t inter, std::int64_t num_experts) {
  const std::int64_t pairs = tokens * top_k;
  return 2 * align(pairs * 4) + align(num_experts * 4) + 2 * align((num_experts + 1) * 4) +
         align(pairs * inter * 4) + align(pairs * width * 4);
}

std::int64_t experts_scratch_bytes(std::int64_t width, std::int64_t inter) {
  return std::max(matmul_scratch_bytes(width), matmul_scratch_bytes(inter)) +
         2 * kChunkRows * kChunkColumns * 4 + 64;
}

void experts(ExecContext& ctx, const ExpertsArgs& args) {
  const std::int64_t tokens = args.x.size(0), width = args.x.size(1), top_k = args.ids.size(1),
                     pairs = tokens * top_k;
  if (pairs == 0) {
    for (std::int64_t t = 0; t < tokens; ++t) std::fill_n(args.y.at<float>(t), width, 0.0f);
    return;
  }
  const std::int64_t inter = args.experts[args.ids.as<std::int32_t>()[0]].w1.rows();
  const ArenaScope scope(ctx.workspace);
  const auto take_ints = [&](std::int64_t n) {
    return ctx.workspace.allocate(DType::kI32, {n}).as<std::int32_t>();
  };
  Grouping g{.expert = take_ints(args.num_experts + 1),
             .first = take_ints(args.num_experts + 1),
             .token = take_ints(pairs),
             .position = take_ints(pairs)};
  group_by_expert(args, take_ints(args.num_experts), g);
  const Experts e{args,
                  g,
                  width,
                  inter,
                  ctx.workspace.allocate(DType::kF32, {pairs, inter}).as<float>(),
                  ctx.workspace.allocate(DType::kF32, {pairs, width}).as<float>(),
                  ctx.activations};

  const std::int64_t parts =
      std::clamp<std::int64_t>(pairs * width * inter / kMinimumWork, 1, ctx.pool.size());
  const std::int64_t scratch_bytes = experts_scratch_bytes(width, inter);
  const auto pass = [&](std::int64_t n, auto work) {
    ctx.pool.parallel_for(parts, 1, [&](std::int64_t begin, std::int64_t end, int thread) {
      std::byte* const scratch = ctx.thread_scratch(thread, scratch_bytes);
      for (std::int64_t p = begin; p < end; ++p) {
        for_each_in_share(g, n, p, parts, [&](std::int64_t a, std::int64_t from, std::int64_t to) {
          work(a, from, to, scratch);
        });
      }
    });
  };
  pass(inter, [&](auto... a) { e.gate_and_up(a...); });
  pass(width, [&](auto... a) { e.down(a...); });
  ctx.pool.parallel_for(
      tokens, std::max<std::int64_t>(1, kMinimumWork / (top_k * width)),
      [&](std::int64_t begin, std::int64_t end, int) {
        for (std::int64_t t = begin; t < end; ++t) e.weighted_sum(t);
      });
}

}  // namespace palimpsest::cpu
#endif  // HWY_ONCE
