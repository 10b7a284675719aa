// What an observer is shown is what the model does, and looking on changes no bit.

#include "model/observer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "support/forward_runner.h"
#include "support/numeric.h"
#include "support/shared_data.h"

namespace palimpsest {
namespace {

using test::ForwardRunner;

std::shared_ptr<const Model> model() {
  static const auto model = Model::load(test::project_path("tests/golden/kimi_k3_text"));
  return model;
}

/// Asks for everything, and holds it against the definitions in kernels/op_args.h.
struct Asker final : Observer {
  Tensor before_pages(std::int64_t, const PageMemoryArgs& args) override {
    const float* page = args.pages.at<float>(args.rows.slots.as<std::int32_t>()[0]);
    before.assign(page, page + args.pages.size(1) * args.pages.size(2) * args.pages.size(3));
    written.resize(static_cast<std::size_t>(args.v.numel()));
    return Tensor::contiguous(written.data(), DType::kF32,
                              {args.v.size(0), args.v.size(1), args.v.size(2)});
  }
  void after_pages(std::int64_t layer, const PageMemoryArgs& args, const Tensor&) override {
    pages.push_back(layer);
    if (args.q.size(0) == 1) check_edit(args);
  }
  /// One token: S' = S diag(exp(g)) + u k^T, from the page before and the page after.
  void check_edit(const PageMemoryArgs& args) {
    const std::int64_t heads = args.v.size(1), values = args.v.size(2), width = args.q.size(2);
    const float* after = args.pages.at<float>(args.rows.slots.as<std::int32_t>()[0]);
    for (std::int64_t i = 0; i < heads * values * width; ++i) {
      const std::int64_t h = i / (values * width), k = i % width;
      const double decay = std::exp(static_cast<double>(args.g.as<float>()[h * width + k]));
      const double kept = decay * static_cast<double>(before[static_cast<std::size_t>(i)]);
      const double added = static_cast<double>(written[static_cast<std::size_t>(i / width)]) *
                           static_cast<double>(args.k.as<float>()[h * width + k]);
      // exp, two products and a sum: a few roundings of what is added up.
      ASSERT_NEAR(after[i], kept + added,
                  8 * test::kEpsF32 * (std::abs(kept) + std::abs(added)) + 1e-37);
    }
    ++edits;
  }
  Tensor before_mix(std::int64_t read, const AttentionResidualArgs& args) override {
    mixes.push_back(read);
    p.resize(static_cast<std::size_t>(args.y.size(0) * args.sources.size(0)));
    return Tensor::contiguous(p.data(), DType::kF32, {args.y.size(0), args.sources.size(0)});
  }
  void after_mix(std::int64_t, const AttentionResidualArgs& args) override {
    const std::int64_t sources = args.sources.size(0), rows = args.y.size(0),
                       width = args.y.size(1);
    for (std::int64_t t = 0; t < rows; ++t) {
      double sum = 0, first = 0, bound = 0;
      for (std::int64_t j = 0; j < sources; ++j) {
        const double weight = p[static_cast<std::size_t>(t * sources + j)],
                     value = args.sources.at<float>(j, t)[0];
        sum += weight;
        first += weight * value;
        bound += std::abs(weight * value);
      }
      ASSERT_NEAR(sum, 1, 1e-5);
      ASSERT_NEAR(args.y.as<float>()[t * width], first, 16 * test::kEpsF32 * bound);
    }
  }
  void on_experts(std::int64_t layer, const Tensor& ids, const Tensor& weights) override {
    experts.push_back(layer);
    for (std::int64_t t = 0; t < ids.size(0); ++t) {
      std::set<std::int32_t> chosen;
      float sum = 0;
      for (std::int64_t e = 0; e < ids.size(1); ++e) {
        chosen.insert(ids.at<std::int32_t>(t, e)[0]);
        sum += weights.at<float>(t, e)[0];
      }
      ASSERT_EQ(chosen.size(), 3u);
      ASSERT_GE(*chosen.begin(), 0);
      ASSERT_LT(*chosen.rbegin(), 6);
      ASSERT_NEAR(sum, 1, 1e-5) << "this model's weights are made to sum to 1";
    }
  }
  std::vector<float> written, before, p;
  std::vector<std::int64_t> pages, mixes, experts;
  int edits = 0;
};

TEST(ModelObserver, SeesWhatTheModelDoesAndChangesNothing) {
  std::vector<std::int32_t> ids;
  for (std::int32_t i = 0; i < 90; ++i) ids.push_back(i * 37 % 200);
  const auto run = [&](Observer* observer) {
    ForwardRunner runner(model(), 2);
    const std::int32_t slot = runner.states.acquire();
    std::vector<float> logits;
    for (const auto& [begin, end] : {std::pair{0, 70}, {70, 71}, {71, 89}, {89, 90}}) {
      const std::vector<std::int32_t> part(ids.begin() + begin, ids.begin() + end);
      const auto rows = runner.pass(std::span(&part, 1), std::span(&slot, 1), observer);
      logits.insert(logits.end(), rows.begin(), rows.end());
    }
    return logits;
  };
  Asker asker;
  const auto seen = run(&asker);
  EXPECT_TRUE(test::bit_equal(seen, run(nullptr)));
  // Four passes: pages in layers 0-2 and 4-6, experts behind the first layer, mixtures wherever
  // more than one block is there.
  std::vector<std::int64_t> pages, experts, mixes;
  for (int pass = 0; pass < 4; ++pass) {
    for (const std::int64_t l : {0, 1, 2, 4, 5, 6}) pages.push_back(l);
    for (std::int64_t l = 1; l < 9; ++l) experts.push_back(l);
    for (std::int64_t read = 1; read < 19; ++read) mixes.push_back(read);
  }
  EXPECT_EQ(asker.pages, pages);
  EXPECT_EQ(asker.experts, experts);
  EXPECT_EQ(asker.mixes, mixes);
  EXPECT_EQ(asker.edits, 12) << "six layers, two passes of one token";
}

}  // namespace
}  // namespace palimpsest
