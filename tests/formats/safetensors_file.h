#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "formats/safetensors.h"

namespace palimpsest::test {

/// The bytes of a safetensors file with this header text and `data_bytes` zero bytes of data.
inline std::string safetensors_file(std::string_view header, std::size_t data_bytes) {
  std::string file(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) file[i] = static_cast<char>(header.size() >> (8 * i));
  file += header;
  return file.append(data_bytes, '\0');
}

/// Parses a copy of exactly the file's size, so that AddressSanitizer sees any read beyond it. A header that parses is
/// also used: every byte of every tensor is read.
class ParsedFile {
 public:
  explicit ParsedFile(std::string_view file) : size_(file.size()), bytes_(std::make_unique<std::byte[]>(file.size())) {
    std::memcpy(bytes_.get(), file.data(), file.size());
    header = formats::parse_safetensors({bytes_.get(), size_});
    if (!header) return;
    for (const auto& entry : header->entries) {
      for (std::uint64_t i = 0; i < entry.bytes(); ++i) sum_ = sum_ + std::to_integer<unsigned>(bytes_[entry.offset + i]);
    }
  }
  std::string error() const { return header ? "no error" : header.error().text(); }

  Result<formats::SafetensorsHeader> header;

 private:
  std::size_t size_;
  std::unique_ptr<std::byte[]> bytes_;
  volatile unsigned sum_ = 0;
};

}  // namespace palimpsest::test
