#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "kernels/page_case.h"
#include "kernels/test_targets.h"
#include "support/numeric.h"

namespace palimpsest {
namespace {

using test::bit_equal;
using test::page_truth;
using test::PageProblem;
using test::PageResult;
using test::PageShape;
using test::RaggedBatch;
using test::random_page_problem;
using test::run_page_memory;

constexpr PageDecay kDecays[] = {PageDecay::kNone, PageDecay::kHead, PageDecay::kChannel};
constexpr PageWrite kWrites[] = {PageWrite::kPlain, PageWrite::kDelta};
constexpr PageForm kForms[] = {PageForm::kStep, PageForm::kChunked};

std::string describe(PageDecay decay, PageWrite write, PageForm form, const PageShape& s) {
  return "decay " + std::to_string(static_cast<int>(decay)) + " write " +
         std::to_string(static_cast<int>(write)) + " form " +
         std::to_string(static_cast<int>(form)) + " H " + std::to_string(s.heads) + " HV " +
         std::to_string(s.value_heads) + " K " + std::to_string(s.width) + " V " +
         std::to_string(s.values);
}

class PageMemory : public test::EachTarget {};
PALIMPSEST_INSTANTIATE_FOR_EACH_TARGET(PageMemory);

TEST_P(PageMemory, MatchesReferenceForEveryPolicyFormAndShape) {
  const PageShape shapes[] = {{1, 1, 1, 1},    {2, 2, 32, 32},  {1, 3, 20, 9}, {3, 3, 128, 128},
                              {2, 4, 128, 40}, {1, 2, 130, 17}, {1, 1, 48, 96}};
  for (const PageShape& shape : shapes) {
    const RaggedBatch batch({15, 0, 1, 16, 17, 53, 2}, {0, 5, 31, 16, 7, 3, 15});
    for (const PageDecay decay : kDecays) {
      for (const PageWrite write : kWrites) {
        const PageProblem problem = random_page_problem(shape, decay, write, batch, 11);
        const auto truth = page_truth(problem);
        for (const PageForm form : kForms) {
          EXPECT_TRUE(matches(run_page_memory(problem, {.form = form, .threads = 2}), truth))
              << describe(decay, write, form, shape);
        }
      }
    }
  }
}

// What a token writes can be looked at, which changes nothing.
TEST_P(PageMemory, WhatIsWrittenIsShownWhereItIsAskedFor) {
  for (const PageShape& shape : {PageShape{1, 3, 20, 9}, {2, 4, 128, 40}, {1, 1, 32, 64}}) {
    for (const PageDecay decay : kDecays) {
      for (const PageWrite write : kWrites) {
        const PageProblem problem = random_page_problem(
            shape, decay, write, RaggedBatch({15, 0, 1, 38}, {0, 5, 31, 7}), 12);
        const auto truth = page_truth(problem);
        for (const PageForm form : kForms) {
          const PageResult plain = run_page_memory(problem, {.form = form, .threads = 2});
          const PageResult shown = run_page_memory(
              problem, {.form = form, .threads = 2, .misalignment = 4, .written = true});
          EXPECT_TRUE(matches(shown, truth)) << describe(decay, write, form, shape);
#ifndef PALIMPSEST_OPS_ON_DEVICE  // where another kernel shows than computes
          EXPECT_TRUE(bit_equal(shown.o, plain.o));
          EXPECT_TRUE(bit_equal(shown.pages, plain.pages));
#endif
        }
      }
    }
  }
}

TEST_P(PageMemory, AutoTakesStepsForSingleRowsAndChunksForMore) {
  const PageShape shape{2, 2, 32, 24};
  const PageProblem single =
      random_page_problem(shape, PageDecay::kChannel, PageWrite::kDelta, RaggedBatch({1}), 3);
  EXPECT_TRUE(
      bit_equal(run_page_memory(single).o, run_page_memory(single, {.form = PageForm::kStep}).o));
  const PageProblem several =
      random_page_problem(shape, PageDecay::kChannel, PageWrite::kDelta, RaggedBatch({5}), 4);
  EXPECT_TRUE(bit_equal(run_page_memory(several).o,
                        run_page_memory(several, {.form = PageForm::kChunked}).o));
}

TEST_P(PageMemory, BetaMayBeAbsent) {
  PageProblem problem = random_page_problem({2, 2, 16, 16}, PageDecay::kHead, PageWrite::kPlain,
                                            RaggedBatch({19}), 5);
  problem.beta.clear();
  for (const PageForm form : kForms)
    EXPECT_TRUE(matches(run_page_memory(problem, {.form = form}), page_truth(problem)));
}

TEST_P(PageMemory, UnalignedMemory) {
  for (const std::int64_t misalignment : {4, 20, 60}) {
    const PageProblem problem = random_page_problem({2, 2, 128, 33}, PageDecay::kChannel,
                                                    PageWrite::kDelta, RaggedBatch({21, 1}), 6);
    for (const PageForm form : kForms) {
      EXPECT_TRUE(matches(run_page_memory(problem, {.form = form, .misalignment = misalignment}),
                          page_truth(problem)));
    }
  }
}

// Gates far below anything exp can represent: what is left is right and finite.
TEST_P(PageMemory, GatesBeyondTheRangeOfExp) {
  for (const PageDecay decay : {PageDecay::kHead, PageDecay::kChannel}) {
    PageProblem problem =
        random_page_problem({2, 2, 64, 32}, decay, PageWrite::kDelta, RaggedBatch({70}), 7);
    constexpr float kGates[] = {-0.005f, -5, -30, -88, -104, -200, -1e4f, -1e30f, -0.0f};
    for (std::size_t i = 0; i < problem.g.size(); ++i) problem.g[i] = kGates[i * 7 % 9];
    for (const PageForm form : kForms)
      EXPECT_TRUE(matches(run_page_memory(problem, {.form = form}), page_truth(problem)));
    for (float& g : problem.g) g = -100;
    for (const PageForm form : kForms)
      EXPECT_TRUE(matches(run_page_memory(problem, {.form = form}), page_truth(problem)));
  }
}

// Keys that differ in the last digits, written with beta 1: (I + A) is as far from the identity as
// it gets.
TEST_P(PageMemory, NearCollinearKeys) {
  for (const float beta : {0.0f, 1e-6f, 0.999f, 1.0f}) {
    PageProblem problem = random_page_problem({1, 1, 64, 32}, PageDecay::kChannel,
                                              PageWrite::kDelta, RaggedBatch({67}), 8);
    for (std::size_t i = 64; i < problem.k.size(); ++i)
      problem.k[i] = problem.k[i % 64] * (1 + 1e-6f * static_cast<float>(i % 5));
    for (float& g : problem.g) g = -0.005f;
    for (float& b : problem.beta) b = beta;
    for (const PageForm form : kForms)
      EXPECT_TRUE(matches(run_page_memory(problem, {.form = form}), page_truth(problem))) << beta;
  }
}

TEST_P(PageMemory, SplitAtEveryPosition) {
  const std::int64_t length = 35, past = 13;
  const PageProblem whole = random_page_problem(
      {1, 2, 24, 20}, PageDecay::kChannel, PageWrite::kDelta, RaggedBatch({length}, {past}), 9);
  const auto truth = page_truth(whole);
  for (std::int64_t at = 0; at <= length; ++at) {
    const PageResult first = run_page_memory(slice_rows(whole, 0, at, whole.pages));
    PageResult second = run_page_memory(slice_rows(whole, at, length, first.pages));
    second.o.insert(second.o.begin(), first.o.begin(), first.o.end());
    EXPECT_TRUE(matches(second, truth)) << "split at " << at;
    if ((past + at) % 16 == 0 && at + 1 < length) {
      EXPECT_TRUE(bit_equal(second.o, run_page_memory(whole).o))
          << "a split at a chunk border, " << at;
    }
  }
}

TEST_P(PageMemory, ThreadsDoNotChangeBits) {
  // One head is cut; of five, four and one take turns on one thread, and each is alone on five.
  for (const PageShape& shape : {PageShape{1, 1, 128, 128}, {5, 5, 128, 128}}) {
    for (const PageForm form : {PageForm::kAuto, PageForm::kStep}) {
      const PageProblem problem = random_page_problem(shape, PageDecay::kChannel, PageWrite::kDelta,
                                                      RaggedBatch({40, 1, 0, 9}, {5, 0, 0, 3}), 10);
      const PageResult one = run_page_memory(problem, {.form = form, .threads = 1});
      for (const int threads : {2, 3, 5}) {
        const PageResult more = run_page_memory(problem, {.form = form, .threads = threads});
        EXPECT_TRUE(bit_equal(one.o, more.o));
        EXPECT_TRUE(bit_equal(one.pages, more.pages));
      }
    }
  }
}

TEST_P(PageMemory, BatchMatesDoNotChangeBits) {
  const PageShape shape{2, 2, 40, 24};
  const RaggedBatch batch({18, 33, 1}, {2, 9, 100});
  const PageProblem problem =
      random_page_problem(shape, PageDecay::kChannel, PageWrite::kDelta, batch, 12);
  const PageResult together = run_page_memory(problem);
  for (std::int64_t n = 0; n < batch.sequences(); ++n) {
    const auto sequence = static_cast<std::size_t>(n);
    PageProblem alone = problem;
    alone.batch.cu_seqlens = {batch.cu_seqlens[sequence], batch.cu_seqlens[sequence + 1]};
    alone.batch.slot_ids = {batch.slot_ids[sequence]};
    alone.batch.past_lengths = {batch.past_lengths[sequence]};
    alone.batch.cu_seqlens = {0, batch.cu_seqlens[sequence + 1] - batch.cu_seqlens[sequence]};
    const auto take = [&](std::vector<float>& x) {
      const std::int64_t per_row = static_cast<std::int64_t>(x.size()) / batch.rows();
      x = std::vector<float>(x.begin() + batch.cu_seqlens[sequence] * per_row,
                             x.begin() + batch.cu_seqlens[sequence + 1] * per_row);
    };
    for (auto* x : {&alone.q, &alone.k, &alone.v, &alone.g, &alone.beta}) take(*x);
    // Slots keep their numbers, so the pool is as large as in the batch.
    alone.pages.resize(static_cast<std::size_t>(alone.batch.slots() * alone.page_floats()));
    const std::int64_t page = batch.slot_ids[sequence] * alone.page_floats();
    alone.batch.slot_ids = {1};
    std::copy_n(problem.pages.begin() + page, alone.page_floats(),
                alone.pages.begin() + alone.page_floats());
    const PageResult single = run_page_memory(alone);
    const std::int64_t per_row = shape.value_heads * shape.values;
    const std::vector<float> o(together.o.begin() + batch.cu_seqlens[sequence] * per_row,
                               together.o.begin() + batch.cu_seqlens[sequence + 1] * per_row);
    EXPECT_TRUE(bit_equal(single.o, o));
    EXPECT_TRUE(bit_equal(
        {single.pages.data() + alone.page_floats(), static_cast<std::size_t>(alone.page_floats())},
        {together.pages.data() + page, static_cast<std::size_t>(alone.page_floats())}));
  }
}

TEST_P(PageMemory, AppendedTokensDoNotChangeBits) {
  const PageProblem longest = random_page_problem({1, 1, 32, 48}, PageDecay::kChannel,
                                                  PageWrite::kDelta, RaggedBatch({49}, {5}), 13);
  const PageResult all = run_page_memory(longest, {.form = PageForm::kChunked});
  for (std::int64_t length = 1; length < 49; ++length) {
    const PageResult prefix = run_page_memory(slice_rows(longest, 0, length, longest.pages),
                                              {.form = PageForm::kChunked});
    EXPECT_TRUE(bit_equal(prefix.o, {all.o.data(), prefix.o.size()})) << length;
  }
}

TEST_P(PageMemory, SlotsOfOthersAndEmptySequencesStayUntouched) {
  const PageProblem problem = random_page_problem({1, 1, 32, 32}, PageDecay::kChannel,
                                                  PageWrite::kDelta, RaggedBatch({0, 3}), 14);
  const PageResult result = run_page_memory(problem);
  const std::int64_t page = problem.page_floats();
  for (std::int64_t slot = 0; slot < problem.batch.slots(); ++slot) {
    const std::span<const float> before(problem.pages.data() + slot * page,
                                        static_cast<std::size_t>(page));
    const std::span<const float> after(result.pages.data() + slot * page,
                                       static_cast<std::size_t>(page));
    EXPECT_EQ(static_cast<bool>(bit_equal(before, after)), slot != problem.batch.slot_ids[1])
        << slot;
  }
}

TEST_P(PageMemory, RoundedPagesMatchTheReference) {
  for (const PageShape& shape : {PageShape{2, 2, 32, 32}, PageShape{1, 3, 20, 9}}) {
    const RaggedBatch batch({70, 0, 1, 130, 16}, {0, 5, 63, 30, 48});
    for (const PageDecay decay : kDecays) {
      for (const PageWrite write : kWrites) {
        PageProblem problem = random_page_problem(shape, decay, write, batch, 12);
        problem.round_every = 64;
        const auto truth = page_truth(problem);
        for (const PageForm form : kForms) {
          EXPECT_TRUE(matches(run_page_memory(problem, {.form = form, .threads = 2}), truth))
              << describe(decay, write, form, shape);
        }
      }
    }
  }
}

TEST_P(PageMemory, RoundingIsWhatHappensAtBordersAndNothingElse) {
  for (const PageShape& shape : {PageShape{1, 2, 24, 40}, PageShape{1, 1, 128, 128}}) {
    for (const PageDecay decay : kDecays) {
      for (const PageForm form : kForms) {
        PageProblem whole =
            random_page_problem(shape, decay, PageWrite::kDelta, RaggedBatch({200}, {37}), 13);
        whole.pages[3] = std::numeric_limits<float>::quiet_NaN();
        std::vector<float> pages = whole.pages, o;
        // Positions 64, 128 and 192 are borders: rows 27, 91, 155.
        for (std::int64_t begin = 0; begin < 200;) {
          const std::int64_t end = std::min<std::int64_t>(200, (begin + 37) / 64 * 64 + 64 - 37);
          const PageResult part =
              run_page_memory(slice_rows(whole, begin, end, pages), {.form = form});
          o.insert(o.end(), part.o.begin(), part.o.end());
          pages = part.pages;
          if ((end + 37) % 64 == 0) {
            const auto page = std::span(pages).subspan(
                static_cast<std::size_t>(whole.batch.slot_ids[0] * whole.page_floats()),
                static_cast<std::size_t>(whole.page_floats()));
            for (float& x : page) x = bf16_to_float(float_to_bf16(x));
          }
          begin = end;
        }
        whole.round_every = 64;
        const PageResult rounded = run_page_memory(whole, {.form = form, .threads = 3});
        EXPECT_TRUE(bit_equal(rounded.o, o)) << describe(decay, PageWrite::kDelta, form, shape);
        EXPECT_TRUE(bit_equal(rounded.pages, pages));
        // Cut elsewhere, where chunks of the recurrence end.
        std::vector<float> cut_pages = whole.pages, cut_o;
        for (const auto& [begin, end] : {std::pair{0, 11}, std::pair{11, 91}, std::pair{91, 200}}) {
          const PageResult part =
              run_page_memory(slice_rows(whole, begin, end, cut_pages), {.form = form});
          cut_o.insert(cut_o.end(), part.o.begin(), part.o.end());
          cut_pages = part.pages;
        }
        EXPECT_TRUE(bit_equal(cut_o, o));
        EXPECT_TRUE(bit_equal(cut_pages, pages));
      }
    }
  }
}

}  // namespace
}  // namespace palimpsest
