#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/atomic_file.h"
#include "formats/gguf.h"

namespace palimpsest::formats {

/// Key-value pairs to be written, in the order they are added. The C++ type is the type in the file: std::uint32_t -> u32, float -> f32,
/// bool, std::string_view -> string. Keys must differ; general.alignment is not one of them. kInternal for a bad key.
class GgufPairs {
 public:
  void add(std::string_view key, bool value);
  void add(std::string_view key, std::int32_t value);
  void add(std::string_view key, std::uint32_t value);
  void add(std::string_view key, std::int64_t value);
  void add(std::string_view key, std::uint64_t value);
  void add(std::string_view key, std::uint16_t value);
  void add(std::string_view key, float value);
  void add(std::string_view key, double value);
  void add(std::string_view key, std::string_view value);
  void add(std::string_view key, const char* value) { add(key, std::string_view(value)); }
  void add(std::string_view key, std::span<const std::int32_t> values);
  void add(std::string_view key, std::span<const std::uint32_t> values);
  void add(std::string_view key, std::span<const float> values);
  void add(std::string_view key, std::span<const std::string> values);
  void add_bools(std::string_view key, std::span<const std::uint8_t> values);  ///< each 0 or 1

  std::uint64_t size() const { return keys_.size(); }
  std::string_view bytes() const { return bytes_; }

 private:
  void begin(std::string_view key, GgufValueType type);
  void begin_array(std::string_view key, GgufValueType element, std::size_t count);
  void put_string(std::string_view text);
  template <class T>
  void put(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }

  std::string bytes_;
  std::vector<std::string> keys_;
};

/// Writes a version 3 file front to back without holding its data: the layout is fixed first, then the tensors' bytes follow in the same
/// order. Appears whole or not at all (AtomicFile). kInternal for items that no file can hold (parse_gguf's rules); kIo with path and
/// reason. Not thread-safe.
class GgufWriter {
 public:
  struct Item {
    std::string name;
    const GgmlType* type;  ///< supported
    std::vector<std::int64_t> shape;  ///< row-major, as GgufTensor::sizes
  };

  GgufWriter(const std::filesystem::path& path, const GgufPairs& pairs, std::span<const Item> items,
             std::uint64_t alignment = kDefaultGgufAlignment);

  /// The next bytes of the tensors; pieces need not match tensors. Padding between them is the writer's business.
  void append(std::span<const std::byte> bytes);
  /// When all bytes were appended: waits until the disk has them; the file, under its temporary name, can be read until commit().
  const std::filesystem::path& finish();
  /// kInternal if fewer or more bytes were appended than the items hold.
  void commit();

 private:
  void pad(std::uint64_t bytes);
  void finish_items();
  void check_complete();

  AtomicFile file_;
  std::vector<std::uint64_t> sizes_;  ///< bytes of each item
  std::uint64_t alignment_;
  std::size_t item_ = 0;     ///< that the next byte belongs to
  std::uint64_t done_ = 0;  ///< bytes of it
};

}  // namespace palimpsest::formats
