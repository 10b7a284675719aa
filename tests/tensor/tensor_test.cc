#include "palimpsest/tensor.h"

#include <gtest/gtest.h>

#include <vector>

#include "palimpsest/error.h"
#include "tensor/arena.h"
#include "tensor/buffer.h"

namespace palimpsest {
namespace {

TEST(Tensor, IsARowMajorViewWithSlices) {
  std::vector<float> data(24);
  for (int i = 0; i < 24; ++i) data[static_cast<std::size_t>(i)] = static_cast<float>(i);
  const Tensor t = Tensor::contiguous(data.data(), DType::kF32, {2, 3, 4});
  EXPECT_EQ(t.numel(), 24);
  EXPECT_TRUE(t.is_contiguous());
  EXPECT_EQ(*t.at<float>(1, 2, 3), 23.0f);
  const Tensor row = t.rows(1, 1);
  EXPECT_EQ(*row.as<float>(), 12.0f);
  EXPECT_EQ(shape_string(row), "[1, 3, 4]");
  EXPECT_EQ(shape_string(t.reshape({6, 4})), "[6, 4]");
}

TEST(DType, NamesAreReadBack) {
  for (const auto d : {DType::kF64, DType::kF32, DType::kF16, DType::kBF16, DType::kU8, DType::kI8, DType::kI32, DType::kI64}) {
    EXPECT_EQ(parse_dtype(dtype_name(d)), d);
    EXPECT_GT(dtype_size(d), 0);
  }
  EXPECT_FALSE(parse_dtype("F8_E4M3").has_value());
}

TEST(Buffer, IsZeroedAndSaysWhatTheSystemRefused) {
  const Buffer buffer(1 << 20);
  for (std::int64_t i = 0; i < buffer.bytes(); i += 4096) ASSERT_EQ(buffer.data()[i], std::byte{0});
  try {
    Buffer(std::int64_t{1} << 62);
    FAIL() << "the system granted 4 EiB";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory);
    EXPECT_NE(error.text().find("4611686018427387904"), std::string::npos);
  }
}

TEST(Arena, GivesBackInScopesAndMeasuresTheSamePeak) {
  const auto use = [](Arena& arena) {
    arena.allocate(DType::kF32, {3, 5});
    {
      const ArenaScope scope(arena);
      arena.allocate(DType::kU8, {1000});
    }
    arena.allocate(DType::kU8, {10});
  };
  Arena measured = Arena::measuring_only();
  use(measured);
  Arena real(measured.peak());
  use(real);
  EXPECT_EQ(real.peak(), measured.peak());
  EXPECT_EQ(real.peak(), 64 + 1024);
  EXPECT_DEATH(real.allocate(DType::kU8, {2000}), "workspace smaller");
}

}  // namespace
}  // namespace palimpsest
