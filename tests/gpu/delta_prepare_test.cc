// What stands between the projections of a page mixer and its recurrence, in one launch: against double, and by steps the bits of all rows at once.

#include <cmath>

#include "gpu/device_test.h"
#include "kernels/cuda/cuda_device.h"
#include "base/number_formats.h"
#include "kernels/cuda/delta_kernels.h"
#include "kernels/cuda/prompt_kernels.h"
#include "support/numeric.h"

namespace palimpsest::test {
namespace {

class DeltaPrepare : public DeviceTest {
 protected:
  struct Shape {
    std::int64_t heads, width, value_heads, values, taps;
  };
  struct Outputs {
    std::vector<float> q, k, v, g, beta;
  };
  static constexpr std::int64_t kRows = 6, kSlots = 4;

  static double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
  /// Convolution and SiLU of channel c of row t of one sequence without a past.
  static double convolved(const std::vector<float>& x, const std::vector<float>& weight, const Shape& s, std::int64_t channels, std::int64_t t, std::int64_t c) {
    double sum = 0;
    for (std::int64_t i = 0; i < s.taps; ++i) {
      const std::int64_t r = t + 1 - s.taps + i;
      if (r >= 0) sum += static_cast<double>(weight[static_cast<std::size_t>(c * s.taps + i)]) * x[static_cast<std::size_t>(r * channels + c)];
    }
    return sum * sigmoid(sum);
  }

  std::vector<float> q_in, k_in, v_in, f, b, conv_q, conv_k, conv_v, a_log, dt_bias;

  void make_inputs(const Shape& s, std::int64_t rows) {
    const std::int64_t keys = s.heads * s.width, all_values = s.value_heads * s.values, gates = s.value_heads * s.width;
    q_in = random_normal(rows * keys, 1), k_in = random_normal(rows * keys, 2), v_in = random_normal(rows * all_values, 3), f = random_normal(rows * gates, 4);
    b = random_normal(rows * s.value_heads, 5), a_log = random_normal(s.value_heads, 6), dt_bias = random_normal(gates, 7);
    conv_q = random_normal(keys * s.taps, 8), conv_k = random_normal(keys * s.taps, 9), conv_v = random_normal(all_values * s.taps, 10);
  }

