#include <gtest/gtest.h>

#include <cmath>

#include "kernels/elementwise_case.h"
#include "kernels/ragged_batch.h"
#include "kernels/ref/softmax_attention.h"
#include "kernels/test_targets.h"
#include "ops/ops.h"

namespace palimpsest {
namespace {

using namespace test;

class SoftmaxAttention : public EachTarget {};
PALIMPSEST_INSTANTIATE_FOR_EACH_TARGET(SoftmaxAttention);

struct Sizes {
  std::int64_t heads, kv_heads, dk, dv, block_tokens;
};

/// A ragged batch with random queries and lists. A sequence's contents depend on its own number only.
struct Case {
  Sizes sizes;
  RaggedBatch batch;
  std::vector<float> q, list;
  std::vector<std::uint16_t> list_bf16;
  std::vector<std::int8_t> list_q8;
  std::vector<std::int32_t> table;
  std::int64_t max_blocks = 1;

  Case(const Sizes& s, const std::vector<std::int64_t>& rows, const std::vector<std::int64_t>& past, double spread = 1,
       std::uint64_t first = 0)
      : sizes(s), batch(rows, past) {
    const std::int64_t width = s.kv_heads * (s.dk + s.dv);
    for (std::size_t n = 0; n < rows.size(); ++n) max_blocks = std::max(max_blocks, (rows[n] + past[n] + s.block_tokens - 1) / s.block_tokens);
    table.assign(static_cast<std::size_t>(batch.slots() * max_blocks), -1);
    std::int32_t next = 0;
    for (std::size_t n = 0; n < rows.size(); ++n) {
      for (std::int64_t b = 0; b < max_blocks; ++b) table[static_cast<std::size_t>(batch.slot_ids[n] * max_blocks + b)] = next++;
      const auto mine = random_normal(max_blocks * s.block_tokens * width, 100 + first + n, spread);
      list.insert(list.end(), mine.begin(), mine.end());
      const auto queries = random_normal(rows[n] * s.heads * s.dk, 200 + first + n, spread);
      q.insert(q.end(), queries.begin(), queries.end());
    }
    list_bf16 = to_bf16(list);
    const Q8Rows q8 = q8_head_rows(s.kv_heads, s.dk, s.dv);
    list_q8.resize(list.size() / static_cast<std::size_t>(width) * static_cast<std::size_t>(q8.row_bytes()));
    for (std::int64_t t = 0; t < static_cast<std::int64_t>(list.size()) / width; ++t) {
      const float* row = list.data() + t * width;
      std::int8_t* block = list_q8.data() + t / s.block_tokens * s.block_tokens * q8.row_bytes();
      q8_store_row(q8, [&](std::int64_t c) { return row[c]; }, [&](std::int64_t c) { return row[q8.left + c]; },
                   q8_codes(q8, block, t % s.block_tokens),
                   reinterpret_cast<std::uint16_t*>(q8_scales(q8, block, s.block_tokens, t % s.block_tokens)));
    }
  }

  SoftmaxAttentionArgs args(DType type) {
    const std::int64_t width = sizes.kv_heads * (sizes.dk + sizes.dv), blocks = static_cast<std::int64_t>(list.size()) / (sizes.block_tokens * width);
    const Q8Rows q8 = type == DType::kI8 ? q8_head_rows(sizes.kv_heads, sizes.dk, sizes.dv) : Q8Rows{};
    void* data = type == DType::kF32 ? static_cast<void*>(list.data()) : type == DType::kI8 ? static_cast<void*>(list_q8.data()) : list_bf16.data();
    return {.q = f32(q, {batch.rows(), sizes.heads, sizes.dk}),
            .list = {.blocks = Tensor::contiguous(data, type, {blocks, sizes.block_tokens, q8.defined() ? q8.row_bytes() : width}),
                     .table = Tensor::contiguous(table.data(), DType::kI32, {batch.slots(), max_blocks}),
                     .q8 = q8},
            .rows = batch.ragged(),
            .past = batch.past(),
            .num_kv_heads = sizes.kv_heads,
            .scale = 1 / std::sqrt(static_cast<float>(sizes.dk)),
            .o = {}};
  }

