// A step of Kimi Delta Attention in one launch has the bits of its three parts, which have tests against double of their own.

#include "base/number_formats.h"
#include "gpu/device_test.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/delta_kernels.h"
#include "kernels/cuda/plain_kernels.h"
#include "kernels/cuda/tile_kernels.h"
#include "kernels/one_row_args.h"
#include "support/numeric.h"

namespace palimpsest::test {
namespace {

class KdaStep : public DeviceTest {};

TEST_F(KdaStep, HasTheBitsOfItsParts) {
  constexpr std::int64_t kHeads = 3, kWidth = 128, kChannels = kHeads * kWidth, kSlots = 10, kPage = kHeads * kWidth * kWidth;
  const auto floats = [&](std::vector<float>& x, std::initializer_list<std::int64_t> shape) { return to_device(Tensor::contiguous(x.data(), DType::kF32, shape)); };
  const auto read = [&](const Tensor& t) {
    std::vector<float> x(static_cast<std::size_t>(t.numel()));
    from_device(t, x.data());
    return x;
  };
  for (const std::int64_t rows : {std::int64_t{1}, std::int64_t{9}}) {
    for (const auto& [kind, low_parts] : {std::pair{DecayGateKind::kBounded, 0}, {DecayGateKind::kSoftplus, 0}, {DecayGateKind::kBounded, 1}, {DecayGateKind::kSoftplus, 2}}) {
      if (rows > 1 && low_parts > 0) continue;
      std::vector<float> numbers[5], taps[3], tails[3], a_log = random_normal(kHeads, 1), bias = random_normal(kChannels, 2), beta = random_normal(rows * kHeads, 3), weight = random_normal(kWidth, 4),
                                                     pages = random_normal(kSlots * kPage, 5), none(static_cast<std::size_t>(rows * kChannels), NAN);
      for (std::uint64_t i = 0; i < 5; ++i) numbers[i] = random_normal(rows * kChannels, 10 + i);
      for (std::uint64_t i = 0; i < 3; ++i) taps[i] = random_normal(kChannels * 4, 20 + i), tails[i] = random_normal(kSlots * 3 * kChannels, 30 + i);
      std::vector<std::int64_t> cu(static_cast<std::size_t>(rows + 1));
      std::vector<std::int32_t> slots;
      for (std::int64_t n = 0; n <= rows; ++n) cu[static_cast<std::size_t>(n)] = n;
      for (std::int64_t n = 0; n < rows; ++n) slots.push_back(static_cast<std::int32_t>((3 * n + 2) % kSlots));
      const auto arguments = [&] {
        KdaStepArgs a;
        a.in.q_in = floats(numbers[0], {rows, kChannels}), a.in.k_in = floats(numbers[1], {rows, kChannels}), a.in.v_in = floats(numbers[2], {rows, kChannels});
        a.in.conv_q = floats(taps[0], {kChannels, 4}), a.in.conv_k = floats(taps[1], {kChannels, 4}), a.in.conv_v = floats(taps[2], {kChannels, 4});
        a.in.tails_q = floats(tails[0], {kSlots, 3, kChannels}), a.in.tails_k = floats(tails[1], {kSlots, 3, kChannels}), a.in.tails_v = floats(tails[2], {kSlots, 3, kChannels});
        a.in.rows = {to_device(Tensor::contiguous(cu.data(), DType::kI64, {rows + 1})), to_device(Tensor::contiguous(slots.data(), DType::kI32, {rows}))};
        a.in.q_scale = 0.3f;
        a.in.beta = floats(beta, {rows, kHeads}), a.in.beta_scale = 2;
        a.in.gate = {.f = floats(numbers[3], {rows, kHeads, kWidth}), .a_log = floats(a_log, {kHeads}), .dt_bias = floats(bias, {kChannels}), .kind = kind, .lower_bound = -5, .g = floats(none, {rows, kHeads, kWidth})};
        a.pages = floats(pages, {kSlots, kHeads, kWidth, kWidth});
        a.norm = {.x = {}, .weight = floats(weight, {kWidth}), .gate = floats(numbers[4], {rows, kHeads, kWidth}), .eps = 1e-5f, .y = floats(none, {rows, kHeads, kWidth})};
        return a;
      };
      KdaStepArgs whole = arguments();
      KdaStepArgs parts = arguments();
      // f, and of the second also the gate, as products.
      std::vector<std::uint16_t> halves;
      for (const float x : random_normal(kChannels * kWidth, 40)) halves.push_back(float_to_bf16(x));
      auto low = random_normal(kWidth, 41);
      Matrix up;
      up.dense = to_device(Tensor::contiguous(halves.data(), DType::kBF16, {kChannels, kWidth}));
      const Tensor x = floats(low, {1, kWidth});
      const MatmulArgs products[2] = {{x, up, parts.in.gate.f.reshape({rows, kChannels})}, {x, low_parts == 2 ? up : Matrix{}, parts.norm.gate.reshape({rows, kChannels})}};
      ASSERT_TRUE(cuda::takes_kda_step(whole));
      void* const stream = cuda::cuda_device().stream();
      std::vector<std::uint8_t> image(static_cast<std::size_t>(RowImage::bytes(kChannels)), 0xff);
      if (rows > 1) whole.image = {to_device(Tensor::contiguous(image.data(), DType::kU8, {RowImage::bytes(kChannels)})).data, 2};
      if (low_parts == 0) {
        cuda::kda_step(whole, stream);
      } else {
        ASSERT_TRUE(cuda::takes_kda_step_from(whole, products[0], products[1]));
        cuda::kda_step_from(whole, products[0], products[1], low_parts, stream);
        cuda::tile_matmul({products, static_cast<std::size_t>(low_parts)}, low_parts, nullptr, stream);
      }

      parts.in.q = floats(none, {rows, kHeads, kWidth}), parts.in.k = floats(none, {rows, kHeads, kWidth}), parts.in.v = floats(none, {rows, kHeads, kWidth});
      cuda::delta_prepare(parts.in, true, stream);
      DeltaStepArgs step;
      step.in = {.q = parts.in.q, .k = parts.in.k, .v = parts.in.v, .f = parts.in.gate.g, .b = parts.in.beta, .gate = DeltaGate::kLogDecay, .a_log = {}, .dt_bias = {}, .l2_norm = false, .beta_sigmoid = false};
      step.pages = parts.pages, step.cu_seqlens = parts.in.rows.cu_seqlens, step.slots = parts.in.rows.slots, step.o = parts.norm.y;
      cuda::delta_step(step, 1, stream);
      parts.norm.x = parts.norm.y;
      cuda::plain::gated_rms_norm(parts.norm, stream);
      cuda::cuda_device().wait();
      EXPECT_TRUE(bit_equal(read(whole.norm.y), read(parts.norm.y))) << rows << " rows";
      if (rows > 1) {  // a product of the image
        Matrix square;
        std::vector<std::uint16_t> w;
        for (const float number : random_normal(kChannels * kChannels, 42)) w.push_back(float_to_bf16(number));
        square.dense = to_device(Tensor::contiguous(w.data(), DType::kBF16, {kChannels, kChannels}));
        const MatmulArgs of[2] = {{whole.norm.y.reshape({rows, kChannels}), square, floats(none, {rows, kChannels})}, {whole.norm.y.reshape({rows, kChannels}), square, floats(none, {rows, kChannels})}};
        for (const MatmulArgs& m : of) cuda::tile_matmul({&m, 1}, 2, whole.image.to, stream, &m == of ? whole.image.to : nullptr);
        cuda::cuda_device().wait();
        EXPECT_TRUE(bit_equal(read(of[0].y), read(of[1].y)));
      }
      EXPECT_TRUE(bit_equal(read(whole.pages), read(parts.pages))) << rows << " rows";
      EXPECT_TRUE(bit_equal(read(whole.in.tails_q), read(parts.in.tails_q)) && bit_equal(read(whole.in.tails_k), read(parts.in.tails_k)) && bit_equal(read(whole.in.tails_v), read(parts.in.tails_v)));
      memory_.clear();
    }
  }
}

}  // namespace
}  // namespace palimpsest::test