  /// Rows from `first` on of sequences of such lengths in slots from `slot` on. `past`: rows of prompts in BF16, widened here.
  Outputs run(const Shape& s, std::int64_t first, const std::vector<std::int64_t>& lengths, const Tensor (&tails)[3], std::int32_t slot = 1, std::vector<std::int64_t> past = {}) {
    std::vector<std::int64_t> cu = {0};
    std::vector<std::int32_t> slots;
    for (const std::int64_t length : lengths) cu.push_back(cu.back() + length), slots.push_back(slot++);
    const std::int64_t count = cu.back(), sequences = static_cast<std::int64_t>(lengths.size());
    const std::int64_t keys = s.heads * s.width, all_values = s.value_heads * s.values, gates = s.value_heads * s.width;
    const auto rows = [&](std::vector<float>& x, std::int64_t width) { return to_device(Tensor::contiguous(x.data() + first * width, DType::kF32, {count, width})); };
    const auto weights = [&](std::vector<float>& x, std::int64_t width) { return to_device(Tensor::contiguous(x.data(), DType::kF32, {width, s.taps})); };
    std::vector<float> empty(static_cast<std::size_t>(count * std::max(keys, std::max(all_values, gates))), NAN);
    const auto result = [&](std::int64_t heads, std::int64_t width) { return to_device(Tensor::contiguous(empty.data(), DType::kF32, {count, heads, width})); };
    DeltaPrepareArgs a;
    a.q_in = rows(q_in, keys), a.k_in = rows(k_in, keys), a.v_in = rows(v_in, all_values);
    a.conv_q = weights(conv_q, keys), a.conv_k = weights(conv_k, keys), a.conv_v = weights(conv_v, all_values);
    a.tails_q = tails[0], a.tails_k = tails[1], a.tails_v = tails[2];
    a.rows = {to_device(Tensor::contiguous(cu.data(), DType::kI64, {sequences + 1})), to_device(Tensor::contiguous(slots.data(), DType::kI32, {sequences}))};
    a.q_scale = 0.25f;
    a.gate = {.f = rows(f, gates).reshape({count, s.value_heads, s.width}), .a_log = to_device(Tensor::contiguous(a_log.data(), DType::kF32, {s.value_heads})),
              .dt_bias = to_device(Tensor::contiguous(dt_bias.data(), DType::kF32, {gates})), .kind = DecayGateKind::kBounded, .lower_bound = -5, .g = result(s.value_heads, s.width)};
    a.beta = rows(b, s.value_heads);
    a.q = result(s.heads, s.width), a.k = result(s.heads, s.width), a.v = result(s.value_heads, s.values);
    std::vector<std::uint16_t> short_empty(empty.size(), 0x7fc0);
    const auto rounded = [&](const Tensor& t) { return to_device(Tensor::contiguous(short_empty.data(), DType::kBF16, {t.numel()})); };
    PromptInputs prompts;
    if (past.empty()) {
      cuda::delta_prepare(a, count == sequences, cuda::cuda_device().stream());
    } else {
      prompts = {.q = rounded(a.q), .k = rounded(a.k), .v = rounded(a.v), .g = rounded(a.gate.g), .beta = rounded(a.beta)};
      cuda::delta_prepare(a, to_device(Tensor::contiguous(past.data(), DType::kI64, {sequences})), prompts, cuda::cuda_device().stream());
    }
    cuda::cuda_device().wait();
    const auto overlay = [&](std::vector<float>& to, const Tensor& bf16) {
      std::vector<std::uint16_t> numbers(to.size());
      from_device(bf16, numbers.data());
      const std::size_t width = to.size() / static_cast<std::size_t>(count);
      for (std::size_t n = 0; n < past.size(); ++n) {
        const auto begin = static_cast<std::size_t>(cu[n]), rows_of_prompt = static_cast<std::size_t>(PromptRule{}(past[n], cu[n + 1] - cu[n]));
        for (std::size_t i = begin * width; i < (begin + rows_of_prompt) * width; ++i) to[i] = bf16_to_float(numbers[i]);
      }
    };
    Outputs out;
    const auto fetch = [&](const Tensor& t, std::vector<float>& to) {
      to.resize(static_cast<std::size_t>(t.numel()));
      from_device(t, to.data());
    };
    fetch(a.q, out.q), fetch(a.k, out.k), fetch(a.v, out.v), fetch(a.gate.g, out.g), fetch(a.beta, out.beta);
    if (!past.empty()) overlay(out.q, prompts.q), overlay(out.k, prompts.k), overlay(out.v, prompts.v), overlay(out.g, prompts.g), overlay(out.beta, prompts.beta);
    return out;
  }
};

TEST_F(DeltaPrepare, AgreesWithDoubleAndByStepsHasTheSameBits) {
  for (const Shape& s : {Shape{2, 128, 2, 128, 4}, {2, 64, 4, 320, 4}, {3, 256, 3, 96, 6}, {1, 72, 2, 40, 2}}) {
    const std::int64_t keys = s.heads * s.width, all_values = s.value_heads * s.values, gates = s.value_heads * s.width;
    make_inputs(s, kRows);
    std::vector<float> zeros(static_cast<std::size_t>(2 * (s.taps - 1) * std::max(keys, all_values)));
    const auto tails = [&](std::int64_t channels) { return to_device(Tensor::contiguous(zeros.data(), DType::kF32, {2, s.taps - 1, channels})); };
    const Tensor whole_tails[3] = {tails(keys), tails(keys), tails(all_values)}, step_tails[3] = {tails(keys), tails(keys), tails(all_values)};
    const Outputs whole = run(s, 0, {kRows}, whole_tails);
    for (std::int64_t t = 0; t < kRows; ++t) {
      const Outputs one = run(s, t, {1}, step_tails);
      const auto same = [&](const std::vector<float>& step, const std::vector<float>& all) {
        return std::equal(step.begin(), step.end(), all.begin() + t * static_cast<std::int64_t>(step.size()));
      };
      EXPECT_TRUE(same(one.q, whole.q) && same(one.k, whole.k) && same(one.v, whole.v) && same(one.g, whole.g) && same(one.beta, whole.beta)) << "row " << t << ", width " << s.width;
    }
    for (int i = 0; i < 3; ++i) {
      std::vector<float> a(static_cast<std::size_t>(whole_tails[i].numel())), c(a.size());
      from_device(whole_tails[i], a.data());
      from_device(step_tails[i], c.data());
      EXPECT_EQ(a, c) << "tail " << i;
    }
    // Sums of few terms and of squares, exponentials of numbers below ten: errors of some dozens of roundings.
    const auto near = [](float got, double want, double size) { return std::abs(got - want) <= 64 * kEpsF32 * size; };
    std::size_t wrong = 0;
    for (std::int64_t t = 0; t < kRows; ++t) {
      for (std::int64_t h = 0; h < s.heads; ++h) {
        double squares[2] = {};
        for (std::int64_t c = h * s.width; c < (h + 1) * s.width; ++c) {
          squares[0] += std::pow(convolved(q_in, conv_q, s, keys, t, c), 2);
          squares[1] += std::pow(convolved(k_in, conv_k, s, keys, t, c), 2);
        }
        for (std::int64_t c = h * s.width; c < (h + 1) * s.width; ++c) {
          const auto at = static_cast<std::size_t>(t * keys + c);
          wrong += !near(whole.q[at], 0.25 * convolved(q_in, conv_q, s, keys, t, c) / std::sqrt(squares[0] + 1e-6), 1);
          wrong += !near(whole.k[at], convolved(k_in, conv_k, s, keys, t, c) / std::sqrt(squares[1] + 1e-6), 1);
        }
      }
      for (std::int64_t c = 0; c < all_values; ++c) wrong += !near(whole.v[static_cast<std::size_t>(t * all_values + c)], convolved(v_in, conv_v, s, all_values, t, c), 16);
      for (std::int64_t c = 0; c < gates; ++c) {
        const auto at = static_cast<std::size_t>(t * gates + c);
        const double x = static_cast<double>(f[at]) + dt_bias[static_cast<std::size_t>(c)];
        wrong += !near(whole.g[at], -5 * sigmoid(std::exp(static_cast<double>(a_log[static_cast<std::size_t>(c / s.width)])) * x), 50);
      }
      for (std::int64_t h = 0; h < s.value_heads; ++h) {
        const auto at = static_cast<std::size_t>(t * s.value_heads + h);
        wrong += !near(whole.beta[at], sigmoid(b[at]), 1);
      }
    }
    EXPECT_EQ(wrong, 0U) << "width " << s.width;
    memory_.clear();
  }
}

TEST_F(DeltaPrepare, ManyRowsHaveTheBitsOfEachSequenceAlone) {
  const Shape s{32, 128, 32, 128, 4};
  const std::vector<std::int64_t> lengths = {70, 1, 100};  // together in runs of 32 rows, alone a block a row
  const std::int64_t channels = s.heads * s.width;
  make_inputs(s, 171);
  std::vector<float> past = random_normal(kSlots * (s.taps - 1) * channels, 11);
  const auto tails = [&] { return to_device(Tensor::contiguous(past.data(), DType::kF32, {kSlots, s.taps - 1, channels})); };
  const Tensor together_tails[3] = {tails(), tails(), tails()}, alone_tails[3] = {tails(), tails(), tails()};
  const Outputs together = run(s, 0, lengths, together_tails);
  Outputs alone;
  std::int64_t first = 0;
  for (std::size_t n = 0; n < lengths.size(); first += lengths[n++]) {
    const Outputs one = run(s, first, {lengths[n]}, alone_tails, static_cast<std::int32_t>(n) + 1);
    const auto append = [](std::vector<float>& to, const std::vector<float>& rows) { to.insert(to.end(), rows.begin(), rows.end()); };
    append(alone.q, one.q), append(alone.k, one.k), append(alone.v, one.v), append(alone.g, one.g), append(alone.beta, one.beta);
  }
  EXPECT_TRUE(bit_equal(together.q, alone.q) && bit_equal(together.k, alone.k) && bit_equal(together.v, alone.v));
  EXPECT_TRUE(bit_equal(together.g, alone.g) && bit_equal(together.beta, alone.beta));
  for (int i = 0; i < 3; ++i) {
    std::vector<float> a(past.size()), c(past.size());
    from_device(together_tails[i], a.data());
    from_device(alone_tails[i], c.data());
    EXPECT_TRUE(bit_equal(a, c)) << "tail " << i;
  }
}

// Rows of prompts in BF16, others in F32: in runs of rows, and of shapes that are rounded afterwards.
TEST_F(DeltaPrepare, RowsOfPromptsAreRounded) {
  for (const Shape& s : {Shape{32, 128, 32, 128, 4}, {2, 64, 4, 64, 4}}) {
    const std::vector<std::int64_t> lengths = {70, 1, 190}, past = {0, 5, 30};
    const std::int64_t channels = s.value_heads * s.width;
    make_inputs(s, 261);
    std::vector<float> zeros(static_cast<std::size_t>(kSlots * (s.taps - 1) * channels));
    const auto tails = [&](std::int64_t heads) { return to_device(Tensor::contiguous(zeros.data(), DType::kF32, {kSlots, s.taps - 1, heads * s.width})); };
    const Tensor first[3] = {tails(s.heads), tails(s.heads), tails(s.value_heads)}, second[3] = {tails(s.heads), tails(s.heads), tails(s.value_heads)};
    Outputs want = run(s, 0, lengths, first);
    const Outputs got = run(s, 0, lengths, second, 1, past);
    const auto same = [&](std::vector<float>& x, const std::vector<float>& y) {
      const std::size_t width = x.size() / 261;
      std::size_t begin = 0;
      for (std::size_t n = 0; n < lengths.size(); begin += static_cast<std::size_t>(lengths[n++]) * width) {
        const auto rows = static_cast<std::size_t>(PromptRule{}(past[n], lengths[n]));
        for (std::size_t i = begin; i < begin + rows * width; ++i) x[i] = bf16_to_float(float_to_bf16(x[i]));
      }
      return bit_equal(x, y);
    };
    EXPECT_TRUE(same(want.q, got.q) && same(want.k, got.k) && same(want.v, got.v)) << s.width;
    EXPECT_TRUE(same(want.g, got.g) && same(want.beta, got.beta)) << s.width;
    memory_.clear();
  }
}

}  // namespace
}  // namespace palimpsest::test
