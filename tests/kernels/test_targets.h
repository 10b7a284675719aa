#pragma once

// Tests that run once for every instruction set this machine has.

#include <gtest/gtest.h>

#include <string>

#include "kernels/cpu/cpu_kernels.h"

namespace palimpsest::test {

/// Forces the target of its parameter while the test runs. Use with TEST_P and
/// PALIMPSEST_INSTANTIATE_FOR_EACH_TARGET.
class EachTarget : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { ASSERT_TRUE(cpu::force_target(GetParam())); }
  void TearDown() override { cpu::force_target(""); }
};

}  // namespace palimpsest::test

#define PALIMPSEST_INSTANTIATE_FOR_EACH_TARGET(suite)                          \
  INSTANTIATE_TEST_SUITE_P(                                                    \
      Cpu, suite, ::testing::ValuesIn(::palimpsest::cpu::supported_targets()), \
      [](const ::testing::TestParamInfo<std::string>& target) { return target.param; })
