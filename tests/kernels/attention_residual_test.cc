#include <gtest/gtest.h>

#include <cmath>

#include "kernels/elementwise_case.h"
#include "kernels/ref/attention_residual.h"
#include "kernels/test_targets.h"
#include "ops/ops.h"

namespace palimpsest {
namespace {

using namespace test;

class AttentionResidual : public EachTarget {};
PALIMPSEST_INSTANTIATE_FOR_EACH_TARGET(AttentionResidual);

TEST_P(AttentionResidual, MatchesReference) {
  for (const std::int64_t sources : {1, 2, 9, 21}) {
    for (const std::int64_t width : {1, 17, 64, 100, 384, 1024, 7168}) {
      for (const std::int64_t rows : {0, 1, 5}) {
        const std::int64_t stride = (rows + 2) * width;  // strided in the first dimension
        std::vector<float> v = random_normal(sources * stride, 1, 2),
                           w = random_normal(width, 2, 0.2);
        AttentionResidualArgs args{
            .sources = f32(v, {sources, rows, width}), .w = f32(w, {width}), .eps = 1e-5f};
        args.sources.strides[0] = stride;
        std::vector<float> p(static_cast<std::size_t>(rows * sources));
        args.p = f32(p, {rows, sources});
        const auto got = run_guarded({rows, width}, [&](ExecContext& ctx, const Tensor& y) {
          args.y = y;
          ops::attention_residual(ctx, args);
        });
        std::vector<double> want(got.size()), want_p(p.size());
        args.y = f64(want, {rows, width});
        args.p = f64(want_p, {rows, sources});
        ref::attention_residual<double>(args);
        // A score is off by (width + 8) roundings of sum |v w| / rms, its exponential relatively by
        // as much; then the mixture.
        std::vector<double> magnitude(got.size()), magnitude_p(p.size());
        for (std::int64_t t = 0; t < rows; ++t) {
          double score = 0;
          for (std::int64_t j = 0; j < sources; ++j) {
            double sum = 0, squares = 0;
            for (std::int64_t c = 0; c < width; ++c) {
              const double x = ref::load<double>(args.sources, j * stride + t * width + c);
              sum += std::abs(x * static_cast<double>(w[static_cast<std::size_t>(c)]));
              squares += x * x;
            }
            score = std::max(score, sum / std::sqrt(squares / static_cast<double>(width) + 1e-5));
          }
          for (std::int64_t j = 0; j < sources; ++j) {
            const double weight = want_p[static_cast<std::size_t>(t * sources + j)];
            magnitude_p[static_cast<std::size_t>(t * sources + j)] = weight * (2 * score + 1);
            for (std::int64_t c = 0; c < width; ++c) {
              magnitude[static_cast<std::size_t>(t * width + c)] +=
                  weight * (2 * score + 1) *
                  std::abs(ref::load<double>(args.sources, j * stride + t * width + c));
            }
          }
        }
        const Bound bound{.c = static_cast<double>(width + 8 + sources + 8)};
        EXPECT_TRUE(within_bound(got, want, magnitude, bound))
            << sources << " sources of width " << width;
        EXPECT_TRUE(within_bound(p, want_p, magnitude_p, bound))
            << sources << " sources of width " << width;
      }
    }
  }
}

TEST_P(AttentionResidual, OneSourceIsReturned) {
  std::vector<float> v = random_normal(3 * 50, 4), w = random_normal(50, 5), y(v.size());
  ExecContext ctx(1);
  ops::attention_residual(
      ctx, {.sources = f32(v, {1, 3, 50}), .w = f32(w, {50}), .eps = 1e-5f, .y = f32(y, {3, 50})});
  EXPECT_EQ(v, y);
}

}  // namespace
}  // namespace palimpsest
