// The recorded cases of KDA, Gated DeltaNet, DeltaNet and linear attention: o and the final states,
// from the references of other people.

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "kernels/page_case.h"
#include "kernels/test_targets.h"
#include "support/golden.h"
#include "support/shared_data.h"

namespace palimpsest {
namespace {

using test::Golden;
using test::PageProblem;

/// x / sqrt(sum x^2 + 1e-6) * scale over rows of `width`, in double, rounded once.
std::vector<float> normalised(const std::vector<float>& x, std::int64_t width, double scale,
                              bool normalise) {
  std::vector<float> out(x.size());
  const auto n = static_cast<std::size_t>(width);
  for (std::size_t row = 0; row < x.size(); row += n) {
    double sum = 1e-6;
    for (std::size_t d = 0; d < n; ++d) sum += static_cast<double>(x[row + d]) * x[row + d];
    const double factor = normalise ? scale / std::sqrt(sum) : scale;
    for (std::size_t d = 0; d < n; ++d) out[row + d] = static_cast<float>(x[row + d] * factor);
  }
  return out;
}

/// Recorded states are key-first [N, H, K, V]; pages are value-first and lie in slots.
std::vector<float> pages_of(const PageProblem& p, const std::vector<float>& states) {
  std::vector<float> pages(static_cast<std::size_t>(p.batch.slots() * p.page_floats()));
  const auto& s = p.shape;
  for (std::int64_t n = 0; n < p.batch.sequences() && !states.empty(); ++n) {
    const std::int64_t slot = p.batch.slot_ids[static_cast<std::size_t>(n)];
    for (std::int64_t h = 0; h < s.heads; ++h) {
      for (std::int64_t k = 0; k < s.width; ++k) {
        for (std::int64_t v = 0; v < s.values; ++v) {
          pages[static_cast<std::size_t>(((slot * s.heads + h) * s.values + v) * s.width + k)] =
              states[static_cast<std::size_t>(((n * s.heads + h) * s.width + k) * s.values + v)];
        }
      }
    }
  }
  return pages;
}

PageProblem recorded_problem(const Golden& golden, const std::string& name, PageDecay decay,
                             PageWrite write) {
  PageProblem p;
  const auto q = golden.shape(name + ".q"), v = golden.shape(name + ".v");
  p.shape = {q[2], q[2], q[3], v[3]};
  p.decay = decay;
  p.write = write;
  std::vector<std::int64_t> lengths(static_cast<std::size_t>(q[0]), q[1]);
  if (golden.has(name + ".cu_seqlens")) {
    const auto cu = golden.ids(name + ".cu_seqlens");
    lengths.clear();
    for (std::size_t n = 0; n + 1 < cu.size(); ++n) lengths.push_back(cu[n + 1] - cu[n]);
  }
  p.batch = test::RaggedBatch(lengths);
  const bool normalise = write == PageWrite::kDelta;
  p.q = normalised(golden.floats(name + ".q"), q[3], 1 / std::sqrt(static_cast<double>(q[3])),
                   normalise);
  p.k = normalised(golden.floats(name + ".k"), q[3], 1, normalise);
  p.v = golden.floats(name + ".v");
  if (decay != PageDecay::kNone) p.g = golden.floats(name + ".g");
  if (golden.has(name + ".beta")) p.beta = golden.floats(name + ".beta");
  p.pages =
      pages_of(p, golden.has(name + ".h0") ? golden.floats(name + ".h0") : std::vector<float>{});
  return p;
}

struct Family {
  std::string file;
  PageDecay decay;
  PageWrite write;
};

class PageMemoryGolden : public test::EachTarget {};
PALIMPSEST_INSTANTIATE_FOR_EACH_TARGET(PageMemoryGolden);

TEST_P(PageMemoryGolden, RecordedCases) {
  for (const Family& family : {Family{"kda", PageDecay::kChannel, PageWrite::kDelta},
                               {"gdn", PageDecay::kHead, PageWrite::kDelta},
                               {"delta_rule", PageDecay::kNone, PageWrite::kDelta},
                               {"linear_attn", PageDecay::kNone, PageWrite::kPlain}}) {
    const auto path = test::shared_path("golden/ops/" + family.file + ".safetensors");
    if (path.empty())
      GTEST_SKIP() << "shared data absent: golden/ops/" << family.file << ".safetensors";
    const Golden golden(path);
    int cases = 0;
    for (const std::string name :
         {"lb_varlen", "sp_varlen", "lb_t1", "sp_t37", "lb_t70_k128", "sp_big_t131", "lb_sat_t64",
          "lb_keep_t131", "varlen", "t1", "t37", "t70_k128", "t131", "strong_t64", "t1_h0",
          "t37_h0", "t70", "t70_h0", "t131_h0"}) {
      if (!golden.has(name + ".q")) continue;
      ++cases;
      const PageProblem problem = recorded_problem(golden, name, family.decay, family.write);
      // The recorded results used q, k, g and beta before they were rounded: one rounding each, and
      // |g| exp(g) <= 0.4 for the gate's. They were rounded themselves when stored.
      test::PageTruth truth = page_truth(problem, 4);
      const std::vector<float> o = golden.floats(name + ".o"),
                               pages = pages_of(problem, golden.floats(name + ".hT"));
      std::vector<float> reference(truth.o.begin(), truth.o.end());
      EXPECT_TRUE(test::within_bound(reference, test::to_double(o), truth.o_bound,
                                     {.c = 1, .eps_acc = 1, .eps_out = 2 * test::kEpsF32}))
          << family.file << " " << name << ", the reference";
      for (std::size_t i = 0; i < truth.o.size(); ++i)
        truth.o_bound[i] += test::kEpsF32 * std::abs(truth.o[i] = o[i]);
      for (std::size_t i = 0; i < truth.pages.size(); ++i)
        truth.page_bound[i] += test::kEpsF32 * std::abs(truth.pages[i] = pages[i]);
      for (const PageForm form : {PageForm::kStep, PageForm::kChunked}) {
        EXPECT_TRUE(matches(run_page_memory(problem, {.form = form, .threads = 2}), truth))
            << family.file << " " << name;
      }
    }
    EXPECT_GE(cases, 5) << family.file;
  }
}

}  // namespace
}  // namespace palimpsest
