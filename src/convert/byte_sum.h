#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

namespace palimpsest::convert {

/// 64 bits that stand for a run of bytes (XXH3): tells what was read from what was written. Against accidents, not against people.
class ByteSum {
 public:
  ByteSum();
  ~ByteSum();
  ByteSum(ByteSum&&) noexcept;
  ByteSum& operator=(ByteSum&&) noexcept;

  void add(std::span<const std::byte> bytes);
  void add(std::uint64_t number) { add(std::as_bytes(std::span(&number, 1))); }
  /// A text and its length, so that borders count.
  void add(std::string_view text);
  std::uint64_t value() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace palimpsest::convert
