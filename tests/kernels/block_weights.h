#pragma once

// Random matrices in ggml's block formats, for tests of kernels.

#include <cmath>
#include <cstring>
#include <vector>

#include "base/number_formats.h"
#include "base/rng.h"
#include "palimpsest/tensor.h"

namespace palimpsest::test {

inline constexpr BlockType kBlockTypes[] = {
    BlockType::kQ4_0, BlockType::kQ4_1, BlockType::kQ5_0, BlockType::kQ5_1, BlockType::kQ8_0,   BlockType::kQ2_K,
    BlockType::kQ3_K, BlockType::kQ4_K, BlockType::kQ5_K, BlockType::kQ6_K, BlockType::kIQ4_NL, BlockType::kMxfp4};
static_assert(std::size(kBlockTypes) == kNumBlockTypes);

/// A matrix [rows, cols] of random blocks with scales of ordinary size, `misalignment` bytes after an aligned address, in memory exactly
/// as long as the data, so that address sanitizers see a read past the end.
class BlockWeight {
 public:
  BlockWeight(BlockType type, std::int64_t rows, std::int64_t cols, std::uint64_t seed, std::int64_t misalignment = 0) {
    const std::int64_t count = rows * cols / block_columns(type), size = block_bytes(type);
    memory_.resize(static_cast<std::size_t>(count * size + misalignment));
    memory_.shrink_to_fit();
    for (std::size_t i = 0; i < memory_.size(); ++i) {
      memory_[i] = static_cast<std::uint8_t>(256 * base::uniform(seed, i, 4));
    }
    for (std::int64_t b = 0; b < count; ++b) set_scales(type, memory_.data() + misalignment + b * size, seed, b);
    // An empty vector has no address; a matrix without rows still is one.
    matrix_.blocks = BlockTensor::contiguous(memory_.empty() ? &none_ : memory_.data() + misalignment, type, rows, cols);
  }
  BlockWeight(const BlockWeight&) = delete;
  BlockWeight& operator=(const BlockWeight&) = delete;

  const Matrix& matrix() const { return matrix_; }

 private:
  static void set_scales(BlockType type, std::uint8_t* block, std::uint64_t seed, std::int64_t b) {
    const auto u = [&](std::uint64_t stream) { return base::uniform(seed, static_cast<std::uint64_t>(b), stream); };
    if (type == BlockType::kMxfp4) {
      block[0] = static_cast<std::uint8_t>(118 + 6 * u(5));
      return;
    }
    const auto put = [&](int offset, double value) {
      const std::uint16_t bits = float_to_f16(static_cast<float>(value));
      std::memcpy(block + offset, &bits, sizeof bits);
    };
    const double d = (u(5) - 0.5) / 64, m = (u(6) - 0.5) / 8;
    switch (type) {
      case BlockType::kQ2_K: put(80, d), put(82, m); break;
      case BlockType::kQ3_K: put(108, d); break;
      case BlockType::kQ6_K: put(208, d / 8); break;
      case BlockType::kQ4_1:
      case BlockType::kQ5_1: put(0, d), put(2, m); break;
      case BlockType::kQ4_K:
      case BlockType::kQ5_K: put(0, d / 8), put(2, m / 8); break;
      default: put(0, d); break;
    }
  }

  std::vector<std::uint8_t> memory_;
  std::uint8_t none_ = 0;
  Matrix matrix_;
};

}  // namespace palimpsest::test
