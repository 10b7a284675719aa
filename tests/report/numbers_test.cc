#include "report/numbers.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace palimpsest::report {
namespace {

TEST(Numbers, BytesUseBinaryUnitsAndThreeDigits) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1024), "1.00 KiB");
  EXPECT_EQ(format_bytes(1536), "1.50 KiB");
  EXPECT_EQ(format_bytes(40769712), "38.9 MiB");
  EXPECT_EQ(format_bytes(1560936091448), "1.42 TiB");
  EXPECT_EQ(format_bytes(-2048), "-2.00 KiB");
}

TEST(Numbers, UnitsSwitchBeforeFourDigitsAppear) {
  EXPECT_EQ(format_bytes(1024 * 1024 - 1), "1.00 MiB");
  EXPECT_EQ(format_count(999), "999");
  EXPECT_EQ(format_count(999'499), "999 k");
  EXPECT_EQ(format_count(999'999), "1.00 M");
  EXPECT_EQ(format_count(9'999), "10.0 k");
}

TEST(Numbers, ExtremesDoNotOverflow) {
  EXPECT_EQ(format_bytes(std::numeric_limits<std::int64_t>::max()), "8.00 EiB");
  EXPECT_EQ(format_bytes(std::numeric_limits<std::int64_t>::min()), "-8.00 EiB");
  EXPECT_EQ(format_grouped(std::numeric_limits<std::int64_t>::min()), "-9,223,372,036,854,775,808");
}

TEST(Numbers, GroupsOfThree) {
  EXPECT_EQ(format_grouped(0), "0");
  EXPECT_EQ(format_grouped(100), "100");
  EXPECT_EQ(format_grouped(-100), "-100");
  EXPECT_EQ(format_grouped(1000), "1,000");
  EXPECT_EQ(format_grouped(38434898), "38,434,898");
}

TEST(Numbers, Seconds) {
  EXPECT_EQ(format_seconds(0.84), "0.8 s");
  EXPECT_EQ(format_seconds(59.96), "1 min 00 s");
  EXPECT_EQ(format_seconds(245), "4 min 05 s");
  EXPECT_EQ(format_seconds(7380), "2 h 03 min");
  EXPECT_EQ(format_seconds(-1), "-");
  EXPECT_EQ(format_seconds(NAN), "-");
  EXPECT_EQ(format_seconds(INFINITY), "-");
  EXPECT_EQ(format_seconds(1e300), "-");
}

TEST(Numbers, Rates) {
  EXPECT_EQ(format_rate(10, 4), "2.50");
  EXPECT_EQ(format_rate(4096, 1), "4096");
  EXPECT_EQ(format_rate(0, 1), "-");
  EXPECT_EQ(format_rate(5, 0), "-");
}

}  // namespace
}  // namespace palimpsest::report
