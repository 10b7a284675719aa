#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace palimpsest::hub {

/// The sum by which the hub names a file: SHA-256 of its bytes for large files (git LFS), and for
/// others git's blob id, SHA-1 of "blob SIZE\0" and the bytes.
class Checksum {
 public:
  /// `name` is the sum that is expected, whose length tells the kind; `size` the file's, which
  /// git's sum begins with.
  Checksum(std::string_view name, std::uint64_t size);
  ~Checksum();
  Checksum(Checksum&&) noexcept;
  Checksum& operator=(Checksum&&) noexcept;

  /// 64 or 40 lower-case hexadecimal digits.
  static bool is_name(std::string_view name);
  /// "SHA-256" or "git SHA-1".
  static std::string_view kind(std::string_view name);

  void update(std::span<const std::byte> bytes);
  /// The sum as hexadecimal digits. Nothing may follow.
  std::string finish();

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

}  // namespace palimpsest::hub