  std::vector<float> run(DType type) {
    SoftmaxAttentionArgs a = args(type);
    return run_guarded({batch.rows(), sizes.heads, sizes.dv}, [&](ExecContext& ctx, const Tensor& o) {
      a.o = o;
      ops::softmax_attention(ctx, a);
    });
  }
};

TEST_P(SoftmaxAttention, MatchesReference) {
  for (const Sizes& s : {Sizes{4, 2, 16, 16, 16}, Sizes{3, 1, 20, 12, 64}, Sizes{2, 2, 64, 64, 7}, Sizes{8, 4, 5, 3, 64}}) {
    for (const double spread : {1.0, 30.0}) {
      Case c(s, {1, 0, 63, 70, 5}, {0, 9, 1, 64, 130}, spread);
      for (const DType type : {DType::kF32, DType::kBF16, DType::kI8}) {
        const auto got = c.run(type);
        std::vector<double> want(got.size());
        SoftmaxAttentionArgs a = c.args(type);
        a.o = f64(want, {c.batch.rows(), s.heads, s.dv});
        ref::softmax_attention<double>(a);
        // An error of a score (dk roundings of a sum of at most spread^2 dk in magnitude) shifts weights by that much, relatively; values are at
        // most about 5 spread.
        const auto dk = static_cast<double>(s.dk);
        std::vector<double> magnitude(want.size(), 5 * spread * (2 + 2 * spread * spread * std::sqrt(dk) * 4));
        EXPECT_TRUE(within_bound(got, want, magnitude, {.c = dk + 32})) << s.heads << " heads, spread " << spread;
      }
    }
  }
}

TEST_P(SoftmaxAttention, BatchMatesAndLaterTokensChangeNoBit) {
  const Sizes s{4, 2, 16, 16, 16};
  const std::vector<std::int64_t> rows = {5, 70, 1}, past = {0, 10, 200};
  // The lists of a batch are as long as its longest: cut to the same beginning.
  const auto take_lists = [&](Case& to, const Case& from, std::int64_t sequence) {
    const auto take = [&](auto& values, const auto& source, std::int64_t row) {
      const std::int64_t begin = sequence * from.max_blocks * s.block_tokens * row;
      std::copy_n(source.begin() + begin, to.max_blocks * s.block_tokens * row, values.begin());
    };
    take(to.list_bf16, from.list_bf16, s.kv_heads * (s.dk + s.dv));
    take(to.list_q8, from.list_q8, q8_head_rows(s.kv_heads, s.dk, s.dv).row_bytes());
  };
  for (const DType type : {DType::kBF16, DType::kI8}) {
    Case together(s, rows, past);
    const auto all = together.run(type);
    std::size_t at = 0;
    for (std::size_t n = 0; n < rows.size(); ++n) {
      Case alone(s, {rows[n]}, {past[n]}, 1, n);
      take_lists(alone, together, static_cast<std::int64_t>(n));
      const auto got = alone.run(type);
      const std::vector<float> want(all.begin() + static_cast<std::ptrdiff_t>(at), all.begin() + static_cast<std::ptrdiff_t>(at + got.size()));
      EXPECT_TRUE(bit_equal(got, want)) << "sequence " << n;
      at += got.size();
    }

    Case longer(s, {90}, {10}, 1, 1), shorter(s, {70}, {10}, 1, 1);
    take_lists(shorter, longer, 0);
    std::copy_n(longer.q.begin(), shorter.q.size(), shorter.q.begin());
    auto prefix = longer.run(type);
    const auto want = shorter.run(type);
    prefix.resize(want.size());
    EXPECT_TRUE(bit_equal(prefix, want));
  }
}

}  // namespace
}  // namespace palimpsest
