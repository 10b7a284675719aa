#include <gtest/gtest.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cmath>

#include "formats/checkpoint.h"
#include "kernels/block_weights.h"
#include "kernels/ref/block_formats.h"
#include "kernels/ref/load.h"
#include "kernels/test_targets.h"
#include "ops/ops.h"
#include "support/numeric.h"
#include "support/shared_data.h"

namespace palimpsest {
namespace {

/// One bit pattern for every NaN: which one comes out of inf * 0 is nobody's promise.
std::vector<float> one_nan(std::vector<float> x) {
  for (float& v : x) {
    if (std::isnan(v)) v = std::bit_cast<float>(0x7fc00000u);
  }
  return x;
}

/// Blocks, digests of what PyPI gguf decodes them to (tools/record_gguf_blocks.py), and what the reference decodes them to.
class Recorded {
 public:
  explicit Recorded(BlockType type)
      : file_(value_or_throw(formats::Checkpoint::open(test::project_path("tests/data/gguf/blocks.safetensors")))) {
    const std::string name(block_type_name(type));
    const Tensor blocks = file_.view(name + ".blocks"), recorded = file_.view(name + ".digests");
    EXPECT_EQ(blocks.size(1), block_bytes(type));
    EXPECT_EQ(recorded.numel(), blocks.size(0));
    count = blocks.size(0);
    bytes.assign(blocks.as<std::uint8_t>(), blocks.as<std::uint8_t>() + blocks.bytes());
    digests.resize(static_cast<std::size_t>(count));
    std::memcpy(digests.data(), recorded.data, digests.size() * sizeof digests[0]);
    for (std::int64_t i = 0; i < count * block_columns(type); ++i) {
      want.push_back(ref::block_element(type, bytes.data() + i / block_columns(type) * block_bytes(type), static_cast<int>(i % block_columns(type))));
    }
    want = one_nan(want);
  }

  std::int64_t count = 0;
  std::vector<std::uint8_t> bytes;
  std::vector<std::uint64_t> digests;
  std::vector<float> want;

 private:
  formats::Checkpoint file_;
};

TEST(BlockFormats, ReferenceIsBitForBitThatOfPyPiGguf) {
  for (const BlockType type : test::kBlockTypes) {
    SCOPED_TRACE(block_type_name(type));
    const Recorded recorded(type);
    ASSERT_GE(recorded.count, 12);
    const auto columns = static_cast<std::size_t>(block_columns(type));
    for (std::size_t b = 0; b < recorded.digests.size(); ++b) {
      EXPECT_EQ(XXH3_64bits(&recorded.want[b * columns], columns * sizeof(float)), recorded.digests[b]) << "block " << b;
    }
  }
}

TEST(BlockFormats, MatrixOfTheReferenceWalksRowsAndBlocks) {
  for (const BlockType type : test::kBlockTypes) {
    SCOPED_TRACE(block_type_name(type));
    const Recorded recorded(type);
    const std::int64_t rows = recorded.count / 4, cols = 4 * block_columns(type);
    Matrix w;
    w.blocks = BlockTensor::contiguous(const_cast<std::uint8_t*>(recorded.bytes.data()), type, rows, cols);
    EXPECT_TRUE(w.defined() && w.is_blocks() && !w.is_mx());
    EXPECT_EQ(w.rows(), rows);
    EXPECT_EQ(w.cols(), cols);
    EXPECT_EQ(w.bytes(), rows * 4 * block_bytes(type));
    std::vector<float> got;
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t c = 0; c < cols; ++c) got.push_back(static_cast<float>(ref::load<double>(w, r, c)));
    }
    EXPECT_TRUE(test::bit_equal(one_nan(got), std::span(recorded.want).first(got.size())));
  }
}

class BlockDecodeTest : public test::EachTarget {};
PALIMPSEST_INSTANTIATE_FOR_EACH_TARGET(BlockDecodeTest);

std::vector<float> embed(const Matrix& table, std::vector<std::int32_t> ids) {
  const auto rows = static_cast<std::int64_t>(ids.size());
  std::vector<float> out(static_cast<std::size_t>(rows * table.cols()));
  ExecContext ctx(1);
  ops::embedding(ctx, {.table = table,
                       .ids = Tensor::contiguous(ids.data(), DType::kI32, {rows}),
                       .out = Tensor::contiguous(out.data(), DType::kF32, {rows, table.cols()})});
  return out;
}

TEST_P(BlockDecodeTest, EmbeddingIsBitForBitThatOfPyPiGguf) {
  for (const BlockType type : test::kBlockTypes) {
    SCOPED_TRACE(block_type_name(type));
    const Recorded recorded(type);
    for (const std::int64_t per_row : {1, 2, 3}) {
      const std::int64_t rows = recorded.count / per_row;
      Matrix w;
      w.blocks = BlockTensor::contiguous(const_cast<std::uint8_t*>(recorded.bytes.data()), type, rows,
                                         per_row * block_columns(type));
      std::vector<std::int32_t> ids;
      for (std::int64_t r = 0; r < rows; ++r) ids.push_back(static_cast<std::int32_t>(r));
      const std::vector<float> got = embed(w, ids);
      EXPECT_TRUE(test::bit_equal(one_nan(got), std::span(recorded.want).first(got.size())));
    }
  }
}

TEST_P(BlockDecodeTest, RowsOfManyBlocksAtAnyAddressAgreeWithTheReference) {
  for (const BlockType type : test::kBlockTypes) {
    for (const std::int64_t misalignment : {0, 1, 7}) {
      SCOPED_TRACE(testing::Message() << block_type_name(type) << " misaligned " << misalignment);
      const test::BlockWeight weight(type, 5, 1280, 3, misalignment);
      std::vector<float> want;
      for (const std::int64_t r : {4, 0, 3}) {
        for (std::int64_t c = 0; c < 1280; ++c) want.push_back(static_cast<float>(ref::load<double>(weight.matrix(), r, c)));
      }
      EXPECT_TRUE(test::bit_equal(embed(weight.matrix(), {4, 0, 3}), want));
    }
  }
}

}  // namespace
}  // namespace palimpsest
