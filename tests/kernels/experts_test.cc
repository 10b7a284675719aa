#include "kernels/ref/experts.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <deque>

#include "kernels/cpu/experts.h"
#include "kernels/test_targets.h"
#include "kernels/test_weights.h"
#include "ops/ops.h"
#include "support/numeric.h"

namespace palimpsest {
namespace {

using test::TestWeight;
using test::WeightFormat;

struct Shape {
  std::int64_t tokens, top_k, experts, width, inter;
};

/// A layer of experts with weights small enough that hidden units stay near 1, and a batch with its
/// routing.
class Layer {
 public:
  Layer(WeightFormat format, const Shape& s, GluParams glu, std::uint64_t seed)
      : shape(s), glu_(glu) {
    for (std::int64_t e = 0; e < s.experts; ++e) {
      const auto n = seed + 10 * static_cast<std::uint64_t>(e);
      const TestWeight& w1 = weights_.emplace_back(format, s.inter, s.width, n + 1, e % 7);
      const TestWeight& w3 = weights_.emplace_back(format, s.inter, s.width, n + 2, e % 3);
      const TestWeight& w2 = weights_.emplace_back(format, s.width, s.inter, n + 3, e % 5);
      matrices_.push_back({w1.matrix(), w3.matrix(), w2.matrix()});
    }
    x = test::random_normal(s.tokens * s.width, seed + 4, 0.1);
    route_weights = test::random_uniform(s.tokens * s.top_k, seed + 5, 0.05, 1);
    for (std::int64_t t = 0; t < s.tokens; ++t) {
      // Distinct experts of a token, the first ones more popular than the others.
      std::vector<std::int32_t> ids;
      for (std::uint64_t draw = 0; static_cast<std::int64_t>(ids.size()) < s.top_k; ++draw) {
        const double u = base::uniform(seed, static_cast<std::uint64_t>(t), draw);
        const auto id = static_cast<std::int32_t>(static_cast<double>(s.experts) * u * u);
        if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
      }
      route.insert(route.end(), ids.begin(), ids.end());
    }
  }

  /// y of tokens [begin, begin + count) run as one batch; the workspace has exactly the promised
  /// size.
  std::vector<float> run(std::int64_t begin, std::int64_t count, int threads) {
    std::vector<float> padded(static_cast<std::size_t>(count * (shape.width + 3) + 1),
                              std::nanf(""));
    for (std::int64_t t = 0; t < count; ++t) {
      std::copy_n(x.begin() + (begin + t) * shape.width, shape.width,
                  padded.begin() + t * (shape.width + 3));
    }
    ExecContext ctx(threads);
    ctx.activations = activations;
    ctx.workspace.reserve(
        cpu::experts_workspace_bytes(count, shape.top_k, shape.width, shape.inter, shape.experts));
    test::GuardedBuffer out(count * shape.width * 4, 4);
    ExpertsArgs a = args(begin, count);
    a.x = Tensor::contiguous(padded.data(), DType::kF32, {count, shape.width});
    a.x.strides[0] = shape.width + 3;
    a.y = Tensor::contiguous(out.as<float>(), DType::kF32, {count, shape.width});
    ops::experts(ctx, a);
    EXPECT_TRUE(out.intact());
    EXPECT_EQ(ctx.workspace.mark(), 0);
    EXPECT_EQ(ctx.workspace.peak(), count * shape.top_k == 0 ? 0 : ctx.workspace.capacity());
    return {out.as<float>(), out.as<float>() + count * shape.width};
  }

  ExpertsArgs args(std::int64_t begin, std::int64_t count) {
    ExpertsArgs a;
    a.ids =
        Tensor::contiguous(route.data() + begin * shape.top_k, DType::kI32, {count, shape.top_k});
    a.weights = Tensor::contiguous(route_weights.data() + begin * shape.top_k, DType::kF32,
                                   {count, shape.top_k});
    a.experts = matrices_.data();
    a.num_experts = shape.experts;
    a.glu = glu_;
    return a;
  }

  const TestWeight& weight(std::int64_t expert, int which) const {
    return weights_[static_cast<std::size_t>(3 * expert + which)];
  }

  Shape shape;
  Activations activations = Activations::kF32;
  std::vector<float> x, route_weights;
  std::vector<std::int32_t> route;

