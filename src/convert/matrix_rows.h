#pragma once

#include <cstdint>

#include "formats/checkpoint.h"
#include "model/weights_check.h"

namespace palimpsest::convert {

/// The rows of a stored matrix as F32, whatever form it has. Reads mapped bytes at any alignment; safe from any thread; as long as the
/// checkpoint lives.
class MatrixRows {
 public:
  /// `turned`: rows are the stored columns (a matrix stored [in, out], wanted [out, in]).
  MatrixRows(const formats::Checkpoint& checkpoint, const StoredWeight& stored, bool turned);

  std::int64_t rows() const { return turned_ ? cols_ : rows_; }
  std::int64_t cols() const { return turned_ ? rows_ : cols_; }
  /// Row `row`: cols() numbers.
  void read(std::int64_t row, float* out) const;
  /// Gives the memory of rows [0, row) back to the system (all of it where `row` is rows()).
  void release(std::int64_t row) const;

 private:
  float element(std::int64_t row, std::int64_t column) const;
  void read_stored(std::int64_t row, float* out) const;

  const formats::Checkpoint& checkpoint_;
  StoredWeight stored_;
  bool turned_;
  Tensor data_, scales_;  ///< dense values or codes
  std::int64_t rows_, cols_;
};

/// Gives the first `bytes` bytes of a tensor's memory back to the system.
void release_entry(const formats::Checkpoint& checkpoint, const formats::TensorEntry& entry, std::uint64_t bytes);

}  // namespace palimpsest::convert
