#include "kernels/ref/latent_attention.h"

#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/latent_attention.h"
#include "kernels/cpu/latent_tasks.h"
#include "latent_case.h"
#include "ops/ops.h"

namespace palimpsest::test {
namespace {

/// A context with the workspace that the plan would reserve.
struct PlannedContext : ExecContext {
  PlannedContext(const LatentAttentionArgs& args, int threads) : ExecContext(threads) {
    workspace.reserve(cpu::latent_attention_workspace_bytes(args.q.size(1), args.kv_b.cols(), args.list.width(), args.q.size(0)));
  }
};

void run(LatentCase& c, LatentForm form, int threads = 1) {
  const LatentAttentionArgs args = c.args(form);
  PlannedContext ctx(args, threads);
  std::fill_n(args.o.as<float>(), args.o.numel(), std::numeric_limits<float>::quiet_NaN());
  ops::latent_attention(ctx, args);
  EXPECT_TRUE(c.intact());
  EXPECT_EQ(ctx.workspace.mark(), 0);
}

void expect_both_forms_right(const LatentSizes& sizes, const std::vector<LatentRows>& batch) {
  LatentCase c(sizes, batch);
  const LatentTruth truth = latent_truth(c.args());
  for (const auto& target : cpu::supported_targets()) {
    ASSERT_TRUE(cpu::force_target(target));
    for (const LatentForm form : {LatentForm::kAbsorbed, LatentForm::kMaterialized, LatentForm::kAuto}) {
      run(c, form);
      EXPECT_TRUE(within_bound(c.output(), truth.want, truth.magnitude, truth.bound))
          << target << ", form " << static_cast<int>(form) << ", heads " << sizes.heads << ", dn " << sizes.dn << ", p " << sizes.p
          << ", dv " << sizes.dv << ", r " << sizes.r << ", block " << sizes.block_tokens << ", past " << batch[0].past << ", rows "
          << batch[0].rows;
    }
  }
  cpu::force_target("");
}

TEST(LatentAttention, EveryLengthAroundABlock) {
  for (const std::int64_t rows : {1, 2, 3, 4, 5, 8, 9, 63, 64, 65, 130}) {
    for (const std::int64_t past : {0, 1, 62, 64, 70}) expect_both_forms_right({}, {{past, rows}});
  }
}

TEST(LatentAttention, AnyWidths) {
  const std::vector<LatentRows> batch = {{3, 70}};
  for (const std::int64_t heads : {1, 3, 5}) {
    expect_both_forms_right({.heads = heads, .dn = 17, .p = 0, .dv = 5, .r = 33}, batch);
    expect_both_forms_right({.heads = heads, .dn = 1, .p = 3, .dv = 1, .r = 1}, batch);
    expect_both_forms_right({.heads = heads, .dn = 40, .p = 7, .dv = 50, .r = 70}, batch);
  }
  expect_both_forms_right({.heads = 7, .dn = 0, .p = 9, .dv = 16, .r = 8}, batch);
}

TEST(LatentAttention, EveryStoredForm) {
  const std::vector<LatentRows> batch = {{3, 70}, {100, 2}};
  for (const DType list : {DType::kF32, DType::kBF16, DType::kI8}) {
    for (const WeightForm kv_b : {WeightForm::kF32, WeightForm::kBF16, WeightForm::kMxfp4, WeightForm::kInt8}) {
      for (const std::int64_t block_tokens : {1, 24, 64, 100}) {
        for (const std::int64_t p : {8, 16}) expect_both_forms_right({.heads = 3, .p = p, .r = 64, .block_tokens = block_tokens, .list = list, .kv_b = kv_b}, batch);
      }
    }
  }
}

TEST(LatentAttention, RaggedBatchWithEmptySequences) {
  expect_both_forms_right({.heads = 3}, {{5, 0}, {0, 1}, {200, 3}, {0, 0}, {17, 66}, {0, 5}, {9, 0}});
  expect_both_forms_right({.heads = 3}, {{5, 0}});
}

TEST(LatentAttention, SplitsOfALongList) {
  const LatentSizes sizes{.heads = 2, .dn = 4, .p = 3, .dv = 5, .r = 6};
  for (const std::int64_t length : {1024, 1025, 2050, 5000, 16 * 1024 + 1, 40000}) {
    expect_both_forms_right(sizes, {{length - 2, 2}});
  }
}

TEST(LatentAttention, TheSplitGrid) {
  for (std::int64_t length = 1; length < 3'000'000; length += length < 5000 ? 1 : 997) {
    const std::int64_t splits = cpu::latent_splits(length);
    ASSERT_LE(splits, cpu::kMaxLatentSplits);
    ASSERT_LT(cpu::latent_split_begin(splits - 1), length);
    if (splits < cpu::kMaxLatentSplits) {
      ASSERT_GE(cpu::latent_split_begin(splits), length);
    }
  }
  for (std::int64_t s = 0; s < cpu::kMaxLatentSplits; ++s) EXPECT_EQ(cpu::latent_split_begin(s) % cpu::kLatentKeyBlock, 0);
}

TEST(LatentAttention, MoreRowsThanOneWaveHolds) {
  const LatentSizes sizes{.heads = 2, .dn = 4, .p = 3, .dv = 5, .r = 6};
  expect_both_forms_right(sizes, {{3, 150}, {1100, 150}, {0, 260}});
}

TEST(LatentAttention, MoreRowsThanOneTaskHolds) {
  const LatentSizes sizes{.heads = 2, .dn = 4, .p = 3, .dv = 5, .r = 6};
  ASSERT_LT(cpu::materialized_task_rows({.heads = 2, .dn = 4, .p = 3, .dv = 5, .r = 6}), 2100);
  expect_both_forms_right(sizes, {{70, 2100}});
}

TEST(LatentAttention, TasksKeepToTheScratchMemoryThatThePlanCounts) {
  for (const std::int64_t r : {8, 512, 700}) {
    const cpu::LatentShape shape{.heads = 32, .dn = 128, .p = 64, .dv = 128, .r = r};
    const std::int64_t rows = cpu::materialized_task_rows(shape);
    EXPECT_EQ(rows, 2048) << r;
    EXPECT_LE(cpu::materialized_scratch_bytes(shape, rows), 4 << 20) << r;
  }
  const cpu::LatentShape wide{.heads = 1, .dn = 512, .p = 64, .dv = 512, .r = 512};
  EXPECT_LT(cpu::materialized_task_rows(wide), 2048);
  EXPECT_LE(cpu::materialized_scratch_bytes(wide, cpu::materialized_task_rows(wide)), 4 << 20);
  EXPECT_EQ(cpu::materialized_task_rows({.heads = 1, .dn = 2048, .p = 0, .dv = 2048, .r = 512}), 64) << "no fewer, whatever it takes";
}

/// Same bits, for every sequence of `batch`: with any number of threads, alone, and with more tokens after it.
void expect_reproducible(const LatentSizes& sizes, const std::vector<LatentRows>& batch, LatentForm form) {
  LatentCase whole(sizes, batch);
  run(whole, form);
  const auto once = whole.output();
  for (const int threads : {2, 3, 5}) {
    run(whole, form, threads);
    EXPECT_TRUE(bit_equal(whole.output(), once)) << threads << " threads";
  }
  for (std::size_t n = 0; n < batch.size(); ++n) {
    LatentCase alone(sizes, {batch[n]}, static_cast<std::int64_t>(n));
    run(alone, form, 2);
    EXPECT_TRUE(bit_equal(alone.output(), whole.output(static_cast<std::int64_t>(n)))) << "sequence " << n << " alone";
  }
}

TEST(LatentAttention, BitsDependNeitherOnThreadsNorOnBatchMates) {
  for (const auto& target : cpu::supported_targets()) {
    ASSERT_TRUE(cpu::force_target(target));
    for (const DType list : {DType::kF32, DType::kBF16, DType::kI8}) {
      const LatentSizes sizes{.heads = 3, .dn = 17, .p = 5, .dv = 19, .r = 37, .list = list};
      const std::vector<LatentRows> batch = {{5, 90}, {0, 0}, {1500, 1}, {0, 131}, {70, 4}, {2047, 3}, {1300, 20}};
      expect_reproducible(sizes, batch, LatentForm::kAuto);
      expect_reproducible(sizes, batch, LatentForm::kMaterialized);
      expect_reproducible(sizes, batch, LatentForm::kAbsorbed);
      expect_reproducible(sizes, batch, LatentForm::kByRows);
    }
  }
  cpu::force_target("");
}

/// What rounding a list to 8 bits can do to an output, in double: with step_c the scale of column c and half a step as the error of a number,
///     a score moves by at most  D_t = scale / 2 (sum_d |q_d| sum_c |B_k,dc| step_c + sum_c |q_c| step_c),
///     a value by                E_t = sum_c |B_v,c| step_c / 2,
/// so with D = max D_t a weight changes by a factor within exp(+-2 D), and o by at most  e^2D sum_t w_t E_t + (e^2D - 1) sum_t w_t |v_t|.
std::vector<double> q8_drift(const LatentAttentionArgs& exact, const PagedList& q8) {
  const std::int64_t heads = exact.q.size(1), dq = exact.q.size(2), dv = exact.o.size(2), r = exact.kv_b.cols(), p = q8.width() - r, dn = dq - p;
  const std::int64_t* cu = exact.rows.cu_seqlens.as<std::int64_t>();
  std::vector<double> drift(static_cast<std::size_t>(exact.o.numel()));
  for (std::int64_t n = 0; n < exact.rows.slots.size(0); ++n) {
    const std::int64_t past = exact.past.as<std::int64_t>()[n], rows = cu[n + 1] - cu[n], length = past + rows;
    const std::int32_t slot = exact.rows.slots.as<std::int32_t>()[n];
    const auto half_step = [&](std::int64_t t, std::int64_t c) {
      const Q8Rows& layout = q8.q8;
      std::uint32_t largest = 0;
      const std::int64_t group = layout.group_of(c);
      for (std::int64_t i = 0; i < layout.width(); ++i) {
        if (layout.group_of(i) == group) largest = std::max(largest, detail::float_bits(std::abs(ref::list_value<float>(exact.list, slot, t, i))));
      }
      return bf16_to_float(q8_scale(largest)) * (0.5 + 0x1p-17);
    };
    std::vector<double> keys(static_cast<std::size_t>(length * dq)), values(static_cast<std::size_t>(length * dv)), weights(static_cast<std::size_t>(length));
    std::vector<double> key_off(keys.size()), value_off(values.size());
    for (std::int64_t h = 0; h < heads; ++h) {
      for (std::int64_t t = 0; t < length; ++t) {
        ref::latent_key_value(exact, n, h, t, keys.data() + t * dq, values.data() + t * dv);
        for (std::int64_t d = 0; d < dn + dv; ++d) {
          double sum = 0;
          for (std::int64_t c = 0; c < r; ++c) sum += std::abs(ref::load<double>(exact.kv_b, h * (dn + dv) + d, c)) * half_step(t, c);
          (d < dn ? key_off[static_cast<std::size_t>(t * dq + d)] : value_off[static_cast<std::size_t>(t * dv + d - dn)]) = sum;
        }
        for (std::int64_t c = 0; c < p; ++c) key_off[static_cast<std::size_t>(t * dq + dn + c)] = half_step(t, r + c);
      }
      for (std::int64_t i = 0; i < rows; ++i) {
        LatentAttentionArgs scratch = exact;
        std::vector<double> o(drift.size());
        scratch.o = Tensor::contiguous(o.data(), DType::kF64, {exact.o.size(0), heads, dv});
        ref::latent_attention_row(scratch, n, i, h, keys.data(), values.data(), weights.data());
        double moved = 0;
        for (std::int64_t t = 0; t <= past + i; ++t) {
          double sum = 0;
          for (std::int64_t d = 0; d < dq; ++d) sum += std::abs(exact.q.at<float>(cu[n] + i, h)[d]) * key_off[static_cast<std::size_t>(t * dq + d)];
          moved = std::max(moved, static_cast<double>(exact.scale) * sum);
        }
        for (std::int64_t j = 0; j < dv; ++j) {
          double off = 0, value = 0;
          for (std::int64_t t = 0; t <= past + i; ++t) {
            off += weights[static_cast<std::size_t>(t)] * value_off[static_cast<std::size_t>(t * dv + j)];
            value += weights[static_cast<std::size_t>(t)] * std::abs(values[static_cast<std::size_t>(t * dv + j)]);
          }
          drift[static_cast<std::size_t>(((cu[n] + i) * heads + h) * dv + j)] = std::exp(2 * moved) * off + std::expm1(2 * moved) * value;
        }
      }
    }
  }
  return drift;
}

TEST(LatentAttention, EightBitsMoveAnOutputNoMoreThanTheirStepAllows) {
  LatentSizes sizes{.heads = 2, .dn = 12, .p = 6, .dv = 10, .r = 40, .q8_group = 16};
  const std::vector<LatentRows> batch = {{3, 20}, {70, 2}, {0, 9}};
  LatentCase exact(sizes, batch);
  sizes.list = DType::kI8;
  LatentCase rounded(sizes, batch);
  const LatentTruth truth = latent_truth(exact.args());
  std::vector<double> bound = q8_drift(exact.args(), rounded.list());
  double size = 0, allowed = 0;
  for (std::size_t i = 0; i < bound.size(); ++i) {
    size += std::abs(truth.want[i]);
    allowed += bound[i];
    bound[i] += truth.bound.c * kEpsF32 * truth.magnitude[i] * 1.1;  // of sums in F32, over numbers that are a little larger now
  }
  EXPECT_LT(allowed, size) << "the bound says something";
  for (const LatentForm form : {LatentForm::kAbsorbed, LatentForm::kMaterialized}) {
    run(rounded, form);
    EXPECT_TRUE(within_bound(rounded.output(), truth.want, bound, {.c = 1, .eps_acc = 1})) << static_cast<int>(form);
    EXPECT_FALSE(within_bound(rounded.output(), truth.want, truth.magnitude, truth.bound)) << "8 bits are not F32";
  }
}

/// Multiply-adds of one head, counted row by row and token by token.
struct Operations {
  Operations(const cpu::LatentShape& s, std::int64_t past, std::int64_t rows) {
    for (std::int64_t i = 0; i < rows; ++i) {
      absorbed += s.r * s.dn + s.r * s.dv;
      absorbed += (past + i + 1) * (s.r + s.p + s.r);
      materialized += (past + i + 1) * (s.dn + s.p + s.dv);
    }
    for (std::int64_t t = 0; t < past + rows; ++t) materialized += s.r * s.dn + s.r * s.dv;
  }
  std::int64_t absorbed = 0, materialized = 0;
};

TEST(LatentAttention, TheFormWithFewerOperationsIsChosen) {
  const cpu::LatentShape k3{.heads = 96, .dn = 128, .p = 64, .dv = 128, .r = 512}, wide_heads{.heads = 2, .dn = 40, .p = 0, .dv = 48, .r = 32};
  for (const auto& shape : {k3, wide_heads}) {
    for (const std::int64_t past : {0, 1, 63, 300, 4096, 100000}) {
      for (const std::int64_t rows : {1, 4, 5, 64, 150, 160, 170, 180, 512}) {
        const Operations count(shape, past, rows);
        EXPECT_EQ(cpu::prefers_absorbed(shape, past, rows), rows <= kAbsorbedRows || count.absorbed < count.materialized)
            << rows << " rows after " << past << ", r " << shape.r;
      }
    }
  }
  EXPECT_TRUE(cpu::prefers_absorbed(k3, 4096, 64));
  EXPECT_FALSE(cpu::prefers_absorbed(k3, 4096, 256));
  EXPECT_FALSE(cpu::prefers_absorbed(k3, 0, 64));
}

TEST(LatentAttention, EachSequenceGetsItsOwnForm) {
  const LatentSizes sizes{.heads = 3, .dn = 17, .p = 5, .dv = 19, .r = 37};
  const cpu::LatentShape shape{sizes.heads, sizes.dn, sizes.p, sizes.dv, sizes.r};
  const std::vector<LatentRows> batch = {{0, 40}, {1300, 20}, {1300, 60}, {9, 3}};
  LatentCase chosen(sizes, batch);
  run(chosen, LatentForm::kAuto);
  for (std::int64_t n = 0; n < 4; ++n) {
    const auto& s = batch[static_cast<std::size_t>(n)];
    const LatentForm want = cpu::prefers_absorbed(shape, s.past, s.rows) ? LatentForm::kAbsorbed : LatentForm::kMaterialized;
    EXPECT_EQ(want == LatentForm::kAbsorbed, n % 2 == 1) << "the case no longer shows both forms";
    LatentCase alone(sizes, {s}, n);
    run(alone, want);
    EXPECT_TRUE(bit_equal(chosen.output(n), alone.output())) << "sequence " << n;
  }
}

TEST(LatentAttention, RowsBehindTheLastMultipleOfTheGridAreAbsorbed) {
  const LatentSizes sizes{.heads = 3, .dn = 17, .p = 5, .dv = 19, .r = 37};
  constexpr std::int64_t kGrid = cpu::kLatentFormGrid;
  struct Pass {
    std::int64_t past, rows, materialized;
  };
  for (const Pass& pass : {Pass{0, 2 * kGrid, 2 * kGrid}, Pass{kGrid, 2 * kGrid + 9, 2 * kGrid}, Pass{3 * kGrid, 9, 0}, Pass{0, 40, 0},
                           Pass{2 * kGrid - 1, 1, 0}, Pass{2 * kGrid - 4, 4, 0}, Pass{kGrid, kGrid + 1, kGrid}, Pass{0, 2 * kGrid - 1, kGrid},
                           Pass{20 * kGrid + 3, 80, kGrid - 3}}) {
    LatentCase c(sizes, {{pass.past, pass.rows}});
    run(c, LatentForm::kMaterialized);
    const std::vector<float> materialized = c.output();
    run(c, LatentForm::kAbsorbed);
    std::vector<float> want = c.output();
    EXPECT_FALSE(bit_equal(materialized, want)) << "the case no longer tells the forms apart";
    std::copy_n(materialized.begin(), pass.materialized * sizes.heads * sizes.dv, want.begin());
    for (const int threads : {1, 3}) {
      run(c, LatentForm::kByRows, threads);
      EXPECT_TRUE(bit_equal(c.output(), want)) << pass.rows << " rows after " << pass.past << ", " << threads << " threads";
    }
  }
}

void expect_rows_ignore_what_follows(const LatentSizes& sizes, LatentForm form, std::int64_t past, std::int64_t all, const std::vector<std::int64_t>& prefixes) {
  const std::size_t row_width = static_cast<std::size_t>(sizes.heads * sizes.dv);
  LatentCase longest(sizes, {{past, all}});
  run(longest, form);
  for (const std::int64_t rows : prefixes) {
    LatentCase prefix(sizes, {{past, rows}});
    run(prefix, form, 2);
    auto expected = longest.output();
    expected.resize(static_cast<std::size_t>(rows) * row_width);
    EXPECT_TRUE(bit_equal(prefix.output(), expected)) << "form " << static_cast<int>(form) << ", " << rows << " rows after " << past;
  }
}

TEST(LatentAttention, BitsOfARowDoNotDependOnWhatFollows) {
  for (const LatentForm form : {LatentForm::kMaterialized, LatentForm::kAbsorbed}) {
    for (const std::int64_t past : {0, 50, 1000})
      expect_rows_ignore_what_follows({.heads = 3, .dn = 17, .p = 5, .dv = 19, .r = 37}, form, past, 140, {1, 2, 7, 14, 15, 64, 65, 139});
  }
  // Across the border between two tasks.
  expect_rows_ignore_what_follows({.heads = 2, .dn = 4, .p = 3, .dv = 5, .r = 6}, LatentForm::kMaterialized, 70, 2100, {100, 2047, 2049});
  // One or two rows of three heads are computed from the list in place, four from a copy in F32.
  for (const auto& target : cpu::supported_targets()) {
    ASSERT_TRUE(cpu::force_target(target));
    expect_rows_ignore_what_follows({.heads = 3, .p = 16, .r = 48, .list = DType::kBF16}, LatentForm::kAbsorbed, 1000, 8, {1, 2, 3, 5});
  }
  cpu::force_target("");
}

TEST(LatentAttention, HugeScoresDoNotOverflow) {
  LatentSizes sizes{.heads = 2, .dn = 8, .p = 8, .dv = 8, .r = 32};
  LatentCase c(sizes, {{40, 50}, {200, 2}}, 0, 3e4);
  const LatentTruth truth = latent_truth(c.args());
  for (const LatentForm form : {LatentForm::kAbsorbed, LatentForm::kMaterialized}) {
    run(c, form);
    // No two scores are nearer than their rounding errors here, so one key takes all.
    EXPECT_TRUE(within_bound(c.output(), truth.want, truth.value_magnitude, truth.bound)) << static_cast<int>(form);
  }
}

TEST(LatentAttention, AFirstTokenAnswersWithItsOwnValue) {
  const LatentSizes sizes{.heads = 3};
  LatentCase c(sizes, {{0, 1}});
  const LatentAttentionArgs args = c.args();
  for (const LatentForm form : {LatentForm::kAbsorbed, LatentForm::kMaterialized}) {
    run(c, form);
    for (std::int64_t h = 0; h < sizes.heads; ++h) {
      for (std::int64_t j = 0; j < sizes.dv; ++j) {
        double value = 0, magnitude = 0;
        for (std::int64_t k = 0; k < sizes.r; ++k) {
          const double product = ref::load<double>(args.kv_b, h * (sizes.dn + sizes.dv) + sizes.dn + j, k) *
                                 ref::load<double>(args.list.blocks, ref::list_row_offset(args.list, 0, 0) + k);
          value += product;
          magnitude += std::abs(product);
        }
        EXPECT_NEAR(args.o.at<float>(0, h)[j], value, static_cast<double>(sizes.r + 1) * kEpsF32 * magnitude) << h << " " << j;
      }
    }
  }
}

TEST(LatentAttention, TakesNoMoreWorkspaceThanItSays) {
  const LatentSizes sizes{.heads = 2, .dn = 4, .p = 3, .dv = 5, .r = 6};
  for (const auto& batch : std::vector<std::vector<LatentRows>>{{{0, 1}}, {{70000, 4}}, {{70000, 4}, {30000, 3}, {5, 300}}}) {
    LatentCase c(sizes, batch);
    const LatentAttentionArgs args = c.args(LatentForm::kAbsorbed);
    PlannedContext ctx(args, 2);
    ops::latent_attention(ctx, args);
    EXPECT_LE(ctx.workspace.peak(), ctx.workspace.capacity());
    EXPECT_EQ(ctx.calls(Op::kLatentAttention), 1);
  }
  LatentCase c(sizes, {{0, 9}});
  const LatentAttentionArgs args = c.args();
  ExecContext planning(1);
  planning.workspace = Arena::measuring_only();
  ops::latent_attention(planning, args);
  EXPECT_EQ(planning.workspace.peak(), cpu::latent_attention_workspace_bytes(sizes.heads, sizes.r, sizes.r + sizes.p, 9));
  EXPECT_EQ(planning.calls(), 0);
}

}  // namespace
}  // namespace palimpsest::test
