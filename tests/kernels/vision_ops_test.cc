#include "ops/vision_ops.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/elementwise_case.h"
#include "kernels/ref/vision.h"
#include "kernels/test_targets.h"

namespace palimpsest {
namespace {

using namespace test;

class PatchAttention : public EachTarget {};
PALIMPSEST_INSTANTIATE_FOR_EACH_TARGET(PatchAttention);

struct AttentionCase {
  std::int64_t queries, keys, heads, width;
  std::vector<float> q, k, v;

  AttentionCase(std::int64_t queries_in, std::int64_t keys_in, std::int64_t heads_in, std::int64_t width_in, double spread)
      : queries(queries_in), keys(keys_in), heads(heads_in), width(width_in),
        q(random_normal(queries * heads * width, 1, spread)), k(random_normal(keys * heads * width, 2)), v(random_normal(keys * heads * width, 3)) {}
  PatchAttentionArgs args() {
    return {.q = f32(q, {queries, heads, width}), .k = f32(k, {keys, heads, width}), .v = f32(v, {keys, heads, width}),
            .scale = 1 / std::sqrt(static_cast<float>(width)), .o = {}};
  }
  std::vector<float> run() {
    return run_guarded({queries, heads, width}, [&](ExecContext& ctx, const Tensor& o) {
      PatchAttentionArgs a = args();
      a.o = o;
      ops::patch_attention(ctx, a);
    });
  }
};

TEST_P(PatchAttention, MatchesReference) {
  struct Sizes {
    std::int64_t queries, keys, heads, width;
  };
  for (const Sizes& s : {Sizes{1, 1, 1, 4}, {7, 5, 2, 12}, {130, 64, 1, 16}, {9, 65, 3, 20}, {16, 63, 2, 128}, {5, 200, 1, 128}, {3, 129, 2, 6}, {0, 3, 2, 8}}) {
    for (const double spread : {1.0, 20.0}) {
      AttentionCase c(s.queries, s.keys, s.heads, s.width, spread);
      const auto got = c.run();
      std::vector<double> want(got.size());
      PatchAttentionArgs a = c.args();
      a.o = f64(want, {s.queries, s.heads, s.width});
      ref::patch_attention<double>(a);
      // A score is a sum of `width` products, at most about 4 spread sqrt(width) in magnitude once scaled; its error shifts a weight by that much,
      // relatively. Values are at most about 5.
      const auto width = static_cast<double>(s.width);
      const std::vector<double> magnitude(want.size(), 5 * (2 + 4 * spread * std::sqrt(width)));
      EXPECT_TRUE(within_bound(got, want, magnitude, {.c = width + static_cast<double>(s.keys) / 8 + 32})) << s.queries << " x " << s.keys << " x " << s.width;
    }
  }
}

/// A row does not depend on the rows beside it.
TEST_P(PatchAttention, OtherQueriesChangeNoBit) {
  AttentionCase all(150, 100, 2, 16, 3);
  const auto together = all.run();
  const std::size_t row = 2 * 16;
  for (const std::int64_t at : {0, 7, 127, 128, 149}) {
    AttentionCase alone = all;
    alone.queries = 1;
    alone.q.assign(all.q.begin() + static_cast<std::ptrdiff_t>(at) * 32, all.q.begin() + static_cast<std::ptrdiff_t>(at + 1) * 32);
    EXPECT_TRUE(bit_equal(alone.run(), std::span(together).subspan(static_cast<std::size_t>(at) * row, row))) << at;
  }
}

TEST(PatchPositions, MatchesReference) {
  struct Sizes {
    std::int64_t rows, columns, width;
    PatchGridSize grid;
  };
  for (const Sizes& s : {Sizes{8, 8, 6, {1, 8, 8}}, {8, 8, 6, {1, 2, 14}}, {3, 5, 4, {1, 9, 4}}, {4, 4, 8, {3, 6, 2}}, {1, 1, 2, {1, 3, 3}}, {64, 64, 2, {1, 100, 2}}}) {
    std::vector<float> table = random_normal(s.rows * s.columns * s.width, 7);
    std::vector<std::uint16_t> stored = to_bf16(table);
    const std::vector<float> x = random_normal(s.grid.patches() * s.width, 8);
    for (const bool bf16 : {false, true}) {
      PatchPositionsArgs a{.table = Tensor::contiguous(bf16 ? static_cast<void*>(stored.data()) : table.data(), bf16 ? DType::kBF16 : DType::kF32, {s.rows, s.columns, s.width}),
                           .grid = s.grid, .x = {}};
      const auto got = run_guarded({s.grid.patches(), s.width}, [&](ExecContext& ctx, const Tensor& out) {
        std::copy(x.begin(), x.end(), out.as<float>());
        a.x = out;
        ops::patch_positions(ctx, a);
      });
      std::vector<double> want = to_double(x);
      a.x = f64(want, {s.grid.patches(), s.width});
      ref::patch_positions<double>(a);
      // Weights are rounded once, then nine operations on numbers of at most 5 or so.
      EXPECT_TRUE(within_bound(got, want, std::vector<double>(want.size(), 12), {.c = 12})) << s.grid.rows << " x " << s.grid.columns;
    }
  }
}

TEST(PatchRotary, MatchesReferenceAndPutsTheColumnFirst) {
  const PatchGridSize grid{2, 3, 5};
  for (const std::int64_t width : {4, 12, 128}) {
    std::vector<float> turns(static_cast<std::size_t>(5 * width / 2));
    std::vector<double> exact(turns.size());
    ExecContext ctx(2);
    ops::patch_turns(ctx, {.head_dim = width, .turns = f32(turns, {5, width / 4, 2})});
    ref::patch_turns<double>({.head_dim = width, .turns = f64(exact, {5, width / 4, 2})});
    EXPECT_TRUE(within_bound(turns, exact, std::vector<double>(exact.size(), 1), {.c = 2}));

    const std::vector<float> x = random_normal(7 * 2 * width, 4);
    PatchRotaryArgs a{.x = {}, .first = 11, .grid = grid, .turns = f32(turns, {5, width / 4, 2})};
    const auto got = run_guarded({7, 2, width}, [&](ExecContext& context, const Tensor& out) {
      std::copy(x.begin(), x.end(), out.as<float>());
      a.x = out;
      ops::patch_rotary(context, a);
    });
    std::vector<double> want = to_double(x);
    a.x = f64(want, {7, 2, width});
    a.turns = f64(exact, {5, width / 4, 2});
    ref::patch_rotary<double>(a);
    EXPECT_TRUE(within_bound(got, want, std::vector<double>(want.size(), 10), {.c = 5}));
    // Row 4 of x is patch 15, the first of frame 1: column and row 0, no turn. Row 5 is column 1 of row 0: the first pair turns by one, the second not.
    for (std::size_t c = 0; c < static_cast<std::size_t>(width); ++c) EXPECT_EQ(got[4 * 2 * static_cast<std::size_t>(width) + c], x[4 * 2 * static_cast<std::size_t>(width) + c]);
    const std::size_t at = 5 * 2 * static_cast<std::size_t>(width);
    EXPECT_NEAR(got[at], x[at] * std::cos(1.0) - x[at + 1] * std::sin(1.0), 1e-5);
    EXPECT_EQ(got[at + 2], x[at + 2]);
  }
}

TEST(GeluErf, MatchesReference) {
  std::vector<float> x = random_normal(1000, 5, 3);
  x.insert(x.end(), {0.0f, -0.0f, 1e-30f, -12, 12, 40, -40});
  const auto n = static_cast<std::int64_t>(x.size());
  const auto got = run_guarded({n}, [&](ExecContext& ctx, const Tensor& y) { ops::gelu_erf(ctx, {.x = f32(x, {n}), .y = y}); });
  std::vector<double> want(x.size()), magnitude(x.size());
  ref::gelu_erf<double>({.x = f32(x, {n}), .y = f64(want, {n})});
  for (std::size_t i = 0; i < x.size(); ++i) magnitude[i] = std::abs(x[i]);  // 1 + erf cancels far below zero
  EXPECT_TRUE(within_bound(got, want, magnitude, {.c = 6}));
}

TEST(PatchMerge, MatchesReference) {
  for (const PatchGridSize& grid : {PatchGridSize{1, 4, 6}, {3, 2, 8}}) {
    std::vector<float> x = random_normal(grid.patches() * 5, 6);
    const std::int64_t tokens = grid.rows * grid.columns / 4;
    for (const std::int64_t first : {std::int64_t{0}, tokens - 2}) {
      PatchMergeArgs a{.x = f32(x, {grid.patches(), 5}), .grid = grid, .side = 2, .first = first, .y = {}};
      const auto got = run_guarded({tokens - first, 20}, [&](ExecContext& ctx, const Tensor& y) {
        a.y = y;
        ops::patch_merge(ctx, a);
      });
      std::vector<double> want(got.size());
      a.y = f64(want, {tokens - first, 20});
      ref::patch_merge<double>(a);
      EXPECT_TRUE(within_bound(got, want, std::vector<double>(want.size(), 15), {.c = 4}));
    }
  }
}

}  // namespace
}  // namespace palimpsest
