#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace palimpsest::formats {

/// The name of one file of a split GGUF model, as llama.cpp writes it: NAME-00002-of-00005.gguf, numbers of five digits.
struct GgufPart {
  std::string stem;  ///< NAME, which is not empty and may hold folders
  std::int64_t number = 0, count = 0;  ///< as they stand there, 0 to 99999: who reads the files checks them

  /// Nothing for every other name.
  static std::optional<GgufPart> parse(std::string_view file);
  /// The name of part `i`, counted from 1.
  std::string name(std::int64_t i) const;
};

}  // namespace palimpsest::formats
