// Examples small enough to check by hand, through the op in both of its forms and through the reference: every number must be exact.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kernels/ref/page_memory.h"
#include "ops/ops.h"

namespace palimpsest {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;

using Rows = std::vector<double>;

/// Tokens of one sequence and one head, with the page that they leave.
struct Example {
  std::int64_t K = 2, V = 2;
  PageDecay decay = PageDecay::kNone;
  PageWrite write = PageWrite::kPlain;
  Rows q, k, v, g, beta;
  Rows page;  ///< [V, K]: a row for each value channel
  Rows o;
};

template <class T>
Tensor view(std::vector<T>& x, std::initializer_list<std::int64_t> sizes) {
  return Tensor::contiguous(x.data(), std::is_same_v<T, float> ? DType::kF32 : DType::kF64, sizes);
}

template <class T, class Run>
void compute(Example& e, PageForm form, Run&& run) {
  const auto T_ = static_cast<std::int64_t>(e.k.size()) / e.K;
  const auto as = [](const Rows& x) { return std::vector<T>(x.begin(), x.end()); };
  std::vector<T> q = as(e.q), k = as(e.k), v = as(e.v), g = as(e.g), beta = as(e.beta), page = as(e.page), o(static_cast<std::size_t>(T_ * e.V));
  std::int64_t cu[2] = {0, T_}, past = 0;
  std::int32_t slot = 0;
  PageMemoryArgs args{.q = view(q, {T_, 1, e.K}), .k = view(k, {T_, 1, e.K}), .v = view(v, {T_, 1, e.V}), .g = {}, .beta = {},
                      .pages = view(page, {1, 1, e.V, e.K}),
                      .rows = {Tensor::contiguous(cu, DType::kI64, {2}), Tensor::contiguous(&slot, DType::kI32, {1})},
                      .past = Tensor::contiguous(&past, DType::kI64, {1}), .o = view(o, {T_, 1, e.V}), .decay = e.decay, .write = e.write,
                      .form = form};
  if (!beta.empty()) args.beta = view(beta, {T_, 1});
  if (e.decay == PageDecay::kHead) args.g = view(g, {T_, 1});
  if (e.decay == PageDecay::kChannel) args.g = view(g, {T_, 1, e.K});
  run(args);
  e.page.assign(page.begin(), page.end());
  e.o.assign(o.begin(), o.end());
}

enum class Through { kReference, kStep, kChunked };

class WorkedExample : public testing::TestWithParam<Through> {
 protected:
  Example computed(Example e) {
    if (GetParam() == Through::kReference) {
      compute<double>(e, PageForm::kAuto, [](const PageMemoryArgs& a) { ref::page_memory<double>(a); });
    } else {
      ExecContext ctx(1);
      compute<float>(e, GetParam() == Through::kStep ? PageForm::kStep : PageForm::kChunked,
                     [&](const PageMemoryArgs& a) { ops::page_memory(ctx, a); });
    }
    return e;
  }
};

INSTANTIATE_TEST_SUITE_P(Kernels, WorkedExample, testing::Values(Through::kReference, Through::kStep, Through::kChunked),
                         [](const auto& through) {
                           return through.param == Through::kReference ? "reference" : through.param == Through::kStep ? "step" : "chunked";
                         });

// Columns of the page are what lies under k1 and k2; in rows of value channels S^T = [[3, 5], [4, 6]].
Example two_pairs(PageWrite write) {
  return {.write = write, .q = {1, 0, 0, 1}, .k = {1, 0, 0, 1}, .v = {3, 4, 5, 6}, .g = {}, .beta = {}, .page = {0, 0, 0, 0}, .o = {}};
}

TEST_P(WorkedExample, TwoOrthogonalPairs) {
  for (const PageWrite write : {PageWrite::kPlain, PageWrite::kDelta}) {
    const Example e = computed(two_pairs(write));
    EXPECT_THAT(e.page, ElementsAre(3, 5, 4, 6));
    EXPECT_THAT(e.o, ElementsAre(3, 4, 5, 6));
  }
}

TEST_P(WorkedExample, ASecondValueUnderTheFirstKey) {
  const auto again = [&](PageWrite write, double beta) {
    Example e = two_pairs(write);
    e.q.insert(e.q.end(), {1, 0});
    e.k.insert(e.k.end(), {1, 0});
    e.v.insert(e.v.end(), {9, 2});
    e.beta = {1, 1, beta};
    const Rows o = computed(e).o;
    return Rows(o.end() - 2, o.end());
  };
  EXPECT_THAT(again(PageWrite::kPlain, 1), ElementsAre(12, 6)) << "a plain write adds";
  EXPECT_THAT(again(PageWrite::kDelta, 1), ElementsAre(9, 2)) << "the delta rule replaces";
  EXPECT_THAT(again(PageWrite::kDelta, 0.5), ElementsAre(6, 3)) << "half of the way";
}

TEST_P(WorkedExample, RetentionPerKeyChannel) {
  // Key channels hold [4,8], [2,6], [10,20], [1,3]; this token writes nothing and reads each channel by turns.
  const Rows retention = {0.5, 0.9, 0.01, 1};
  Example e{.K = 4, .V = 2, .decay = PageDecay::kChannel, .write = PageWrite::kDelta, .q = {1, 0, 0, 0}, .k = {0, 0, 0, 0}, .v = {0, 0}, .g = {},
            .beta = {0}, .page = {4, 2, 10, 1, 8, 6, 20, 3}, .o = {}};
  for (const double r : retention) e.g.push_back(std::log(r));
  e = computed(e);
  const Rows expected = {2, 1.8, 0.1, 1, 4, 5.4, 0.2, 3};
  // 0.9 and 0.01 are no binary fractions: log and exp leave a few units in the last place of the type that computes.
  const double unit = GetParam() == Through::kReference ? 0x1p-52 : 0x1p-23;
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_LE(std::abs(e.page[i] - expected[i]), 8 * unit * expected[i]) << i;
  EXPECT_LE(std::abs(e.o[0] - 2), 16 * unit);
  EXPECT_LE(std::abs(e.o[1] - 4), 32 * unit);
}

TEST_P(WorkedExample, OneStepOfKda) {
  // Key channels hold [4, 2] and [1, 3]. Decayed [[2, 1], [1, 3]]; error [6, 5] - [2, 1] = [4, 4]; half of it is written.
  Example e{.K = 2, .V = 2, .decay = PageDecay::kChannel, .write = PageWrite::kDelta, .q = {1, 0}, .k = {1, 0}, .v = {6, 5},
            .g = {std::log(0.5), 0}, .beta = {0.5}, .page = {4, 1, 2, 3}, .o = {}};
  Example decayed_only = e;
  decayed_only.beta = {0};
  EXPECT_THAT(computed(decayed_only).page, ElementsAre(2, 1, 1, 3));
  e = computed(e);
  EXPECT_THAT(e.page, ElementsAre(4, 1, 3, 3)) << "channels [4, 3] and [1, 3]";
  EXPECT_THAT(e.o, ElementsAre(4, 3));
}

TEST_P(WorkedExample, AScalarGateFadesEveryChannelAlike) {
  Example e{.K = 2, .V = 2, .decay = PageDecay::kHead, .write = PageWrite::kDelta, .q = {1, 0}, .k = {1, 0}, .v = {6, 5}, .g = {std::log(0.5)},
            .beta = {0.5}, .page = {4, 1, 2, 3}, .o = {}};
  e = computed(e);
  EXPECT_THAT(e.page, ElementsAre(4, 0.5, 3, 1.5));
  EXPECT_THAT(e.o, ElementsAre(4, 3));
}

}  // namespace
}  // namespace palimpsest