 private:
  GluParams glu_;
  std::deque<TestWeight> weights_;
  std::vector<ExpertMatrices> matrices_;
};

/// The truth, and per element what rounding errors are proportional to.
struct Truth {
  std::vector<double> y, magnitude;
};

/// Errors of hidden unit i: those of its two dot products, carried through the gated unit by its
/// slopes, and its own; then those of the down projection. All enter y with |w2| and the routing
/// weight.
Truth truth(Layer& layer, const GluParams& glu) {
  const Shape& s = layer.shape;
  std::deque<std::vector<double>> memory;
  std::vector<ExpertMatrices> experts;
  for (std::int64_t e = 0; e < s.experts; ++e) {
    const auto dense = [&](int which) {
      const Matrix& stored = layer.weight(e, which).matrix();
      Matrix m;
      m.dense = Tensor::contiguous(memory.emplace_back(layer.weight(e, which).values()).data(),
                                   DType::kF64, {stored.rows(), stored.cols()});
      return m;
    };
    experts.push_back({dense(0), dense(1), dense(2)});
  }
  std::vector<double> x = test::to_double(layer.x);
  Truth out{std::vector<double>(x.size()), std::vector<double>(x.size())};
  ExpertsArgs a = layer.args(0, s.tokens);
  a.experts = experts.data();
  a.x = Tensor::contiguous(x.data(), DType::kF64, {s.tokens, s.width});
  a.y = Tensor::contiguous(out.y.data(), DType::kF64, {s.tokens, s.width});
  std::vector<double> hidden(static_cast<std::size_t>(s.inter));
  ref::experts<double>(a, hidden.data());

  std::vector<double> unit(hidden.size());
  for (std::int64_t t = 0; t < s.tokens; ++t) {
    for (std::int64_t j = 0; j < s.top_k; ++j) {
      const std::int64_t pair = t * s.top_k + j;
      const ExpertMatrices& e =
          experts[static_cast<std::size_t>(layer.route[static_cast<std::size_t>(pair)])];
      for (std::int64_t i = 0; i < s.inter; ++i) {
        const double gate = ref::matmul_element<double>(a.x, e.w1, t, i),
                     up = ref::matmul_element<double>(a.x, e.w3, t, i);
        double gate_sum = 0, up_sum = 0;
        for (std::int64_t k = 0; k < s.width; ++k) {
          gate_sum += std::abs(x[static_cast<std::size_t>(t * s.width + k)] *
                               ref::load<double>(e.w1, i, k));
          up_sum += std::abs(x[static_cast<std::size_t>(t * s.width + k)] *
                             ref::load<double>(e.w3, i, k));
        }
        // |d glu / d up| <= |glu(gate, 1)| bounded by |gate|; |d glu / d gate| <= 1.1 |up| for
        // silu, less for the bounded unit.
        unit[static_cast<std::size_t>(i)] = std::abs(ref::glu<double>(gate, up, glu)) +
                                            1.1 * std::abs(up) * gate_sum + std::abs(gate) * up_sum;
      }
      for (std::int64_t c = 0; c < s.width; ++c) {
        double sum = 0;
        for (std::int64_t i = 0; i < s.inter; ++i)
          sum += std::abs(ref::load<double>(e.w2, c, i)) * unit[static_cast<std::size_t>(i)];
        out.magnitude[static_cast<std::size_t>(t * s.width + c)] +=
            std::abs(layer.route_weights[static_cast<std::size_t>(pair)]) * sum;
      }
    }
  }
  return out;
}

void check_against_reference(WeightFormat format, const Shape& s, GluParams glu, int threads) {
  SCOPED_TRACE(testing::Message() << test::format_name(format) << " " << cpu::active_target()
                                  << " tokens " << s.tokens << " top_k " << s.top_k << " experts "
                                  << s.experts << " width " << s.width << " inter " << s.inter);
  Layer layer(format, s, glu, 5);
  const std::vector<float> y = layer.run(0, s.tokens, threads);
  const Truth want = truth(layer, glu);
  // Chains of both products (their longest is SCALAR's), about 8 roundings in the gated unit, one
  // per routed expert.
  const int lanes = cpu::active_target() == "AVX3" ? 16 : cpu::active_target() == "AVX2" ? 8 : 1;
  const auto chain = [&](std::int64_t k) {
    return static_cast<double>(std::min<std::int64_t>(k, 512) / lanes + 6 + k / 512);
  };
  EXPECT_TRUE(test::within_bound(
      y, want.y, want.magnitude,
      {.c = chain(s.width) + chain(s.inter) + 8 + static_cast<double>(s.top_k)}));
}

constexpr GluParams kSwiglu{.kind = Glu::kSwiglu};
constexpr GluParams kSitu{.kind = Glu::kSitu, .beta = 4, .linear_beta = 25};

class ExpertsTest : public test::EachTarget {};
PALIMPSEST_INSTANTIATE_FOR_EACH_TARGET(ExpertsTest);

TEST_P(ExpertsTest, AgreeWithDouble) {
  for (const auto format : test::kWeightFormats) {
    for (const std::int64_t tokens : {0, 1, 2, 5, 40}) {
      check_against_reference(format, {tokens, 3, 8, 64, 96}, kSwiglu, 1);
      check_against_reference(format, {tokens, 2, 5, 96, 32}, kSitu, 2);
    }
  }
  check_against_reference(WeightFormat::kBf16, {3, 1, 1, 33, 17}, kSwiglu, 3);
  check_against_reference(WeightFormat::kMxfp4, {150, 1, 2, 32, 288}, kSitu,
                          2);  // more rows and columns than a chunk
  check_against_reference(WeightFormat::kBf16, {2, 8, 8, 1, 1}, kSwiglu, 2);
}

TEST_P(ExpertsTest, WithRoundedActivationsAreTheirProductsBitForBit) {
  for (const Activations activations : {Activations::kQ8, Activations::kQ16, Activations::kMxfp8}) {
    Layer layer(WeightFormat::kMxfp4, {9, 1, 1, 96, 64}, kSwiglu, 8);
    layer.activations = activations;
    std::fill(layer.route_weights.begin(), layer.route_weights.end(), 1.0f);
    ExecContext ctx(1);
    ctx.activations = activations;
    std::vector<float> gate(9 * 64), up(9 * 64), y(9 * 96);
    const Tensor x = Tensor::contiguous(layer.x.data(), DType::kF32, {9, 96}),
                 g = Tensor::contiguous(gate.data(), DType::kF32, {9, 64}),
                 u = Tensor::contiguous(up.data(), DType::kF32, {9, 64});
    ops::matmul(ctx, {.x = x, .w = layer.weight(0, 0).matrix(), .y = g});
    ops::matmul(ctx, {.x = x, .w = layer.weight(0, 1).matrix(), .y = u});
    ops::glu(ctx, {.gate = g, .up = u, .params = kSwiglu, .y = g});
    ops::matmul(ctx, {.x = g, .w = layer.weight(0, 2).matrix(),
                      .y = Tensor::contiguous(y.data(), DType::kF32, {9, 96})});
    EXPECT_TRUE(test::bit_equal(layer.run(0, 9, 2), y));
    for (std::int64_t t = 0; t < 9; ++t)
      EXPECT_TRUE(test::bit_equal(layer.run(t, 1, 1), std::span(y).subspan(static_cast<std::size_t>(t * 96), 96)));
  }
}

TEST_P(ExpertsTest, TokenIsTheSameAloneAndInEveryBatchAndForEveryNumberOfThreads) {
  for (const auto format : test::kWeightFormats) {
    Layer layer(format, {70, 4, 9, 96, 288}, kSitu, 6);
    std::vector<float> alone;
    for (std::int64_t t = 0; t < 70; ++t) {
      const auto y = layer.run(t, 1, 1);
      alone.insert(alone.end(), y.begin(), y.end());
    }
    for (const int threads : {1, 2, 3, 5}) {
      for (const std::int64_t count : {1, 2, 3, 7, 33, 70}) {
        SCOPED_TRACE(testing::Message()
                     << test::format_name(format) << " threads " << threads << " tokens " << count);
        const auto y = layer.run(70 - count, count, threads);
        ASSERT_TRUE(test::bit_equal(y, std::span(alone).last(y.size())));
      }
    }
  }
}

/// The sums of one row are work enough for two threads, and are one row's.
TEST(ExpertsWorkspaceTest, OneWideRowIsSummed) {
  Layer layer(WeightFormat::kBf16, {1, 16, 16, 4096, 32}, kSwiglu, 9);
  EXPECT_TRUE(test::bit_equal(layer.run(0, 1, 2), layer.run(0, 1, 1)));
}

TEST(ExpertsWorkspaceTest, AbsentExpertsAreNotReadAndPlanningReservesWhatRunningTakes) {
  Layer layer(WeightFormat::kBf16, {1, 2, 6, 32, 32}, kSwiglu, 7);
  std::vector<ExpertMatrices> only_routed(6);
  ExpertsArgs a = layer.args(0, 1);
  for (const std::int32_t id : layer.route)
    only_routed[static_cast<std::size_t>(id)] = a.experts[id];
  a.experts = only_routed.data();
  std::vector<float> y(32);
  a.x = Tensor::contiguous(layer.x.data(), DType::kF32, {1, 32});
  a.y = Tensor::contiguous(y.data(), DType::kF32, {1, 32});
  ExecContext ctx(1);
  ctx.workspace.reserve(cpu::experts_workspace_bytes(1, 2, 32, 32, 6));
  ops::experts(ctx, a);
  EXPECT_TRUE(test::bit_equal(y, layer.run(0, 1, 1)));

  ExecContext plan(1);
  plan.workspace = Arena::measuring_only();
  ops::experts(plan, a);
  EXPECT_EQ(plan.workspace.peak(), ctx.workspace.peak());
}

RC_GTEST_PROP(ExpertsProperty, BatchesDoNotMixTokens, ()) {
  const std::int64_t experts = *rc::gen::inRange(1, 20),
                     top_k =
                         *rc::gen::inRange<std::int64_t>(1, std::min<std::int64_t>(experts, 6) + 1);
  const Shape s{*rc::gen::inRange(1, 30), top_k, experts, 32 * *rc::gen::inRange(1, 4),
                32 * *rc::gen::inRange(1, 4)};
  const auto format =
      *rc::gen::elementOf(std::vector<WeightFormat>{WeightFormat::kBf16, WeightFormat::kMxfp4});
  Layer layer(format, s, kSitu, *rc::gen::inRange<std::uint64_t>(1, 1000));
  const auto all = layer.run(0, s.tokens, *rc::gen::inRange(1, 4));
  const std::int64_t t = *rc::gen::inRange<std::int64_t>(0, s.tokens);
  const auto one = layer.run(t, 1, 1);
  RC_ASSERT(static_cast<bool>(test::bit_equal(
      one, std::span(all).subspan(static_cast<std::size_t>(t * s.width), one.size()))));
}

}  // namespace
}  // namespace palimpsest
