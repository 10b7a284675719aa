// The plan holds: a gibibyte of MXFP4 experts is used as it lies in the file, never decoded into memory.

#include <gtest/gtest.h>

#include <cstdio>
#include <memory>
#include <string>

#include "support/temp_folder.h"
#include "tools/synthetic_checkpoint.h"

namespace palimpsest {
namespace {

TEST(PeakMemory, StaysWithinFileAndPlan) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers multiply the memory of a process";
#endif
  const test::TempFolder folder;
  // Three layers of 896 experts of 3 x 512 x 512 values: 1.05 GiB of codes and scales.
  synthetic::write_checkpoint(folder.path(), synthetic::config_json({.hidden_size = 512, .num_experts = 896, .experts_per_token = 16,
                                                                     .expert_intermediate_size = 512, .latent_size = 512}));
  for (const char* shape : {"700 4 512 2048", "64 40 32 256"}) {
    const std::string command = std::string(PALIMPSEST_RSS_CHILD) + " " + folder.path().string() + " " + shape;
    const std::unique_ptr<FILE, int (*)(FILE*)> child(::popen(command.c_str(), "r"), ::pclose);
    ASSERT_NE(child, nullptr);
    long long file = 0, planned = 0, peak = 0;
    ASSERT_EQ(std::fscanf(child.get(), "%lld %lld %lld", &file, &planned, &peak), 3);
    EXPECT_GT(file, 1LL << 30);
    EXPECT_LE(peak, (file + planned) * 11 / 10 + (32LL << 20)) << "file " << file << ", planned " << planned;
    // Decoded to F32 the experts alone would be seven times the file.
    RecordProperty(shape, std::to_string(peak) + " of " + std::to_string(file + planned));
  }
}

}  // namespace
}  // namespace palimpsest
