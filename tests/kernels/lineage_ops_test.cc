// The small ops that GPT-2, Llama, Qwen and the linear attentions add: LayerNorm, biases, scaling, rotation, and the other forms of
// gates, routers and convolutions.

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/elementwise_case.h"
#include "kernels/ragged_batch.h"
#include "kernels/ref/add_bias.h"
#include "kernels/ref/gated_rms_norm.h"
#include "kernels/ref/layer_norm.h"
#include "kernels/ref/multiply_sigmoid.h"
#include "kernels/ref/rotary.h"
#include "kernels/ref/router.h"
#include "kernels/ref/short_conv.h"
#include "kernels/test_targets.h"
#include "ops/ops.h"

namespace palimpsest {
namespace {

using namespace test;

class LineageOps : public EachTarget {};
PALIMPSEST_INSTANTIATE_FOR_EACH_TARGET(LineageOps);

TEST_P(LineageOps, LayerNormMatchesReference) {
  for (const std::int64_t width : kWidths) {
    const std::int64_t rows = 9;
    std::vector<float> x = random_normal(rows * width, 1, 3), weight = random_normal(width, 2), bias = random_normal(width, 3);
    for (float& v : x) v += 2;  // a mean to take away
    LayerNormArgs args{.x = f32(x, {rows, width}), .weight = f32(weight, {width}), .bias = f32(bias, {width}), .eps = 1e-5f};
    const auto got = run_guarded({rows, width}, [&](ExecContext& ctx, const Tensor& y) {
      args.y = y;
      ops::layer_norm(ctx, args);
    });
    std::vector<double> want(x.size()), magnitude(x.size());
    args.y = f64(want, {rows, width});
    ref::layer_norm<double>(args);
    for (std::int64_t t = 0; t < rows; ++t) {
      double mean = 0, variance = 0, top = 0;
      for (std::int64_t c = 0; c < width; ++c) mean += x[static_cast<std::size_t>(t * width + c)] / static_cast<double>(width);
      for (std::int64_t c = 0; c < width; ++c) {
        const double v = x[static_cast<std::size_t>(t * width + c)];
        variance += (v - mean) * (v - mean) / static_cast<double>(width);
        top = std::max(top, std::abs(v));
      }
      // The mean is off by `width` roundings of the row's values; both it and the variance's error are divided by the deviation.
      for (std::int64_t c = 0; c < width; ++c) {
        const auto i = static_cast<std::size_t>(t * width + c);
        magnitude[i] = 3 * top / std::sqrt(variance + 1e-5) * std::abs(weight[static_cast<std::size_t>(c)]) * (1 + std::abs(want[i])) + std::abs(want[i]) +
                       std::abs(bias[static_cast<std::size_t>(c)]);
      }
    }
    EXPECT_TRUE(within_bound(got, want, magnitude, {.c = static_cast<double>(width) + 8})) << width;
  }
}

TEST_P(LineageOps, BiasScaleAndProductAreExactlyRounded) {
  const std::int64_t rows = 5, width = 37;
  std::vector<float> x = random_normal(rows * width, 1), y0 = random_normal(rows * width, 2), bias = random_normal(width, 3);
  const auto on_copy = [&](auto op) {
    return run_guarded({rows, width}, [&](ExecContext& ctx, const Tensor& y) {
      std::copy(y0.begin(), y0.end(), y.as<float>());
      op(ctx, y);
    });
  };
  const auto biased = on_copy([&](ExecContext& ctx, const Tensor& y) { ops::add_bias(ctx, {.bias = f32(bias, {width}), .y = y}); });
  const auto scaled = on_copy([&](ExecContext& ctx, const Tensor& y) { ops::scale(ctx, {.factor = 0.3f, .y = y}); });
  const auto product = on_copy([&](ExecContext& ctx, const Tensor& y) { ops::multiply(ctx, {.x = f32(x, {rows, width}), .y = y}); });
  for (std::size_t i = 0; i < y0.size(); ++i) {
    ASSERT_EQ(biased[i], y0[i] + bias[i % static_cast<std::size_t>(width)]);
    ASSERT_EQ(scaled[i], y0[i] * 0.3f);
    ASSERT_EQ(product[i], y0[i] * x[i]);
  }
}

TEST_P(LineageOps, RotationMatchesReferenceAtAMillionTokens) {
  RaggedBatch batch({3, 0, 5}, {0, 4, 1'000'000});
  const std::int64_t heads = 3, width = 20, n = 7;
  std::vector<double> inv_freq(n);
  for (std::int64_t i = 0; i < n; ++i) inv_freq[static_cast<std::size_t>(i)] = std::pow(10000.0, -2.0 * static_cast<double>(i) / (2 * n));
  std::vector<float> x = random_normal(batch.rows() * heads * width, 4), cos(static_cast<std::size_t>(batch.rows() * n)), sin(cos.size());
  RotaryTableArgs table{.inv_freq = Tensor::contiguous(inv_freq.data(), DType::kF64, {n}), .rows = batch.ragged(), .past = batch.past(),
                        .attention_factor = 1.25, .cos = f32(cos, {batch.rows(), n}), .sin = f32(sin, {batch.rows(), n})};
  ExecContext ctx(2);
  ops::rotary_table(ctx, table);
  for (std::int64_t i = 0; i < n; ++i) {  // last row: position 1,000,004
    const double angle = 1'000'004.0 * inv_freq[static_cast<std::size_t>(i)];
    EXPECT_NEAR(cos[static_cast<std::size_t>(7 * n + i)], 1.25 * std::cos(angle), 1.25 * kEpsF32);
    EXPECT_NEAR(sin[static_cast<std::size_t>(7 * n + i)], 1.25 * std::sin(angle), 1.25 * kEpsF32);
  }
  const auto got = run_guarded({batch.rows(), heads, width}, [&](ExecContext& c, const Tensor& y) {
    std::copy(x.begin(), x.end(), y.as<float>());
    ops::rotary(c, {.x = y, .cos = table.cos, .sin = table.sin});
  });
  std::vector<double> want(x.begin(), x.end()), magnitude(x.size(), 2 * 1.25 * 5);
  ref::rotary<double>({.x = f64(want, {batch.rows(), heads, width}), .cos = table.cos, .sin = table.sin});
  EXPECT_TRUE(within_bound(got, want, magnitude, {.c = 2}));

  std::vector<std::int32_t> positions(static_cast<std::size_t>(batch.rows()));
  ops::positions(ctx, {.rows = batch.ragged(), .past = batch.past(), .out = Tensor::contiguous(positions.data(), DType::kI32, {batch.rows()})});
  EXPECT_EQ(positions, (std::vector<std::int32_t>{0, 1, 2, 1'000'000, 1'000'001, 1'000'002, 1'000'003, 1'000'004}));
}

TEST_P(LineageOps, SiluGateAndOneGateARowMatchReference) {
  const std::int64_t rows = 6, width = 45;
  std::vector<float> x = random_normal(rows * width, 1), gate = random_normal(rows * width, 2, 5), weight = random_normal(width, 3), row_gate = random_normal(rows, 4, 3);
  GatedRmsNormArgs norm{.x = f32(x, {rows, 1, width}), .weight = f32(weight, {width}), .gate = f32(gate, {rows, 1, width}), .function = Unary::kSilu, .eps = 1e-6f};
  const auto got = run_guarded({rows, 1, width}, [&](ExecContext& ctx, const Tensor& y) {
    norm.y = y;
    ops::gated_rms_norm(ctx, norm);
  });
  std::vector<double> want(x.size());
  norm.y = f64(want, {rows, 1, width});
  ref::gated_rms_norm<double>(norm);
  EXPECT_TRUE(within_bound(got, want, relative_magnitude(want), {.c = static_cast<double>(width) / 2 + 20}));

  MultiplySigmoidArgs multiply{.x = f32(x, {rows, width}), .gate = f32(row_gate, {rows, 1})};
  const auto gated = run_guarded({rows, width}, [&](ExecContext& ctx, const Tensor& y) {
    multiply.y = y;
    ops::multiply_sigmoid(ctx, multiply);
  });
  multiply.y = f64(want, {rows, width});
  ref::multiply_sigmoid<double>(multiply);
  EXPECT_TRUE(within_bound(gated, want, relative_magnitude(want), {.c = 12}));
}

TEST_P(LineageOps, SoftmaxRouterMatchesReference) {
  const std::int64_t rows = 12, experts = 50;
  std::vector<float> logits = random_normal(rows * experts, 1, 4);
  for (const bool renormalize : {true, false}) {
    RouterArgs args{.logits = f32(logits, {rows, experts}), .score = RouterScore::kSoftmax, .bias = {}, .top_k = 5, .renormalize = renormalize};
    std::vector<std::int32_t> ids(static_cast<std::size_t>(rows * 5)), want_ids(ids.size());
    std::vector<float> weights(ids.size());
    std::vector<double> want(ids.size());
    args.ids = Tensor::contiguous(ids.data(), DType::kI32, {rows, 5});
    args.weights = f32(weights, {rows, 5});
    ExecContext ctx(2);
    ops::router(ctx, args);
    args.ids = Tensor::contiguous(want_ids.data(), DType::kI32, {rows, 5});
    args.weights = f64(want, {rows, 5});
    ref::router<double>(args);
    EXPECT_EQ(ids, want_ids);
    EXPECT_TRUE(within_bound(weights, want, relative_magnitude(want), {.c = static_cast<double>(experts) + 30}));
  }
}

TEST_P(LineageOps, ConvolutionReadsColumnsOfAWiderMatrix) {
  const std::int64_t rows = 7, channels = 70, stride = 100;
  RaggedBatch batch({3, 4});
  std::vector<float> wide = random_normal(rows * stride, 1), taps = random_normal(channels * 4, 2), narrow;
  for (std::int64_t t = 0; t < rows; ++t) narrow.insert(narrow.end(), wide.begin() + t * stride + 11, wide.begin() + t * stride + 11 + channels);
  Tensor columns = Tensor::contiguous(wide.data() + 11, DType::kF32, {rows, channels});
  columns.strides[0] = stride;
  const auto convolve = [&](const Tensor& x) {
    std::vector<float> tails(static_cast<std::size_t>(batch.slots() * 3 * channels), 0.5f), y(static_cast<std::size_t>(rows * channels));
    ExecContext ctx(2);
    ops::short_conv(ctx, {.x = x, .weight = f32(taps, {channels, 4}), .tails = f32(tails, {batch.slots(), 3, channels}), .rows = batch.ragged(), .y = f32(y, {rows, channels})});
    y.insert(y.end(), tails.begin(), tails.end());
    return y;
  };
  EXPECT_TRUE(bit_equal(convolve(columns), convolve(f32(narrow, {rows, channels}))));
}

}  // namespace
}  // namespace palimpsest
