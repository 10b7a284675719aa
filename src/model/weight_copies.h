#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "kernels/op_args.h"

namespace palimpsest {

/// Owns the copies of weights that are computed with in another form than they are stored in.
class WeightCopies {
 public:
  WeightCopies() = default;
  /// Copies nothing and only counts: what it returns has shapes and an address that nobody may read, different for each copy. For plans.
  /// `owner` (1 to 255): who else counts for the same model has another one.
  static WeightCopies counting(std::uint8_t owner) {
    WeightCopies copies;
    copies.owner_ = owner;
    return copies;
  }

  struct Run {
    std::int64_t begin, count;
  };
  /// Runs of rows, one after the other, in any stored form: a view of one run, a copy of several.
  Matrix rows(const Matrix& stored, std::span<const Run> runs);
  /// A dense matrix turned; quantised ones are [out, in] in every format and stay as they are.
  Matrix transposed(const Matrix& stored);
  Tensor f32(std::int64_t rows, std::int64_t cols);
  /// Values [rows, cols] in F32, F16 or BF16.
  Tensor dense(std::span<const float> values, std::int64_t rows, std::int64_t cols, DType dtype);
  std::byte* allocate(std::int64_t bytes);

  std::int64_t bytes() const { return bytes_; }
  /// Gives the copies back; bytes() goes on saying what they were.
  void forget() { blocks_.clear(); }

 private:
  std::deque<std::vector<std::byte>> blocks_;
  std::int64_t bytes_ = 0;
  bool counting() const { return owner_ > 0; }
  std::uint8_t owner_ = 0;
};

}  // namespace palimpsest
