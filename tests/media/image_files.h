#pragma once

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "support/shared_data.h"

namespace palimpsest::test {

inline std::vector<std::byte> bytes_of(const std::string& text) {
  const auto* data = reinterpret_cast<const std::byte*>(text.data());
  return {data, data + text.size()};
}

/// A picture of tests/data/images.
inline std::vector<std::byte> recorded_image(const std::string& name) {
  std::ifstream file(project_path("tests/data/images/" + name), std::ios::binary);
  return bytes_of({std::istreambuf_iterator<char>(file), {}});
}

}  // namespace palimpsest::test
