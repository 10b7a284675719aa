#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "formats/checkpoint.h"

namespace palimpsest::test {

/// A golden.safetensors file: tensors by name, as vectors.
class Golden {
 public:
  /// Fails the calling test by throwing when the file cannot be read.
  explicit Golden(const std::filesystem::path& path);

  bool has(const std::string& name) const;
  std::vector<std::int64_t> shape(const std::string& name) const;
  std::vector<float> floats(const std::string& name) const;    ///< F32
  /// Of long texts a repository may hold every fifth row alone, for its size ("NAME.every5"): what of `got` stands beside the recorded values of `name`
  /// that are there.
  struct Rows {
    std::vector<float> got, want;
  };
  Rows rows(const std::string& name, const std::vector<float>& got) const;
  std::vector<std::int32_t> ids(const std::string& name) const;  ///< I64, narrowed

 private:
  Tensor view(const std::string& name, DType dtype) const;
  formats::Checkpoint file_;
};

/// The largest |a - b|, and where. Sizes must agree.
struct WorstDifference {
  double value = 0;
  std::size_t index = 0;
  double largest = 0;  ///< largest |b|
};
WorstDifference worst_difference(const std::vector<float>& a, const std::vector<float>& b);

}  // namespace palimpsest::test
