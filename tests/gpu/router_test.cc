// Routing of few rows at once: the choice and the bits of routing a row by turns, which many rows are given to.

#include <bit>
#include <cmath>

#include "gpu/device_test.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/plain_kernels.h"
#include "support/numeric.h"

namespace palimpsest::test {
namespace {

class DeviceRouter : public DeviceTest {};

TEST_F(DeviceRouter, FewRowsAtOnceAreManyInTurn) {
  for (const std::int64_t experts : {std::int64_t{8}, std::int64_t{61}, std::int64_t{256}, std::int64_t{896}}) {
    for (const bool softmax : {false, true}) {
      constexpr std::int64_t kMany = 300, kFew = 70;
      constexpr std::int32_t kTopK = 8;
      auto logits = random_normal(kMany * experts, 3), bias = random_normal(experts, 4, 0.1);
      // Ties, and numbers that are none.
      for (std::size_t i = 0; i < 5 * static_cast<std::size_t>(experts); ++i) logits[i] = std::round(logits[i]);
      for (std::size_t i = 0; i < static_cast<std::size_t>(experts) && !softmax; i += 3) logits[static_cast<std::size_t>(7 * experts) + i] = NAN;
      bias[1] = bias[0];
      std::vector<std::int32_t> ids[2];
      std::vector<float> weights[2];
      for (const std::int64_t rows : {kMany, kFew}) {
        const auto numbers = static_cast<std::size_t>(rows * kTopK);
        std::vector<std::int32_t> no_ids(numbers, -1);
        std::vector<float> no_weights(numbers, NAN);
        RouterArgs a;
        a.logits = to_device(Tensor::contiguous(logits.data(), DType::kF32, {rows, experts}));
        a.bias = to_device(Tensor::contiguous(bias.data(), DType::kF32, {experts}));
        a.score = softmax ? RouterScore::kSoftmax : RouterScore::kSigmoid;
        a.top_k = kTopK, a.renormalize = true, a.scale = 2.446f;
        a.ids = to_device(Tensor::contiguous(no_ids.data(), DType::kI32, {rows, kTopK}));
        a.weights = to_device(Tensor::contiguous(no_weights.data(), DType::kF32, {rows, kTopK}));
        cuda::plain::router(a, cuda::cuda_device().stream());
        cuda::cuda_device().wait();
        from_device(a.ids, no_ids.data());
        from_device(a.weights, no_weights.data());
        no_ids.resize(kFew * kTopK), no_weights.resize(kFew * kTopK);
        ids[rows == kFew] = no_ids;
        weights[rows == kFew] = no_weights;
      }
      EXPECT_EQ(ids[1], ids[0]) << experts;
      for (std::size_t i = 0; i < weights[0].size(); ++i) EXPECT_TRUE(std::bit_cast<std::uint32_t>(weights[0][i]) == std::bit_cast<std::uint32_t>(weights[1][i])) << experts << ": " << i;
    }
  }
}

}  // namespace
}  // namespace palimpsest::test
