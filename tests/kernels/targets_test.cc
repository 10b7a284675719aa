#include <gtest/gtest.h>

#include <algorithm>

#include "kernels/cpu/cpu_kernels.h"
#include "kernels/test_weights.h"
#include "ops/ops.h"

namespace palimpsest::cpu {
namespace {

TEST(TargetsTest, ScalarIsAlwaysThereAndTheBestComesFirst) {
  const auto targets = supported_targets();
  ASSERT_FALSE(targets.empty());
  EXPECT_EQ(targets.back(), "SCALAR");
  ASSERT_TRUE(force_target(""));
  EXPECT_EQ(active_target(), targets.front());
}

#if defined(__x86_64__)
TEST(TargetsTest, FollowTheProcessor) {
  const auto targets = supported_targets();
  const auto has = [&](const char* name) {
    return std::find(targets.begin(), targets.end(), name) != targets.end();
  };
  EXPECT_EQ(has("AVX2"), __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"));
  EXPECT_EQ(has("AVX3"), __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                             __builtin_cpu_supports("avx512dq") &&
                             __builtin_cpu_supports("avx512vl"));
}
#endif

TEST(TargetsTest, ForcingChangesTheActiveTargetAndRefusesOthers) {
  for (const std::string& name : supported_targets()) {
    EXPECT_TRUE(force_target(name));
    EXPECT_EQ(active_target(), name);
    EXPECT_FALSE(force_target("NEON"));
    EXPECT_FALSE(force_target("AVX"));
    EXPECT_EQ(active_target(), name);
  }
  EXPECT_TRUE(force_target(""));
}

/// Each target adds up in its own order: on a sum that rounds, forcing must change the bits.
TEST(TargetsTest, ForcedTargetsRunDifferentCode) {
  const test::TestWeight weight(test::WeightFormat::kF32, 64, 512, 1);
  std::vector<float> x = test::random_normal(512, 2);
  std::vector<std::vector<float>> results;
  for (const std::string& name : cpu::supported_targets()) {
    ASSERT_TRUE(cpu::force_target(name));
    std::vector<float> y(64);
    ExecContext ctx(1);
    ops::matmul(ctx, {.x = Tensor::contiguous(x.data(), DType::kF32, {1, 512}),
                      .w = weight.matrix(),
                      .y = Tensor::contiguous(y.data(), DType::kF32, {1, 64})});
    for (const auto& other : results) EXPECT_FALSE(test::bit_equal(y, other)) << name;
    results.push_back(y);
  }
  cpu::force_target("");
}

}  // namespace
}  // namespace palimpsest::cpu
