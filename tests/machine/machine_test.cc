#include "machine/machine.h"

#include <gtest/gtest.h>

#include "kernels/cpu/cpu_kernels.h"

namespace palimpsest {
namespace {

TEST(MachineTest, ProbeIsPlausibleAndConsistent) {
  const MachineInfo info = probe_machine();
  EXPECT_GE(info.cores, 1);
  EXPECT_GT(info.memory_total, std::int64_t{64} << 20);
  EXPECT_GT(info.memory_available, 0);
  EXPECT_LE(info.memory_available, info.memory_total);
  if (info.l1d_bytes > 0 && info.l2_bytes > 0) {
    EXPECT_LT(info.l1d_bytes, info.l2_bytes);
  }
}

TEST(MachineTest, TargetIsTheOneKernelsRunWith) {
  for (const std::string& target : cpu::supported_targets()) {
    ASSERT_TRUE(cpu::force_target(target));
    EXPECT_EQ(probe_machine().target, target);
  }
  cpu::force_target("");
}

TEST(MachineTest, MeasurementsHaveTheRightOrderOfMagnitude) {
  // Anything from an emulator to the largest server; wrong units would fall outside.
  const double fma = measure_fma_rate(1), cached = measure_read_bandwidth(16 << 10, 1),
               memory = measure_read_bandwidth(64 << 20, 1);
  EXPECT_GT(fma, 1e8);
  EXPECT_LT(fma, 1e12);
  EXPECT_GT(memory, 1e8);
  EXPECT_LT(memory, 1e12);
  EXPECT_GT(cached, 1e8);
  EXPECT_LT(cached, 1e13);
}

TEST(MachineTest, OddSizesAndManyThreadsAreTaken) {
  EXPECT_GT(measure_read_bandwidth(1, 1), 0);
  EXPECT_GT(measure_read_bandwidth(100000, 3), 0);
  EXPECT_GT(measure_fma_rate(3), 0);
}

}  // namespace
}  // namespace palimpsest
