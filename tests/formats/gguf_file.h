#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>

#include "formats/gguf.h"

namespace palimpsest::test {

/// The bytes of a GGUF file, put together number by number, so that every one of them can lie.
class GgufBytes {
 public:
  template <class T>
  GgufBytes& put(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  GgufBytes& u32(std::uint32_t value) { return put(value); }
  GgufBytes& u64(std::uint64_t value) { return put(value); }
  GgufBytes& text(std::string_view value) {
    u64(value.size());
    bytes_ += value;
    return *this;
  }
  GgufBytes& header(std::uint64_t tensors, std::uint64_t pairs, std::uint32_t version = 3) {
    bytes_ += "GGUF";
    return u32(version).u64(tensors).u64(pairs);
  }
  GgufBytes& key(std::string_view name, formats::GgufValueType type) { return text(name).u32(static_cast<std::uint32_t>(type)); }
  GgufBytes& array(std::string_view name, formats::GgufValueType element, std::uint64_t count) {
    return key(name, formats::GgufValueType::kArray).u32(static_cast<std::uint32_t>(element)).u64(count);
  }
  GgufBytes& alignment(std::uint32_t value) { return key("general.alignment", formats::GgufValueType::kU32).u32(value); }
  /// sizes in the file's order: columns first
  GgufBytes& info(std::string_view name, std::initializer_list<std::uint64_t> sizes, std::uint32_t type, std::uint64_t offset) {
    text(name).u32(static_cast<std::uint32_t>(sizes.size()));
    for (const std::uint64_t size : sizes) u64(size);
    return u32(type).u64(offset);
  }
  GgufBytes& pad(std::size_t alignment = 32) {
    bytes_.resize((bytes_.size() + alignment - 1) / alignment * alignment);
    return *this;
  }
  GgufBytes& zeros(std::size_t count) {
    bytes_.append(count, '\0');
    return *this;
  }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

/// Parses a copy of exactly the file's size, so that AddressSanitizer sees any read beyond it. A header that parses is also used: every
/// byte of every tensor and value is read.
class ParsedGguf {
 public:
  explicit ParsedGguf(std::string_view file) : size_(file.size()), bytes_(std::make_unique<std::byte[]>(file.size())) {
    std::memcpy(bytes_.get(), file.data(), file.size());
    header = formats::parse_gguf({bytes_.get(), size_});
    if (!header) return;
    for (const auto& tensor : header->tensors) {
      for (std::uint64_t i = 0; i < tensor.bytes; ++i) sum_ = sum_ + std::to_integer<unsigned>(bytes_[tensor.offset + i]);
    }
    for (const auto& entry : header->metadata.entries()) {
      for (const std::byte b : entry.bytes) sum_ = sum_ + std::to_integer<unsigned>(b);
    }
  }
  std::string error() const { return header ? "no error" : header.error().text(); }

  Result<formats::GgufHeader> header;

 private:
  std::size_t size_;
  std::unique_ptr<std::byte[]> bytes_;
  volatile unsigned sum_ = 0;
};

}  // namespace palimpsest::test
